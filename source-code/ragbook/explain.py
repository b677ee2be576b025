"""Explain one retrieval: what each stage found, how long it took, and why a passage moved."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ragbook.terminal import one_line
from ragbook.tracing import Span, Trace, stages_of
from retrievers.bm25 import BM25Retriever
from retrievers.documents import document_key, keys_of, latest_score_name

Retrieves = Runnable[str, list[Document]]
"""A retriever, also one with a configuration bound to it."""

SHOWN = 5
"""How many passages of each stage are shown."""

CHEAP_CORPUS = 20_000
"""Documents up to which a BM25 score is split into the points of its terms: all are read for it."""


@dataclass(frozen=True)
class Explanation:
    """The trace of one retrieval.

    Args:
        root: The outermost retriever's run.
        keyword: The BM25 index that was searched, where there is just one and it is small.
    """

    root: Span
    keyword: BM25Retriever | None = None

    @property
    def error(self) -> BaseException | None:
        """What the retrieval raised, if it did."""
        return self.root.error


@dataclass(frozen=True)
class Found:
    """One passage as one stage returned it.

    Args:
        rank: Its rank there, from 1.
        document: The passage.
        score: Its score there, and the name of that score; None where the stage writes none.
        before: Its rank in each child, by the child's label; None where the child lacks it.
        before_scores: Its score in each child that has it, with the score's name.
        points: What each query term gave it, where a BM25 index ranked it.
    """

    rank: int
    document: Document
    score: tuple[str, float] | None
    before: dict[str, int | None] = field(default_factory=dict)
    before_scores: dict[str, tuple[str, float]] = field(default_factory=dict)
    points: dict[str, float] = field(default_factory=dict)


def explain(retriever: Retrieves, question: str) -> Explanation:
    """Retrieve for a question and keep the trace. A failure is part of it: see its `error`.

    Below a retriever that limits what a user may see (it has a method `visibility`), documents that
    it did not return are taken out and only counted, as the explanation is shown to someone.
    """
    trace = Trace()
    try:
        retriever.invoke(question, config=trace.config)
    except Exception:
        if not trace.retrievals():
            raise
    root = trace.retrievals()[0]
    limiting = _limiting(retriever)
    if isinstance(retriever, RunnableBindingBase) and retriever.bound.get_name() in limiting:
        limiting.add(root.name)  # with_config may have given it another name
    _withhold(root, limiting)
    return Explanation(root, _keyword_index(retriever))


def tree(explanation: Explanation, shown: int = SHOWN) -> Tree:
    """Show an explanation on a terminal.

    Args:
        explanation: What `explain` returned.
        shown: How many passages of each stage, from its top.
    """
    return _branch(explanation, explanation.root, None, shown)


def json_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the same as JSON, a line for each run, a run before those it started.

    A line has `span` (its number), `parent` (its parent's, or null), `depth`, `name`, `stage`,
    `tag`, `query`, `ms`, `own_ms`, `documents`, `withheld` (how many more it returned that the user
    may not see), `remarks` (as the tree shows them) and `error`. A document has `id`, `rank`,
    `score`, `score_name` and `retrieved_by`; below a stage with children `before`, its rank in each
    of them (null where that one lacks it); below BM25, for the first few, `points` of each query
    term.
    """
    numbers: dict[int, int] = {}
    stages = {id(span): stage for stage, span in explanation.root.staged()}
    parents = {
        id(child): id(span) for _, span in explanation.root.walk() for child in span.children
    }
    for number, (depth, span) in enumerate(explanation.root.walk()):
        numbers[id(span)] = number
        row = {
            "span": number,
            "parent": numbers.get(parents.get(id(span), 0)),
            "depth": depth,
            "name": span.name,
            "stage": stages[id(span)],
            "tag": span.tag,
            "query": span.query,
            "ms": round(span.milliseconds, 3),
            "own_ms": round(span.own_milliseconds, 3),
            "documents": [
                _as_dict(found) for found in passages(explanation, span, len(span.documents))
            ],
            "withheld": span.withheld,
            "remarks": list(remarks(span)),
            "error": _error(span.error),
        }
        yield json.dumps(row, ensure_ascii=False)


def passages(explanation: Explanation, span: Span, count: int = SHOWN) -> list[Found]:
    """Return the first passages of a stage, with where each stood in the stages below it."""
    searches = [child for child in span.children if child.is_retriever and not child.error]
    children = sorted(searches, key=lambda child: _order(child.tag))
    labels = _labels(children)
    own, *names = keys_of([span.documents, *(child.documents for child in children)])
    copies: list[dict[Hashable, tuple[int, Document]]] = []
    for child, keys in zip(children, names):
        ranked = list(enumerate(child.documents, start=1))
        copies.append(dict(reversed(list(zip(keys, ranked)))))  # the first of equal ones stays
    found = []
    for rank, (key, document) in enumerate(zip(own[:count], span.documents), start=1):
        stood = {label: copy.get(key) for label, copy in zip(labels, copies)}
        scores = {label: _score(was[1]) for label, was in stood.items() if was}
        found.append(
            Found(
                rank,
                document,
                _score(document),
                {label: was and was[0] for label, was in stood.items()},
                {label: score for label, score in scores.items() if score},
                _points(explanation, span, document) if rank <= SHOWN else {},
            )
        )
    return found


def remarks(span: Span) -> Iterator[str]:
    """Yield what a stage did to what its children returned, in a few words each.

    Whatever the stage is: that only some of the passages were kept, that texts were shortened,
    which one of several children the passages are from, and what the run says itself in custom
    events.
    """
    searches = [child for child in span.children if child.is_retriever]
    if len(searches) == 1 and not searches[0].error:
        yield from _narrowed(span, searches[0])
    contributed = [child for child in searches if _shares(span, child)]
    if len(searches) > 1 and len(contributed) == 1:
        (only,) = contributed
        yield f"all from {only.tag or only.name}"
    for name, data in span.events:
        said = _in_words(data)
        yield one_line(f"{name}: {said}" if said else name)[:80]


def _in_words(data: Any) -> str:
    if isinstance(data, dict) and len(data) == 1:
        (data,) = data.values()
    if data is None or isinstance(data, str):
        return data or ""
    return json.dumps(data, ensure_ascii=False, default=str)


def _narrowed(span: Span, child: Span) -> Iterator[str]:
    before, after = len(child.documents) + child.withheld, len(span.documents) + span.withheld
    if after < before:
        yield f"{after} of {before} kept"
    texts = {document.id: document.page_content for document in child.documents}
    pairs = [
        (len(texts[document.id]), len(document.page_content))
        for document in span.documents
        if document.id is not None and document.id in texts
    ]
    long, short = (sum(lengths) for lengths in zip(*pairs)) if pairs else (0, 0)
    if short != long:
        yield f"{long} -> {short} characters"


def _shares(span: Span, child: Span) -> bool:
    own, theirs = keys_of([span.documents, child.documents])
    return not set(own).isdisjoint(theirs)


def _limiting(retriever: Retrieves) -> set[str]:
    """Return the run names of the retrievers in this one that limit what a user may see."""
    return {part.get_name() for part in _parts(retriever, set()) if _limits(part)}


def _limits(part: Any) -> bool:
    try:
        # A cache has the method too, and says None unless it was told whom its entries are for.
        return callable(getattr(part, "visibility", None)) and part.visibility() is not None
    except Exception:  # it cannot be told now, so it must be taken for a limit
        return True


def _withhold(span: Span, limiting: set[str]) -> None:
    """Take out, below a retriever that limits what may be seen, all that it did not return."""
    if span.name not in limiting:
        for child in span.children:
            _withhold(child, limiting)
        return
    for _, run in (below for child in span.children for below in child.walk()):
        shown, keys = keys_of([span.documents, run.documents])
        kept = [document for key, document in zip(keys, run.documents) if key in set(shown)]
        run.withheld, run.documents = len(run.documents) - len(kept), kept


def _branch(explanation: Explanation, span: Span, parent: Span | None, shown: int) -> Tree:
    branch = Tree(Group(*_described(explanation, span, parent, shown)), guide_style="dim")
    for child in sorted(span.children, key=lambda child: _order(child.tag)):
        branch.children.append(_branch(explanation, child, span, shown))
    return branch


def _described(
    explanation: Explanation, span: Span, parent: Span | None, shown: int
) -> Iterator[RenderableType]:
    title = Text(one_line(span.name), style="bold")
    if span.tag:
        title.append(f" {one_line(span.tag)}", style="not bold cyan")
    title.append(f" {span.stage}", style="not bold")
    title.append(f" {span.milliseconds:.1f} ms", style="not bold")
    if span.children:
        title.append(f" (own {span.own_milliseconds:.1f})", style="not bold dim")
    if span.is_retriever and not span.error:
        count = len(span.documents)
        title.append(f" {count} passage{'' if count == 1 else 's'}", style="not bold")
    if span.withheld:
        title.append(f" ({span.withheld} more withheld)", style="not bold dim")
    if said := list(remarks(span)):
        title.append(f" {'; '.join(said)}", style="not bold dim")
    yield title
    if span.query and (parent is None or parent.query != span.query):
        yield Text(f"“{one_line(span.query)}”", style="italic")
    if span.error:
        yield Text(f"{type(span.error).__name__}: {one_line(str(span.error))}", style="red")
    if span.documents:
        yield _table(passages(explanation, span, shown))


def _table(found: Sequence[Found]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", ratio=2, min_width=12)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", ratio=3, style="dim")
    for passage in found:
        table.add_row(
            str(passage.rank),
            Text(_name(passage.document)),
            f"{passage.score[1]:.3f}" if passage.score else "",
            Text(_why(passage)),
        )
    return table


def _why(found: Found) -> str:
    """Say why a passage is where it is, such as `dense 4, bm25 1 -> 1`."""
    if found.points:
        best = sorted(found.points.items(), key=lambda item: -item[1])
        return ", ".join(f"{one_line(term)} {points:.2f}" for term, points in best)
    if not found.before:
        return ""
    # Of many wordings of a question, those that found it say enough.
    all_said = len(found.before) <= 2
    stood = {label: rank for label, rank in found.before.items() if rank is not None or all_said}
    if len(found.before) == 1 and found.score:  # one list, put into another order
        ((label, rank),) = stood.items()
        was = found.before_scores.get(label)
        return (
            f"{label} {rank or '-'}{_in_brackets(was)} -> {found.rank}{_in_brackets(found.score)}"
        )
    moved = ", ".join(f"{label} {rank or '-'}" for label, rank in stood.items())
    return f"{moved} -> {found.rank}"


def _in_brackets(score: tuple[str, float] | None) -> str:
    return f" ({score[1]:.3f})" if score else ""


def _labels(children: Sequence[Span]) -> list[str]:
    """Return what to call each child: what wrote its scores, or its tag where two would be equal.

    A question's wordings always have their tags, `query_1` and so on. Children of one name that
    have no tags, as another's retriever may call them, are numbered.
    """
    labels = [_label(child) for child in children]
    names = [
        child.tag or child.name if labels.count(label) > 1 else label
        for child, label in zip(children, labels)
    ]
    return [
        f"{name} {names[: place + 1].count(name)}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _label(child: Span) -> str:
    if child.tag.startswith("query_") or not child.documents:
        return child.tag or child.name
    score = _score(child.documents[0])
    return score[0] if score else child.tag or child.name


def _score(document: Document) -> tuple[str, float] | None:
    """Return the name (without `_score`) and value of the last score; None if it is not finite."""
    name = latest_score_name(document)
    if name is None or not math.isfinite(value := float(document.metadata[name])):
        return None
    return name.removesuffix("_score"), value


def _points(explanation: Explanation, span: Span, document: Document) -> dict[str, float]:
    score = _score(document)
    if explanation.keyword is None or span.children or score is None or score[0] != "bm25":
        return {}
    try:
        return explanation.keyword.explain(span.query, document)
    except ValueError:  # another index found it
        return {}


def _keyword_index(retriever: Retrieves) -> BM25Retriever | None:
    """Return the BM25 index that a retriever searches; None for several, or a large one."""
    found_in = (part for part in _parts(retriever, set()) if isinstance(part, BM25Retriever))
    indexes = {id(found.index): found for found in found_in}
    if len(indexes) != 1:
        return None
    (found,) = indexes.values()
    return found if len(found.index.documents) <= CHEAP_CORPUS else None


def _parts(part: object, seen: set[int]) -> Iterator[Runnable[Any, Any]]:
    """Yield a retriever and all runnables in its fields, each once."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, Runnable):
        yield part
        for value in vars(part).values():
            yield from _parts(value, seen)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _parts(value, seen)
    elif isinstance(part, dict):
        yield from _parts(list(part.values()), seen)


def _as_dict(found: Found) -> dict[str, Any]:
    name, value = found.score or (None, None)
    row: dict[str, Any] = {
        "id": found.document.id,
        "rank": found.rank,
        "score": value,
        "score_name": name and f"{name}_score",
        "retrieved_by": stages_of(found.document),
    }
    if found.before:
        row["before"] = found.before
    if found.points:
        row["points"] = found.points
    return row


def _error(error: BaseException | None) -> dict[str, str] | None:
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def _order(tag: str) -> tuple[bool, str, int]:
    # The rewriting first, then the children by number: threads begin in any order.
    stem, _, number = tag.rpartition("_")
    return (
        (tag != "rewriter", stem, int(number)) if number.isdigit() else (tag != "rewriter", tag, 0)
    )


def _name(document: Document) -> str:
    return one_line(document.id or " ".join(document_key(document)[1:]))[:60]

"""Test collections: documents, queries and judgements of which document answers which query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from ragbook.corpus import load_passages, load_questions

Qrels = dict[str, dict[str, int]]
"""Query id to document id to gain (0 means judged and not relevant)."""


class CollectionError(ValueError):
    """A test collection cannot be used; the message says which file and line, and why."""


@dataclass(frozen=True)
class Collection:
    """Documents, the queries asked of them, and which documents are relevant to each.

    Args:
        name: What to call it in tables.
        documents: The documents, with ids.
        queries: Query id to text; only queries that have a judgement or a kind.
        qrels: Query id to document id to gain.
        kinds: Query id to kind of question, where the collection tells kinds apart.
        answers: Query id to the strings that a right answer contains, where known.
    """

    name: str
    documents: list[Document]
    queries: dict[str, str]
    qrels: Qrels
    kinds: dict[str, str] = field(default_factory=dict)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def subset(self, query_ids: set[str]) -> Collection:
        """Return the same documents with only some of the queries."""

        def keep(table: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in table.items() if name in query_ids}

        return Collection(
            self.name,
            self.documents,
            keep(self.queries),
            keep(self.qrels),
            keep(self.kinds),
            keep(self.answers),
        )


def load_question_set(folder: str | Path, questions: str | Path) -> Collection:
    """Read a folder of text and a file of labelled questions about its passages.

    Raises:
        CorpusError: If the folder or the file cannot be used.
        CollectionError: If no question has relevant passages.
    """
    passages = load_passages(folder)
    labelled = load_questions(questions, passages, f"{folder}")
    if not any(question.relevant for question in labelled):
        raise CollectionError(
            f"No question of {questions} has relevant passages, so there is nothing to measure."
        )
    return Collection(
        name=Path(folder).resolve().name,
        documents=passages,
        queries={q.id: q.question for q in labelled},
        qrels={q.id: dict.fromkeys(q.relevant, 1) for q in labelled if q.relevant},
        kinds={q.id: q.kind for q in labelled if q.kind},
        answers={q.id: q.answers for q in labelled if q.answers},
    )


def load_beir(folder: str | Path) -> Collection:
    """Read a collection in BEIR's format.

    The folder holds `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and
    `qrels/*.tsv` (query id, document id, gain; a header line). Where there are several splits,
    `test.tsv` is read. A document's text is its title and its text. Queries without a judgement
    are left out.

    Format: Thakur et al., "BEIR: A Heterogenous Benchmark for Zero-shot Evaluation of Information
    Retrieval Models", NeurIPS 2021.

    Raises:
        CollectionError: If a file is missing or a line cannot be used; it names file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise CollectionError(f"There is no folder {folder}. Give the folder with corpus.jsonl.")
    documents: dict[str, Document] = {}
    for place, row in _json_lines(root / "corpus.jsonl"):
        identifier = _new_id(row, documents, place)
        text = f"{_string(row, 'title', place, '')} {_string(row, 'text', place)}".strip()
        documents[identifier] = Document(id=identifier, page_content=text)
    queries: dict[str, str] = {}
    for place, row in _json_lines(root / "queries.jsonl"):
        queries[_new_id(row, queries, place)] = _string(row, "text", place)
    if not documents or not queries:
        raise CollectionError(f"{root} has no documents or no queries.")
    qrels = _read_qrels(_qrels_file(root), documents, queries)
    return Collection(
        name=root.resolve().name,
        documents=list(documents.values()),
        queries={name: text for name, text in queries.items() if name in qrels},
        qrels=qrels,
    )


def beir_files(folder: str | Path) -> list[Path]:
    """Return the files that `load_beir` reads."""
    root = Path(folder)
    return [root / "corpus.jsonl", root / "queries.jsonl", *sorted((root / "qrels").glob("*.tsv"))]


def load_ir_dataset(identifier: str) -> Collection:
    """Read a collection by its `ir_datasets` id, such as `beir/scifact/test`. Needs a network.

    Raises:
        CollectionError: If the package is not installed, the id is unknown or has no judgements,
            the collection cannot be fetched, or a judged query is not among the queries.
    """
    try:
        import ir_datasets  # type: ignore[import-not-found]
    except ImportError:
        raise CollectionError(
            "Reading a collection by id needs the package ir_datasets. "
            f"Run: uv run --with ir_datasets rag evaluate --ir-dataset {identifier}"
        ) from None
    try:
        dataset = ir_datasets.load(identifier)
    except KeyError:
        raise CollectionError(f"ir_datasets knows no collection {identifier!r}.") from None
    if not (dataset.has_docs() and dataset.has_queries() and dataset.has_qrels()):
        raise CollectionError(f"{identifier} lacks documents, queries or judgements.")
    try:
        return _read_ir_dataset(identifier, dataset)
    except OSError as error:  # fetched when first read; requests' errors are of this kind too
        raise CollectionError(
            f"{identifier} cannot be fetched or read: {error}. Try again with a network, or "
            "give a folder in BEIR's format with --beir."
        ) from error


def _read_ir_dataset(identifier: str, dataset: Any) -> Collection:
    qrels: Qrels = {}
    for row in dataset.qrels_iter():
        qrels.setdefault(row.query_id, {})[row.doc_id] = row.relevance
    queries = {
        row.query_id: row.default_text() for row in dataset.queries_iter() if row.query_id in qrels
    }
    if absent := [name for name in qrels if name not in queries]:
        shown = ", ".join(map(repr, absent[:5])) + (", …" if len(absent) > 5 else "")
        raise CollectionError(
            f"{identifier} judges {len(absent)} queries that it does not have: {shown}."
        )
    if not _any_relevant(qrels):
        raise CollectionError(
            f"{identifier} judges no document relevant, so there is nothing to measure."
        )
    documents = [
        Document(id=row.doc_id, page_content=row.default_text()) for row in dataset.docs_iter()
    ]
    return Collection(name=identifier, documents=documents, queries=queries, qrels=qrels)


def _qrels_file(root: Path) -> Path:
    files = sorted((root / "qrels").glob("*.tsv"))
    if not files:
        raise CollectionError(f"{root / 'qrels'} has no .tsv file with relevance judgements.")
    named_test = [file for file in files if file.stem == "test"]
    if len(files) > 1 and not named_test:
        names = ", ".join(file.name for file in files)
        raise CollectionError(f"{root / 'qrels'} has {names}: name the one to use test.tsv.")
    return (named_test or files)[0]


def _read_qrels(
    path: Path, documents: dict[str, Document], queries: dict[str, str]
) -> dict[str, dict[str, int]]:
    qrels: Qrels = {}
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        fields = line.split("\t")
        if number == 1 and fields[-1].strip() in ("score", "gain"):
            continue
        if len(fields) != 3:
            raise CollectionError(f"{place}: expected 3 columns between tabs, got {len(fields)}.")
        query, document, gain = (field.strip() for field in fields)
        if query not in queries:
            raise CollectionError(f"{place}: there is no query {query!r} in queries.jsonl.")
        if document not in documents:
            raise CollectionError(f"{place}: there is no document {document!r} in corpus.jsonl.")
        if document in qrels.get(query, {}):
            raise CollectionError(f"{place}: query {query!r} judges {document!r} twice.")
        try:
            qrels.setdefault(query, {})[document] = int(gain)
        except ValueError:
            raise CollectionError(
                f"{place}: the gain must be a whole number, got {gain!r}."
            ) from None
    if not qrels:
        raise CollectionError(f"{path} has no judgement.")
    if not _any_relevant(qrels):
        raise CollectionError(
            f"{path} judges no document relevant, so there is nothing to measure."
        )
    return qrels


def _any_relevant(qrels: Qrels) -> bool:
    return any(gain > 0 for gains in qrels.values() for gain in gains.values())


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CollectionError(f"{place}: not valid JSON ({error.msg}).") from None
        if not isinstance(row, dict):
            raise CollectionError(f"{place}: expected a JSON object, got {type(row).__name__}.")
        yield place, row


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise CollectionError(f"{path} is missing.") from None
    except UnicodeDecodeError as error:
        raise CollectionError(f"{path} is not UTF-8: {error.reason}.") from None
    except OSError as error:
        raise CollectionError(f"{path} cannot be read: {error.strerror}.") from None


def _new_id(row: dict[str, Any], known: dict[str, Any], place: str) -> str:
    identifier = row.get("_id")
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    if not isinstance(identifier, str) or not identifier.strip():
        raise CollectionError(f'{place}: "_id" must be a string, got {identifier!r}.')
    if any(character.isspace() for character in identifier):
        raise CollectionError(
            f"{place}: the id {identifier!r} has a space; a run file cannot hold it."
        )
    if identifier in known:
        raise CollectionError(f"{place}: the id {identifier!r} came before.")
    return identifier


def _string(row: dict[str, Any], name: str, place: str, default: str | None = None) -> str:
    value = row.get(name, default)
    if not isinstance(value, str):
        raise CollectionError(f'{place}: "{name}" must be a string, got {value!r}.')
    return value

"""Multi-query retrieval: search a question in several wordings and unite what they find."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

from cachetools import LRUCache
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from .documents import (
    Key,
    OnError,
    add_note,
    by_key,
    check_count,
    check_documents,
    check_query,
    document_key,
    merge_by_score,
    merge_copies,
    side_by_side,
    without_reasoning,
)

logger = logging.getLogger(__name__)

_CACHE_LOCK = threading.Lock()  # one for all: it is held for a dictionary look-up only

RRF_K = 60
"""The constant of reciprocal rank fusion, as in the literature."""

DEFAULT_PROMPT: BasePromptTemplate[Any] = PromptTemplate.from_template(
    "Rewrite the question below in {num_queries} different ways, so that a search engine finds "
    "documents that use other words for the same things. Keep names, numbers and the meaning. "
    "Write one question on each line and nothing else.\n\n"
    "Question: {question}"
)


class MultiQueryRetriever(BaseRetriever):
    """Let a model reword the question, search every wording, and unite the results.

    The question itself is always searched, and first; a model that writes nonsense, or nothing, can
    add documents but not lose the ones that the question finds. A retriever with a `batch` of its
    own gets all wordings in one, so that a `DenseRetriever` embeds them in one call; another one is
    asked side by side.

    `fusion="union"` returns each document once, in the order met: what the question found, then
    what the first rewording added, and so on, as `langchain_classic` does. Most of its use is as a
    wide first stage before a reranker; cut by `top_n` alone it may show little else than what the
    question itself found. `fusion="rrf"` orders by reciprocal rank fusion (Cormack, Clarke and
    Buettcher 2009), so that documents found by several wordings rise, and writes `rrf_score`.

    In a trace the rewriting is the child run tagged `rewriter`, and the searches are `query_1` (the
    question), `query_2` and so on: it shows which wording found which document. The wordings are
    also logged, at the level INFO.

    Args:
        retriever: Searches each wording.
        llm: A language model (also one with `.bind`, `.with_retry` or `.with_fallbacks` around it),
            or any other runnable that takes the question and returns its rewordings, as a list of
            strings or as text that `parse_queries` reads: a `FeedbackQueryRewriter`, or a chain
            `prompt | model | parser`.
        num_queries: How many rewordings to ask for and to search at most, besides the question.
        fusion: `"union"` or `"rrf"`.
        top_n: How many documents to return; default: all. Also `invoke(query, top_n=…)`.
        prompt: What a language model is asked, with the variable `question` and, if wanted,
            `num_queries`. Other runnables do not see it.
        cache_size: How many questions to remember the rewordings of, the most recently asked ones;
            default: none. Failures and empty answers are not remembered.
        key: What makes two documents the same one; default: `document_key`.
        on_error: `"raise"` (default) fails when the rewriting or a search fails; `"skip"` logs a
            warning and goes on with the question alone, or without that search. If every search
            fails it raises.

    Raises:
        ValueError: At construction, for unfit numbers or a prompt with other variables; per call,
            for `top_n` < 1.
        TypeError: If the query is not a string, or the rewriter returned something else than text.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    retriever: BaseRetriever
    llm: Runnable[Any, Any]
    num_queries: int = Field(default=3, ge=1)
    fusion: Literal["union", "rrf"] = "union"
    top_n: int | None = Field(default=None, ge=1)
    prompt: BasePromptTemplate = DEFAULT_PROMPT  # type: ignore[type-arg]  # with [Any] pydantic builds one
    cache_size: int = Field(default=0, ge=0)
    key: Key = document_key
    on_error: OnError = "raise"

    _cache: LRUCache[str, list[str]] = PrivateAttr()

    @classmethod
    def from_llm(
        cls,
        retriever: BaseRetriever,
        llm: Runnable[Any, Any],
        prompt: BasePromptTemplate[Any] = DEFAULT_PROMPT,
        include_original: bool = True,
        **fields: Any,
    ) -> Self:
        """Build it as `langchain_classic`'s class of the same name is built.

        Raises:
            ValueError: If `include_original` is False: here the question is always searched.
        """
        if not include_original:
            raise ValueError(
                "include_original=False is not supported: the question itself is always searched, "
                "so that poor rewordings cannot lose what it finds. Leave the argument out."
            )
        return cls(retriever=retriever, llm=llm, prompt=prompt, **fields)

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: BasePromptTemplate[Any]) -> BasePromptTemplate[Any]:
        variables = set(prompt.input_variables)
        if not {"question"} <= variables <= {"question", "num_queries"}:
            raise ValueError(
                "prompt must have the variable 'question' and may have 'num_queries', "
                f"got {sorted(variables)}."
            )
        return prompt

    @model_validator(mode="after")
    def _forget(self) -> Self:
        # Also runs when a field is assigned: another model or prompt words questions differently.
        self._cache = LRUCache(self.cache_size)
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it with an empty cache, since the copy may have another model or prompt."""
        copy = super().model_copy(update=update, deep=deep)
        copy._cache = LRUCache(copy.cache_size)
        return copy

    def generate_queries(self, question: str, config: RunnableConfig | None = None) -> list[str]:
        """Return what is searched for this question: itself, then the rewordings.

        Args:
            question: The question. A blank one gives `[]`, without asking the model.
            config: Callbacks and so on for the run of the model.
        """
        if not check_query(question).strip():
            return []
        if (remembered := self._recall(question)) is not None:
            return remembered
        try:
            reply = self.llm.invoke(self._model_input(question), config)
            return self._remember(question, _rewordings(reply))
        except Exception as error:
            return self._without_rewordings(question, error)

    async def agenerate_queries(
        self, question: str, config: RunnableConfig | None = None
    ) -> list[str]:
        """Do what `generate_queries` does, on the event loop."""
        if not check_query(question).strip():
            return []
        if (remembered := self._recall(question)) is not None:
            return remembered
        try:
            reply = await self.llm.ainvoke(self._model_input(question), config)
            return self._remember(question, _rewordings(reply))
        except Exception as error:  # a cancellation is not an Exception and passes through
            return self._without_rewordings(question, error)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        queries = self.generate_queries(query, {"callbacks": run_manager.get_child("rewriter")})
        logger.info("Searching for %s", queries)
        children = _child_configs(run_manager, queries)
        answers = self._search_all(queries, children)
        return self._merge(queries, answers, top_n)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        config: RunnableConfig = {"callbacks": run_manager.get_child("rewriter")}
        queries = await self.agenerate_queries(query, config)
        logger.info("Searching for %s", queries)
        children = _child_configs(run_manager, queries)
        answers: list[Any] = await self.retriever.abatch(queries, children, return_exceptions=True)
        return self._merge(queries, answers, top_n)

    def _search_all(self, queries: list[str], children: list[RunnableConfig]) -> list[Any]:
        if type(self.retriever).batch is not BaseRetriever.batch:  # it embeds them in one call
            return self.retriever.batch(queries, children, return_exceptions=True)

        def ask(query: str, config: RunnableConfig) -> Any:
            try:
                return self.retriever.invoke(query, config)
            except Exception as error:
                return error

        return side_by_side([partial(ask, *pair) for pair in zip(queries, children)])

    def _model_input(self, question: str) -> Any:
        if not _is_language_model(self.llm):
            return question
        values = {"question": question, "num_queries": self.num_queries}
        return self.prompt.format_prompt(**{n: values[n] for n in self.prompt.input_variables})

    def _without_rewordings(self, question: str, error: Exception) -> list[str]:
        error.add_note(f"Raised while {self.llm.get_name()} reworded the question {question!r}.")
        if self.on_error == "raise":
            raise error
        logger.warning("Searching the question alone, rewording it failed: %r", error)
        return [question]

    def _recall(self, question: str) -> list[str] | None:
        with _CACHE_LOCK:  # reading moves an entry, so it needs the lock as well
            remembered = self._cache.get(question)
        return None if remembered is None else list(remembered)

    def _remember(self, question: str, rewordings: Iterable[str]) -> list[str]:
        queries = _distinct([question, *rewordings])[: 1 + self.num_queries]
        if self.cache_size and len(queries) > 1:
            with _CACHE_LOCK:
                self._cache[question] = list(queries)
        return queries

    def _merge(
        self, queries: Sequence[str], answers: Sequence[Any], top_n: int | None
    ) -> list[Document]:
        answers, failures = [self._checked(answer) for answer in answers], []
        for number, (query, answer) in enumerate(zip(queries, answers, strict=True), start=1):
            if isinstance(answer, Exception):
                add_note(answer, f"Raised by the search of query_{number}: {query!r}.")
                failures.append(answer)
                if self.on_error == "skip":
                    logger.warning("Skipped query_%d (%r): %r", number, query, answer)
        if failures and (self.on_error == "raise" or len(failures) == len(queries)):
            raise failures[0]
        copies: dict[Hashable, list[Document]] = {}
        scores: dict[Hashable, float] = {}
        lists = [answer for answer in answers if not isinstance(answer, Exception)]
        for found in by_key(lists, self.key):
            for rank, (name, document) in enumerate(found.items(), start=1):
                copies.setdefault(name, []).append(document)
                scores[name] = scores.get(name, 0.0) + 1 / (RRF_K + rank)
        if self.fusion == "rrf":
            return merge_by_score(copies, scores, "rrf_score", top_n)
        return [merge_copies(same) for same in list(copies.values())[:top_n]]

    def _checked(self, answer: Any) -> list[Document] | Exception:
        if isinstance(answer, Exception):
            return answer
        try:
            return check_documents(answer, self.retriever.get_name())
        except TypeError as error:
            return error


def parse_queries(reply: str | BaseMessage | list[Any]) -> list[str]:
    """Read the queries out of whatever a model really printed.

    Understood: one query a line; numbers, bullets, labels ("Query 2:"), quotes and bold around
    them; JSON lists and objects, with or without a code fence, also broken off or with single
    quotes; text in content blocks, each of which starts a new line. Left out: reasoning (in blocks
    or in `<think>` tags), introductions, headings, closing remarks, repeats that differ only in
    case or spaces, and lines without a letter.

    A number or dash is a list mark only where a list would have it: "2024 otter census",
    "3.5 mm jack" and "-40 degrees" stay whole, "- 40 degrees" becomes "40 degrees".

    Args:
        reply: A model's answer: text, a message, or the content blocks of one.

    Returns:
        The queries in their order, each on one line; `[]` if there are none.

    Raises:
        TypeError: If `reply` is none of these. No text raises.
    """
    text = _FENCE.sub("", without_reasoning(_text(reply)))
    if from_json := list(_from_json(text)):
        return _distinct(query for query, _ in map(_clean, from_json) if _has_letter(query))
    lines = [(line, *_clean(line)) for line in _split_inline_list(text).splitlines()]
    has_list = any(marked for _, _, marked in lines)
    return _distinct(
        query
        for line, query, marked in lines
        if _has_letter(query)
        and not query.endswith((":", "："))
        and (marked or not _is_remark(line, query, has_list))
    )


def _rewordings(reply: Any) -> list[str]:
    if isinstance(reply, list) and all(isinstance(query, str) for query in reply):
        return reply  # a rewriter's own list is not a model's text: taken as it is
    return parse_queries(reply)


def _is_language_model(runnable: object) -> bool:
    """Tell whether this is a model, also inside `.bind`, `.with_retry` and `.with_fallbacks`."""
    if isinstance(runnable, RunnableBindingBase):
        return _is_language_model(runnable.bound)
    if isinstance(runnable, RunnableWithFallbacks):
        return _is_language_model(runnable.runnable)
    if isinstance(runnable, DynamicRunnable):  # of .configurable_fields
        return _is_language_model(runnable.default)
    return isinstance(runnable, BaseLanguageModel)


def _child_configs(run_manager: Any, queries: Sequence[str]) -> list[RunnableConfig]:
    numbers = range(1, len(queries) + 1)
    return [{"callbacks": run_manager.get_child(f"query_{number}")} for number in numbers]


def _distinct(queries: Iterable[str]) -> list[str]:
    first: dict[str, str] = {}
    for query in queries:
        if folded := " ".join(query.split()).casefold():
            first.setdefault(folded, query)
    return list(first.values())


_FENCE = re.compile(
    r"^[ \t]*(?:```|~~~)(?:\w+(?=\s*$)|json|text)?|(?:```|~~~)[ \t]*$", re.MULTILINE
)
_PREFIX = re.compile(r"\A(?:>\s+|#{1,6}\s+)+")
_BOLD = re.compile(r"(?<![\w*])\*\*(?=\S)(.+?)(?<=\S)\*\*(?![\w*])")
_MARK = re.compile(
    r"""(?:[-*+–—→]\s+|[•‣◦▪●·►]\s*)?                 # a bullet
    (?:[(\[]?\d{1,2}[.)\]]\s+                         # 1. 2) (3) [4]
      |\d{1,2}[.)](?=[^\W\d_]{2})                     # 1.otter, but not 3.5 mm
      |\d:\s+|[（(]?\d{1,2}[、．）：]\s*               # 1: 2、
      |\d\ufe0f?\u20e3\s*|\(?[a-h]\)\s+)?            # a digit in a box, b)
    (?:q\d{1,2}[:.)]\s+                               # Q1:
      |(?:(?:alternate|alternative|different|new|original|reformulated|rephrased|reworded|rewritten
            |search|user)\s+)*
       (?:alternative|option|original|paraphrase|query|question|reformulation|rephrasing|rewording
         |variant|variation|version)
       (?:\s*[:：]\s*                                 # Question:
         |\s*\#?\d{1,2}\s*(?:[:：.)–-](?:\s+|$)|$)))?  # Query 4:, or Query 4 as a heading
    """,
    re.VERBOSE | re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "`": "`", "*": "*", "“": "”", "‘": "’", "«": "»", "„": "“"}
_QUOTES |= {"「": "」", "『": "』"}
_REMARK = re.compile(
    r"""(?:sure|certainly|of\ course|absolutely|ok|okay|alright|great|great\ question)\s*[!.,:—-]
    |(?:here|below)(?:['’]s|\ is|\ are)\b.*
       \b(?:alternativ|different|paraphras|quer|question|reformulat|rephras|reword|rewrit|search
         |variation|version|way)
    |(?:the\ following|these|those|each\ of|i['’]ve|i['’]ll|i\ have|i\ can|i\ will|let\ me)\b.*
       \b(?:alternativ|paraphras|quer|reformulat|rephras|reword|rewrit|variation|version)
    |(?:i\ )?hope\ (?:this|these|that|it)\b|let\ me\ know\ if\b|feel\ free\ to\b|note(?:\ that\b|:)
    |is\ there\ anything\ else\b|would\ you\ like\ (?:me|more|another)\b""",
    re.VERBOSE | re.IGNORECASE,
)
_QUOTED = re.compile(r"""\"((?:[^\"\\]|\\.)+)\"|'((?:[^'\\]|\\.|(?<=\w)'(?=\w))+)'""")
_QUERY_FIELD = re.compile(r"quer|question|version|varia|phras|word|alternativ|text", re.IGNORECASE)


def _text(reply: object) -> str:
    content = reply.content if isinstance(reply, BaseMessage) else reply
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TypeError(
            "Rewordings must come as a list of strings, as text or as a message, "
            f"got {type(content).__name__}."
        )
    texts = []
    for block in content:
        if isinstance(block, dict) and block.get("type", "text") in ("text", "output_text"):
            block = block.get("text")
        if isinstance(block, str):
            texts.append(block)
    return "\n".join(texts)


def _from_json(text: str) -> Iterator[str]:
    """Yield the strings of every JSON list or object that stands on lines of its own."""
    end = 0
    for opening in re.finditer(r"(?:^|[:：])[ \t]*([\[{])", text, re.MULTILINE):
        start = opening.start(1)
        if start < end:
            continue
        try:
            value, stop = json.JSONDecoder().raw_decode(text, start)
            rest_of_line = text[stop:].partition("\n")[0]
            if not rest_of_line.strip(" \t\r.,;`"):
                end = stop
                yield from list(_strings(value))
        except RecursionError:
            continue
        except ValueError:
            # Python's quotes, a comma too many, or cut off: take the strings that are whole.
            if broken := re.compile(r"\[\s*[\"'][^\]]*").match(text, start):
                end = broken.end()
                for pair in _QUOTED.findall(broken[0]):
                    yield re.sub(r"\\(.)", r"\1", "".join(pair))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        named = [item for name, item in value.items() if _QUERY_FIELD.search(name)]
        for item in named or value.values():
            yield from _strings(item)


def _split_inline_list(text: str) -> str:
    """Put "1. one thing 2. another" on two lines."""
    in_line = re.compile(r"(?:^|(?<=:))[ \t]*\(?1[.)][ \t].*[ \t]\(?2[.)][ \t].*$", re.MULTILINE)
    # A model that repeats itself ends with many blanks: look at each run of them once.
    number = re.compile(r"(?:^|(?<![ \t])[ \t]++)(?=\(?\d[.)][ \t])")
    return in_line.sub(lambda m: number.sub("\n", m[0]), text)


def _clean(line: str) -> tuple[str, bool]:
    """Return the query without what surrounds it, and whether it was marked as a list's item."""
    text = _BOLD.sub(r"\1", _PREFIX.sub("", " ".join(line.split()), count=1))
    mark = _MARK.match(text)
    query = text[mark.end() :] if mark else text
    quoted = re.sub(r"(?<=[\"'`”’»“」』])[.,;]$", "", query)
    closing = _QUOTES.get(quoted[:1])
    inside = re.sub(r"(?<=\w)['’](?=\w)", "", quoted[1:-1])
    if len(quoted) > 2 and closing and quoted.endswith(closing) and closing not in inside:
        return quoted[1:-1].strip(), True
    return query, query != text


def _has_letter(text: str) -> bool:
    return any(character.isalpha() for character in text)


def _is_remark(line: str, query: str, has_list: bool) -> bool:
    """Tell whether a line without a list mark is the model talking, not a query."""
    if _REMARK.match(query):
        return True
    is_heading = re.match(r"\s*#{1,6}\s", line) or _BOLD.fullmatch(line.strip())
    return has_list and bool(is_heading or query.endswith((".", "!")))

"""Self-querying: a model turns a question into a query and a filter over the metadata."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.structured_query import Comparator, Operator, StructuredQuery, Visitor
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from .dense import DenseRetriever, combine_filters
from .documents import (
    OnError,
    add_note,
    ainvoke_child,
    check_count,
    check_documents,
    check_query,
    copied,
    invoke_child,
)
from .query_filter import AttributeInfo, checked_filter, default_translator
from .query_parser import parse_structured_query

logger = logging.getLogger(__name__)

LARGEST_LIMIT = 100
"""The most documents that the wording of a question can ask for."""

PROMPT = """Turn the question into a search in a collection of documents.

The documents: {contents}
Their attributes, as JSON: {attributes}

Answer with one JSON object and nothing else:
{form}
"query" is what the text of the documents should be about, without what the filter says. "filter" is
null unless the question asks for values of the attributes. It is {{"attribute": {{"$comparator":
value}}}} with one of {comparators}, and conditions are joined by {operators} before a list of them.
Use only the attributes above, and values of their types; dates are YYYY-MM-DD.
{examples}
Question: {query}
Answer:"""


class SelfQueryRetriever(BaseRetriever):
    """Let a model turn the question into a query and a metadata filter, and search with both.

    "Jazz from before 1960 about rain" becomes the query "rain" and a filter on genre and year. What
    the model says is read by `query_parser`, never evaluated, and checked: attributes that were not
    declared, values of another type and comparators that the store does not know are errors.

    The model's filter is joined by *and* to the one in `search_kwargs` and to that of the call, so
    it can only narrow them. In langchain_classic's class, whose arguments this one takes, it took
    the place of the filter in `search_kwargs`: any question that led to a filter left the tenant.
    An empty query, for questions that are all filter, is replaced by the question; there a blank
    was searched. In a trace the model's run is tagged `query_constructor`.

    Args:
        vectorstore: The store.
        query_constructor: A runnable from `{"query": question}` to a `StructuredQuery`, or to text
            that `query_parser.parse_structured_query` reads. `from_llm` makes one.
        structured_query_translator: Writes the filter as arguments of the store's search; default:
            `PredicateTranslator` for `InMemoryVectorStore`, else `FilterTranslator`.
            Those of other packages, such as langchain_postgres, fit.
        metadata_field_info: The attributes that a filter may use; None: not checked.
        allowed_comparators: Which comparators a filter may use; default: all of the translator's.
        allowed_operators: Which operators a filter may use, `[]` for none; default: all of the
            translator's.
        search_type: `"similarity"`, through `DenseRetriever`, or another that the store's own
            `search` knows, such as `"mmr"`.
        search_kwargs: Arguments of every search: `filter`, which no question can widen, and `k`.
        k: How many documents to return, unless `search_kwargs` says. Also `invoke(query, k=…)`.
        enable_limit: Whether a limit that the model reads out of the question, up to
            `LARGEST_LIMIT`, counts instead of `k`. A `k` of the call counts more.
        use_original_query: Search for the question, and take only the filter from the model.
        relevance_score_fn: As for `DenseRetriever`.
        on_error: `"raise"` (default) fails when the model or its filter does; `"skip"` logs a
            warning and searches without the model's filter, for the question if there is no query.

    A call also takes `filter`, as for `DenseRetriever`.

    Raises:
        ValueError: For `k` < 1, a filter that cannot be combined, or what the model said.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    vectorstore: VectorStore
    query_constructor: Runnable[Any, Any]
    structured_query_translator: Visitor | None = None
    metadata_field_info: Sequence[AttributeInfo] | None = None
    allowed_comparators: Sequence[Comparator] | None = None
    allowed_operators: Sequence[Operator] | None = None
    search_type: str = "similarity"
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    k: int = Field(default=4, ge=1)
    enable_limit: bool = False
    use_original_query: bool = False
    relevance_score_fn: Callable[[float], float] | None = None
    on_error: OnError = "raise"

    @field_validator("search_kwargs")
    @classmethod
    def _check_search(cls, search: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "vectorstore" in info.data:
            combine_filters(info.data["vectorstore"], search.get("filter"), None)
        check_count("k", search.get("k"), 4)
        own = search.get("filter")
        return {**search, "filter": deepcopy(own)} if isinstance(own, dict) else dict(search)

    @classmethod
    def from_llm(
        cls,
        llm: Runnable[Any, Any],
        vectorstore: VectorStore,
        document_contents: str,
        metadata_field_info: Sequence[AttributeInfo | dict[str, Any]],
        structured_query_translator: Visitor | None = None,
        chain_kwargs: Mapping[str, Any] | None = None,
        enable_limit: bool = False,
        use_original_query: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Build it of a language model, which is told what the documents and attributes are.

        Args:
            llm: The model.
            vectorstore: The store.
            document_contents: What the documents are, such as "lyrics of songs".
            metadata_field_info: The attributes.
            structured_query_translator: As the field.
            chain_kwargs: `allowed_comparators` and `allowed_operators`, which are what the
                translator allows by default, and `examples`, pairs of a question and the object
                that should be answered.
            enable_limit: As the field.
            use_original_query: As the field.
            **kwargs: Other fields.

        Raises:
            ValueError: For other `chain_kwargs`.
        """
        translator = structured_query_translator or default_translator(vectorstore)
        options = dict(chain_kwargs or {})
        allowed = options.pop("allowed_comparators", translator.allowed_comparators)
        joining = options.pop("allowed_operators", translator.allowed_operators)
        examples = options.pop("examples", None) or []
        if options:
            raise ValueError(
                f"chain_kwargs has {sorted(options)}; known are allowed_comparators, "
                "allowed_operators and examples. For another prompt give a query_constructor."
            )
        attributes = [AttributeInfo.model_validate(one) for one in metadata_field_info]
        form: dict[str, Any] = {"query": "…", "filter": None}
        described = {a.name: {"description": a.description, "type": a.type} for a in attributes}
        prompt = PromptTemplate.from_template(PROMPT).partial(
            contents=document_contents,
            attributes=json.dumps(described, ensure_ascii=False),
            form=json.dumps(form | ({"limit": 3} if enable_limit else {}), ensure_ascii=False),
            comparators=" ".join(_names(Comparator, allowed)),
            operators=" ".join(_names(Operator, joining)) or "nothing",
            examples="".join(
                f"\nQuestion: {q}\nAnswer: {json.dumps(a, ensure_ascii=False)}\n"
                for q, a in examples
            ),
        )
        chain = prompt | llm | RunnableLambda(parse_structured_query)
        return cls(
            vectorstore=vectorstore,
            query_constructor=chain.with_config(run_name="query_constructor"),
            structured_query_translator=structured_query_translator,
            metadata_field_info=attributes,
            allowed_comparators=allowed,
            allowed_operators=joining,
            enable_limit=enable_limit,
            use_original_query=use_original_query,
            **kwargs,
        )

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        given = {"k": check_count("k", k, None), "filter": filter}
        if not check_query(query).strip():
            return []
        config: Any = {"callbacks": run_manager.get_child("query_constructor")}
        try:
            said = _structured(self.query_constructor.invoke({"query": query}, config))
        except Exception as error:
            said = self._without_model(query, error)
        text, options = self._search_options(query, said, given)
        if self.search_type == "similarity" and options.keys() <= {"k", "filter"}:
            return invoke_child(self._dense(options), text, run_manager, "dense")
        found = self.vectorstore.search(text, self.search_type, **options)
        return [copied(d) for d in check_documents(found, type(self.vectorstore).__name__)]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        given = {"k": check_count("k", k, None), "filter": filter}
        if not check_query(query).strip():
            return []
        config: Any = {"callbacks": run_manager.get_child("query_constructor")}
        try:
            said = _structured(await self.query_constructor.ainvoke({"query": query}, config))
        except Exception as error:  # a cancellation is not an Exception and passes through
            said = self._without_model(query, error)
        text, options = self._search_options(query, said, given)
        if self.search_type == "similarity" and options.keys() <= {"k", "filter"}:
            return await ainvoke_child(self._dense(options), text, run_manager, "dense")
        found = await self.vectorstore.asearch(text, self.search_type, **options)
        return [copied(d) for d in check_documents(found, type(self.vectorstore).__name__)]

    def _dense(self, options: dict[str, Any]) -> DenseRetriever:
        function = self.relevance_score_fn
        return DenseRetriever(vectorstore=self.vectorstore, relevance_score_fn=function, **options)

    def _search_options(
        self, question: str, said: StructuredQuery, given: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return what to search for and the arguments of the search, within all filters."""
        own = {"k": self.k, **self.search_kwargs}
        fence = combine_filters(self.vectorstore, own.pop("filter", None), given["filter"])
        try:
            options = self._translated(said, own, fence)
        except Exception as error:
            self._decide(f"translated the filter {said.filter!r:.200}", error)
            options = {**own, "filter": fence}
        if self.enable_limit and said.limit is not None and said.limit >= 1:
            options["k"] = min(said.limit, LARGEST_LIMIT)
        options["k"] = given["k"] or options["k"] or self.k
        logger.info("Searching for %r with the filter %r", said.query, said.filter)
        asked = self.use_original_query or not said.query.strip()
        return question if asked else said.query, {
            name: value for name, value in options.items() if value is not None
        }

    def _translated(self, said: StructuredQuery, own: dict[str, Any], fence: Any) -> dict[str, Any]:
        if said.filter is None:
            return {**own, "filter": fence}
        translator = self.structured_query_translator or default_translator(self.vectorstore)
        comparators, operators = self.allowed_comparators, self.allowed_operators
        wanted = checked_filter(
            said.filter,
            self.metadata_field_info,
            translator.allowed_comparators if comparators is None else comparators,
            translator.allowed_operators if operators is None else operators,
        )
        _, new = translator.visit_structured_query(StructuredQuery(query="", filter=wanted))
        narrowed = combine_filters(self.vectorstore, fence, new.pop("filter", None))
        if new.keys() & own.keys():  # joining them is not possible, and one would replace the other
            raise ValueError(f"search_kwargs and the translator both give {sorted(new)}.")
        return {**own, **new, "filter": narrowed}

    def _without_model(self, question: str, error: Exception) -> StructuredQuery:
        self._decide(f"{self.query_constructor.get_name()} read {question!r:.200}", error)
        return StructuredQuery(query=question, filter=None)

    def _decide(self, doing: str, error: Exception) -> None:
        add_note(error, f"Raised while SelfQueryRetriever {doing}.")
        if self.on_error == "raise":
            raise error
        logger.warning("Searching without the model's filter: %r", error)


def _structured(reply: Any) -> StructuredQuery:
    return reply if isinstance(reply, StructuredQuery) else parse_structured_query(reply)


def _names(kind: type[Comparator] | type[Operator], allowed: Sequence[str] | None) -> list[str]:
    return [f"${kind(name).value}" for name in (kind if allowed is None else allowed)]

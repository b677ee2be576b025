"""Reordering for the prompt: put the best documents where a model reads them best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.retrievers import BaseRetriever
from pydantic import BaseModel, ConfigDict, Field

from .documents import ainvoke_child, check_count, check_query, copied, invoke_child

Order = Literal["best_last", "both_ends"]


class ReorderRetriever(BaseRetriever):
    """Return what another retriever found, with the best documents nearest to the question.

    Language models use what stands at the beginning and at the end of a long context better than
    what stands in the middle. How much depends on the model, and with three to five short passages
    there is hardly a middle. So measure it with yours.

    The result is an order for reading, no ranking. Put this last, after everything that fuses,
    reranks or cuts: what keeps the first of a list would keep the worst of this one.

    Source: Liu et al., "Lost in the Middle: How Language Models Use Long Contexts", Transactions
    of the Association for Computational Linguistics, 2024.

    Args:
        base_retriever: Finds the documents, best first.
        order: `"best_last"` (default) or `"both_ends"`, as `reorder_for_prompt` explains.
        top_n: How many of the best documents to return; default: all. Also
            `invoke(query, top_n=…)`.

    Raises:
        ValueError: At construction, for an unknown order; for `top_n` < 1, per call, too.
        TypeError: If the query is not a string.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    base_retriever: BaseRetriever
    order: Order = "best_last"
    top_n: int | None = Field(default=None, ge=1)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        found = invoke_child(self.base_retriever, query, run_manager)[:top_n]
        return [copied(document) for document in reorder_for_prompt(found, self.order)]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        top_n: int | None = None,
    ) -> list[Document]:
        top_n = check_count("top_n", top_n, self.top_n)
        if not check_query(query).strip():
            return []
        found = (await ainvoke_child(self.base_retriever, query, run_manager))[:top_n]
        return [copied(document) for document in reorder_for_prompt(found, self.order)]


class LongContextReorder(BaseDocumentTransformer, BaseModel):
    """Put ranked documents into an order for reading, as a transformer: a stage of a pipeline.

    Put it last, for the same reasons as `ReorderRetriever`, which does the same around a retriever.
    LangChain's class of this name puts the best document first where their number is odd, and last
    where it is even; here it always stands last, next to the question. For an even number the order
    is the same, for an odd one it is that one turned round.

    Args:
        order: `"both_ends"` (default) or `"best_last"`, as `reorder_for_prompt` explains.

    Raises:
        ValueError: At construction, for an unknown order.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    order: Order = "both_ends"

    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> list[Document]:
        """Return copies of the documents, which come best first, in the order for reading."""
        return [copied(document) for document in reorder_for_prompt(documents, self.order)]

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> list[Document]:
        """Do what `transform_documents` does, which never waits."""
        return self.transform_documents(documents)


def reorder_for_prompt(documents: Sequence[Document], order: Order = "best_last") -> list[Document]:
    """Put ranked documents into an order for a prompt in which the question comes after them.

    Args:
        documents: The documents, best first.
        order: `"best_last"` turns the ranking round: 5 4 3 2 1, so that the better a document, the
            nearer it stands to the question. `"both_ends"` puts the best last, the second first,
            the third before the last, and so on: 2 4 5 3 1, so that the worst stand in the middle.

    Returns:
        The same documents.

    Raises:
        ValueError: If the order is unknown.
    """
    if order == "best_last":
        return list(reversed(documents))
    if order == "both_ends":
        return [*documents[1::2], *reversed(documents[::2])]
    raise ValueError(f"order must be 'best_last' or 'both_ends', got {order!r}.")

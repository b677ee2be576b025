"""Search within one tenant's documents, in a store that holds the documents of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, field_validator, model_validator

from .dense import DenseRetriever, Hits
from .documents import (
    FixedRetriever,
    ainvoke_child,
    check_count,
    check_query,
    filter_function,
    invoke_child,
    plain_id,
)

MISSING = frozenset({"None", "NaN", "nan", "null", "undefined"})
"""What a missing value reads as once something has made it a string. Documents whose tenant was
missing when they were indexed are filed under these words, whoever they belong to."""


class TenantFilterError(RuntimeError):
    """The store returned documents of another tenant, although it was told not to."""


class TenantScopedRetriever(FixedRetriever):
    """Find the nearest documents of one tenant, and never one of another's.

    The tenant is set when the retriever is built, from what your login says. The filter goes to
    the store, so the tenant's own best `k` come back; then each is checked again. A store that
    ignores the filter is an error, not a shorter list: what is left would be a few of the answers
    at best, and nobody would notice that the fence is down. No document is returned then.

    Nothing that comes later can change the tenant. The query is only searched for; `filter=…` of a
    call narrows; `tenant_id` and `tenant_key` cannot be assigned, updated in a copy or made
    configurable. Each document belongs to one tenant: one that is shared has a tenant of its own,
    to which a second retriever is bound, and a fusion asks both. For documents with many readers
    see `permission.py`.

    Args:
        vectorstore: The store, whose documents carry their tenant in the metadata.
        tenant_id: The tenant, a string or a whole number, equal to what the metadata says.
        k: How many documents to return. Also `invoke(query, k=…)`.
        tenant_key: The metadata key that holds the tenant.
        tenant_filter: The same restriction in the store's own syntax, for stores that do not read
            `{"tenant": "acme"}`: a function, or a filter object. It cannot widen anything, because
            results are checked by `tenant_id` all the same.
        relevance_score_fn: As for `DenseRetriever`.

    A call also takes `filter`, as for `DenseRetriever`: which of the tenant's documents to search.

    Raises:
        ValueError: At construction, for a `tenant_id` that is None, blank, not one string or whole
            number, or reads like a missing value (`MISSING`); for a change of the tenant; per
            call, for `k` < 1 or a filter that cannot be combined.
        TenantFilterError: If the store returned a document of another tenant or of none, or if a
            `tenant_filter` that is a function failed. Nothing of a document is in the message.
        TypeError: If the query is not a string, or the store's search takes no filter.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    vectorstore: VectorStore = Field(frozen=True)
    tenant_id: str | int = Field(frozen=True)
    k: int = Field(default=4, ge=1)
    tenant_key: str = Field(default="tenant", frozen=True)
    tenant_filter: Any = Field(default=None, frozen=True)
    relevance_score_fn: Callable[[float], float] | None = None

    @field_validator("tenant_id", mode="before")
    @classmethod
    def _check_tenant(cls, tenant: Any) -> str | int:
        name = plain_id(tenant)
        if name is not None and name.strip() not in MISSING:
            return int(tenant) if isinstance(tenant, int) else name
        raise ValueError(
            f"tenant_id must be the tenant's name or number, got {tenant!r:.60}. Take it from the "
            "login, and answer nothing where it is missing."
        )

    @field_validator("tenant_key")
    @classmethod
    def _check_key(cls, key: str) -> str:
        if not key.strip() or key.startswith("$"):
            raise ValueError(f"tenant_key must be the name of a metadata key, got {key!r}.")
        return key

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        self._search()
        return self

    def visibility(self) -> dict[str, Any]:
        """Say what limits what is seen, for a cache: documents of which tenant, by which key."""
        return {"tenant_key": self.tenant_key, "tenant_id": self.tenant_id}

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        options = {"k": check_count("k", k, self.k), "filter": filter}
        if not check_query(query).strip():
            return []
        return invoke_child(self._search(), query, run_manager, "dense", **options)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        options = {"k": check_count("k", k, self.k), "filter": filter}
        if not check_query(query).strip():
            return []
        return await ainvoke_child(self._search(), query, run_manager, "dense", **options)

    def _search(self) -> DenseRetriever:
        own = {self.tenant_key: self.tenant_id}
        return _CheckedSearch(
            check=self._checked,
            vectorstore=self.vectorstore,
            filter=own if self.tenant_filter is None else _discreet(self.tenant_filter),
            relevance_score_fn=self.relevance_score_fn,
        )

    def _checked(self, found: list[Document]) -> list[Document]:
        belongs = filter_function({self.tenant_key: self.tenant_id})
        if foreign := [document for document in found if not belongs(document)]:
            # Nothing of these documents is named: the message may reach the wrong tenant.
            raise TenantFilterError(
                f"{type(self.vectorstore).__name__} returned {len(foreign)} of {len(found)} "
                f"documents whose metadata {self.tenant_key!r} is not this retriever's tenant; "
                "none is returned. Check that the store applies its filter (give tenant_filter in "
                "its own syntax) and keeps the tenant's type: 7 is not '7'."
            )
        return found

    def configurable_alternatives(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: an alternative could be bound to another tenant, and a call could choose it."""
        raise ValueError(
            "A call must not choose between tenants: configurable_alternatives is not for a "
            "TenantScopedRetriever. Build the retriever of this tenant."
        )


def _discreet(rule: Any) -> Any:
    """Return a filter whose errors show nothing of the documents, which are all tenants'."""
    if not callable(rule):
        return rule

    def passes(*arguments: Any) -> Any:
        try:
            return rule(*arguments)
        except Exception as error:
            kind = type(error).__name__
        # Outside the except: its own error may hold the text of another tenant's document.
        raise TenantFilterError(f"tenant_filter raised {kind}, so no document is returned.")

    return passes


class _CheckedSearch(DenseRetriever):
    """The search, with the check inside its own run: what a run returned is streamed and traced."""

    name: str | None = "DenseRetriever"
    check: Callable[[list[Document]], Any]

    def _best(self, hits: Hits, similarity: Callable[[float], float], count: int) -> list[Document]:
        self.check([document for document, _ in hits])
        return super()._best(hits, similarity, count)

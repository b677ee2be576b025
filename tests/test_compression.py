from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_text_splitters import CharacterTextSplitter

from helpers import FailingRetriever, ListRetriever, TraceRecorder, doc, texts
from retrievers.cached import CachedRetriever
from retrievers.compression import ContextualCompressionRetriever, DocumentCompressorPipeline
from retrievers.documents import document_key
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.sentences import cut_document


class Applied(BaseDocumentCompressor):
    """Applies a function to the list of documents, and remembers what it was given."""

    function: Callable[[list[Document]], Any]
    asked: list[tuple[list[Document], str, Any]] = []  # noqa: RUF012  # pydantic copies it

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Any:
        self.asked.append((list(documents), query, callbacks))
        return self.function(list(documents))


class Failing(BaseDocumentCompressor):
    error: Any

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Any:
        raise self.error


class Waiting(BaseDocumentCompressor):
    """Waits until it is cancelled, and remembers that it was."""

    events: dict[str, bool] = {}  # noqa: RUF012

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Any:
        raise AssertionError("called in sync")

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> Any:
        self.events["started"] = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.events["cancelled"] = True
            raise


def first_words(documents: list[Document]) -> list[Document]:
    cut = [cut_document(d, [(0, len(d.page_content.split(" ")[0]))]) for d in documents]
    return [document for document in cut if document is not None]


def without_the_first(documents: list[Document]) -> list[Document]:
    return documents[1:]


def found(*documents: Document | str) -> ListRetriever:
    return ListRetriever(documents=[doc(d, d[:1]) if isinstance(d, str) else d for d in documents])


def compressed(
    base: BaseRetriever, function: Callable[[list[Document]], Any], **fields: Any
) -> ContextualCompressionRetriever:
    return ContextualCompressionRetriever(
        base_retriever=base, compressor=Applied(function=function), **fields
    )


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ContextualCompressionRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        base = found("owl in a tree", "grey owl sleeping", "red kite flying", "old red kite")
        return {"base_retriever": base, "compressor": Applied(function=first_words)}

    @property
    def retriever_query_example(self) -> str:
        return "anything"

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


async def test_the_compressor_gets_what_was_found_and_decides_what_is_returned() -> None:
    retriever = compressed(found("a red kite", "blue heron in water"), first_words)
    for documents in (retriever.invoke("q"), await retriever.ainvoke("q")):
        assert texts(documents) == ["a", "blue"]
        assert [document.id for document in documents] == ["a", "b"]
    assert retriever.compressor.asked[0][1] == "q"  # type: ignore[attr-defined]


async def test_top_n_at_construction_and_per_call() -> None:
    retriever = compressed(found("a", "b", "c"), lambda documents: documents, top_n=2)
    assert texts(retriever.invoke("q")) == ["a", "b"]
    assert texts(retriever.invoke("q", top_n=1)) == ["a"]
    assert texts(await retriever.ainvoke("q", top_n=3)) == ["a", "b", "c"]
    for top_n in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="top_n"):
            retriever.invoke("q", top_n=top_n)


async def test_nothing_found_is_an_empty_result_without_calling_the_compressor() -> None:
    retriever = ContextualCompressionRetriever(
        base_retriever=found(), compressor=Failing(error=AssertionError())
    )
    assert retriever.invoke("q") == []
    assert await retriever.ainvoke("q") == []


async def test_a_blank_query_calls_nothing_and_another_type_is_an_error() -> None:
    retriever = compressed(FailingRetriever(error=AssertionError()), first_words)
    assert retriever.invoke("  ") == []
    assert await retriever.ainvoke("\n") == []
    with pytest.raises(TypeError, match="must be a string, got dict"):
        retriever.invoke({"question": "q"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a string"):
        await retriever.ainvoke(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_compressor_that_changes_its_documents_does_not_reach_the_stored_ones(
    use_async: bool,
) -> None:
    def spoil(documents: list[Document]) -> list[Document]:
        for document in documents:
            document.page_content = "spoilt"
            document.metadata["tags"].append("spoilt")
        return documents

    stored = doc("text", "a", tags=["x"])
    before = stored.model_dump_json()
    retriever = compressed(found(stored), spoil)
    (document,) = await retriever.ainvoke("q") if use_async else retriever.invoke("q")
    assert document.page_content == "spoilt"
    assert stored.model_dump_json() == before


@pytest.mark.parametrize(
    ("answer", "got"),
    [(None, "NoneType"), ("text", "str"), (["text"], "a list with str"), ({}, "dict")],
)
async def test_a_compressor_that_returns_no_documents_is_an_error_that_names_it(
    answer: Any, got: str
) -> None:
    retriever = compressed(found("a"), lambda documents: answer)
    match = f"Applied must return a list of Document, it returned {got}"
    with pytest.raises(TypeError, match=match):
        retriever.invoke("q")
    with pytest.raises(TypeError, match=match):
        await retriever.ainvoke("q")


async def test_c18_a_failing_compressor_fails_the_query_and_is_named() -> None:
    retriever = ContextualCompressionRetriever(
        base_retriever=found("a"), compressor=Failing(error=ConnectionError("model down"))
    )
    with pytest.raises(ConnectionError, match="model down") as caught:
        retriever.invoke("q")
    assert caught.value.__notes__ == ["Raised by compressor (Failing)."]
    with pytest.raises(ConnectionError, match="model down"):
        await retriever.ainvoke("q")


async def test_c18_with_skip_the_documents_come_uncompressed_and_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = [doc("a long text", "a"), doc("b", "b")]
    retriever = ContextualCompressionRetriever(
        base_retriever=found(*stored),
        compressor=Failing(error=ConnectionError("model down")),
        on_error="skip",
    )
    trace = TraceRecorder()
    with caplog.at_level(logging.WARNING):
        documents = retriever.invoke("q")
    assert texts(documents) == ["a long text", "b"]
    assert {d.metadata["compression_skipped"] for d in documents} == {"ConnectionError"}
    assert "Failing failed: ConnectionError('model down')" in caplog.text
    assert [d.metadata for d in stored] == [{}, {}]
    documents = await retriever.ainvoke("q", config=trace.config, top_n=1)
    assert texts(documents) == ["a long text"]
    retriever.base_retriever = FailingRetriever(error=RuntimeError("store down"))
    with pytest.raises(RuntimeError, match="store down"):
        retriever.invoke("q")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
async def test_a_cancellation_passes_through(on_error: Any) -> None:
    compressor = Waiting(events={})
    retriever = ContextualCompressionRetriever(
        base_retriever=found("a"),
        compressor=DocumentCompressorPipeline(compressors=[compressor]),
        on_error=on_error,
    )
    task = asyncio.create_task(retriever.ainvoke("q"))
    while not compressor.events:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert compressor.events == {"started": True, "cancelled": True}


@pytest.mark.parametrize("use_async", [False, True])
async def test_c21_a_trace_shows_the_base_retriever_and_the_compressors_model(
    use_async: bool,
) -> None:
    class Asking(BaseDocumentCompressor):
        def compress_documents(
            self, documents: Sequence[Document], query: str, callbacks: Any = None
        ) -> Sequence[Document]:
            inner = ListRetriever(documents=[])  # stands for a model: any run of its own
            RunnableLambda(lambda q: inner.invoke(q)).invoke(query, {"callbacks": callbacks})
            return documents

    retriever = ContextualCompressionRetriever(
        base_retriever=found("a", "b"),
        compressor=DocumentCompressorPipeline(compressors=[Asking()]),
        top_n=1,
    )
    trace = TraceRecorder()
    if use_async:
        await retriever.ainvoke("q", config=trace.config)
    else:
        retriever.invoke("q", config=trace.config)
    (root,) = [run for run, parent in trace.parents.items() if parent is None]
    (base,) = [run for run, tags in trace.tags.items() if "base_retriever" in tags]
    assert trace.parents[base] == root
    assert (trace.counts[base], trace.counts[root]) == (2, 1)
    assert len(trace.parents) == 3  # the run inside the compressor is seen as well


def test_identity_and_scores_stay_so_that_fusion_finds_the_same_document() -> None:
    stored = doc("red kite over the hill", "a", source="a.txt", bm25_score=2.0)
    retriever = compressed(found(stored), first_words)
    (short,) = retriever.invoke("q")
    assert document_key(short) == document_key(stored)
    assert short.metadata["bm25_score"] == 2.0
    (fused,) = RRFEnsembleRetriever(retrievers=[found(stored), retriever]).invoke("q")
    assert fused.metadata["rrf_score"] == pytest.approx(2 / 61)
    assert fused.metadata["compressed"]["kept"] == [[0, 3]]


def test_unfit_or_unknown_fields_are_errors() -> None:
    for field in ({"top_n": 0}, {"on_error": "ignore"}, {"base_compressor": None}):
        with pytest.raises(ValueError, match=next(iter(field))):
            compressed(found(), first_words, **field)
    with pytest.raises(ValueError, match="compressors"):
        DocumentCompressorPipeline(compressors=[])


# The pipeline


async def test_a_pipeline_hands_on_what_each_compressor_keeps() -> None:
    second = Applied(function=first_words)
    pipeline = DocumentCompressorPipeline(compressors=[Applied(function=without_the_first), second])
    documents = [doc("one two three four", "1"), doc("five six seven eight", "2")]
    for kept in (
        pipeline.compress_documents(documents, "q"),
        await pipeline.acompress_documents(documents, "q"),
    ):
        assert texts(kept) == ["five"]
    assert texts(second.asked[0][0]) == ["five six seven eight"]
    assert pipeline.compress_documents([], "q") == []
    assert pipeline.compress_documents(documents, " ") == []


async def test_a_pipeline_stops_where_nothing_is_left() -> None:
    pipeline = DocumentCompressorPipeline(
        compressors=[Applied(function=lambda documents: []), Failing(error=AssertionError())]
    )
    assert pipeline.compress_documents([doc("a")], "q") == []
    assert await pipeline.acompress_documents([doc("a")], "q") == []


async def test_a_failure_in_a_pipeline_names_the_compressor_and_its_place() -> None:
    pipeline = DocumentCompressorPipeline(
        compressors=[Applied(function=first_words), Failing(error=ConnectionError("down"))]
    )
    with pytest.raises(ConnectionError) as caught:
        pipeline.compress_documents([doc("a")], "q")
    assert caught.value.__notes__ == ["Raised by compressor_2 (Failing)."]
    with pytest.raises(ConnectionError) as caught:
        await pipeline.acompress_documents([doc("a")], "q")
    assert caught.value.__notes__[-1] == "Raised by compressor_2 (Failing)."
    bad = DocumentCompressorPipeline(compressors=[Applied(function=lambda documents: None)])
    with pytest.raises(TypeError, match="Applied must return a list of Document"):
        bad.compress_documents([doc("a")], "q")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("ab. \n", max_size=40), max_size=5),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=3),
)
def test_whatever_a_pipeline_cuts_its_places_are_those_of_the_text_that_was_found(
    contents: list[str], spans: list[tuple[int, int]]
) -> None:
    def cutter(span: tuple[int, int]) -> Applied:
        def cut(documents: list[Document]) -> list[Document]:
            return [c for d in documents if (c := cut_document(d, [span])) is not None]

        return Applied(function=cut)

    documents = [doc(text, str(n)) for n, text in enumerate(contents)]
    pipeline = DocumentCompressorPipeline(compressors=[cutter(span) for span in spans])
    retriever = ContextualCompressionRetriever(
        base_retriever=ListRetriever(documents=documents), compressor=pipeline
    )
    for document in retriever.invoke("q"):
        original = contents[int(document.id or -1)]
        record = document.metadata["compressed"]
        ((begin, end),) = record["kept"]
        assert document.page_content == original[begin:end] != ""
        assert (record["from"], record["to"]) == (len(original), end - begin)
        assert json.dumps(document.metadata)


# Transformers as stages


class Halves(BaseDocumentTransformer):
    """Splits at the first blank, as a text splitter splits: new documents without ids."""

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        return tuple(self.transform_documents(documents))

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        for document in documents:
            document.metadata["seen"] = True  # of the copies that it is given
        return [
            Document(page_content=half, metadata=document.metadata)
            for document in documents
            for half in document.page_content.split(" ", 1)
        ]


class Nothing(BaseDocumentTransformer):
    def transform_documents(self, documents: Any, **kwargs: Any) -> Any:
        return None


async def test_a_transformer_is_a_stage_and_a_compressor_sees_its_pieces() -> None:
    stored = doc("red kite", "a", source="a.txt")
    for name in ("compressors", "transformers"):  # ours and LangChain's
        stages = [Halves(), Applied(function=without_the_first)]
        pipeline = DocumentCompressorPipeline(**{name: stages})
        for kept in (
            pipeline.compress_documents([stored], "q"),
            await pipeline.acompress_documents([stored], "q"),
        ):
            assert texts(kept) == ["kite"]
            assert (kept[0].id, kept[0].metadata["source"]) == (None, "a.txt")
        assert pipeline.compressors == stages
    assert stored.metadata == {"source": "a.txt"}
    for given_twice in ({"compressors": [Halves()], "transformers": [Halves()]}, {}):
        with pytest.raises(ValueError, match=r"compressors|transformers"):
            DocumentCompressorPipeline(**given_twice)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compressors"):
        DocumentCompressorPipeline(compressors=["no stage"])  # type: ignore[list-item]


async def test_a_transformer_that_returns_no_documents_is_an_error_that_names_it() -> None:
    pipeline = DocumentCompressorPipeline(compressors=[Halves(), Nothing()])
    match = "Nothing must return a list of Document, it returned NoneType"
    with pytest.raises(TypeError, match=match) as caught:
        pipeline.compress_documents([doc("a")], "q")
    assert caught.value.__notes__ == ["Raised by compressor_2 (Nothing)."]
    with pytest.raises(TypeError, match=match):
        await pipeline.acompress_documents([doc("a")], "q")


def test_a_pipeline_of_transformers_can_be_cached() -> None:
    retriever = ContextualCompressionRetriever(
        base_retriever=found("red kite"),
        compressor=DocumentCompressorPipeline(
            compressors=[CharacterTextSplitter(separator=" ", chunk_size=4, chunk_overlap=0)]
        ),
    )
    cached = CachedRetriever(retriever=retriever)
    assert texts(cached.invoke("q")) == texts(cached.invoke("q")) == ["red", "kite"]
    assert cached.info().hits == 1

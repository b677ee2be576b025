"""The production log: one line a retrieval, nothing private in it, no trouble for the caller."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

import ragbook.retrieval_logger
from helpers import FailingRetriever, ListRetriever, doc
from ragbook.retrieval_logger import RetrievalLogError, RetrievalLogger
from retrievers.bm25 import BM25Retriever
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.feedback import FeedbackQueryRewriter
from retrievers.multi_query import MultiQueryRetriever

SECRET = "the passage nobody may read"
DOCUMENTS = [
    doc(f"otter {SECRET}", "a", tenant="acme"),
    doc(f"beaver {SECRET}", "b", tenant="acme"),
]


def bm25() -> BM25Retriever:
    return BM25Retriever.from_documents(DOCUMENTS)


def hybrid(**fields: Any) -> RRFEnsembleRetriever:
    return RRFEnsembleRetriever(retrievers=[bm25(), bm25()], **fields)


def lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def using(log: RetrievalLogger) -> Any:
    return {"callbacks": [log]}


def caller(retriever: BaseRetriever, asynchronous: bool) -> Any:
    return retriever.ainvoke if asynchronous else partial(asyncio.to_thread, retriever.invoke)


both_ways = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "retrievals.jsonl"


@both_ways
async def test_a_nested_retrieval_is_one_line(path: Path, asynchronous: bool) -> None:
    await caller(hybrid(), asynchronous)("otter", config=using(RetrievalLogger(path)))
    (line,) = lines(path)
    assert line["retriever"] == "RRFEnsembleRetriever"
    assert line["query"] == "otter"
    assert line["error"] is None
    (document,) = line["documents"]
    assert document["id"] == "a"
    assert document["retrieved_by"] == ["bm25"]
    assert list(document["scores"]) == ["bm25_score", "rrf_score"]
    assert document["scores"]["rrf_score"] == pytest.approx(2 / 61)
    assert {stage: counts["runs"] for stage, counts in line["stages"].items()} == {
        "retrieval": 2,
        "fusion": 1,
    }
    total = sum(counts["milliseconds"] for counts in line["stages"].values())
    assert total == pytest.approx(line["milliseconds"], abs=0.01)
    began = datetime.fromisoformat(line["time"])
    assert began.utcoffset() == timedelta(0)


@both_ways
async def test_no_text_and_no_metadata_is_logged(path: Path, asynchronous: bool) -> None:
    await caller(hybrid(), asynchronous)("otter", config=using(RetrievalLogger(path)))
    text = path.read_text(encoding="utf-8")
    assert SECRET not in text
    assert "acme" not in text


def test_a_document_without_an_id_does_not_give_away_its_text(path: Path) -> None:
    ListRetriever(documents=[doc(SECRET)]).invoke("otter", config=using(RetrievalLogger(path)))
    assert SECRET not in path.read_text(encoding="utf-8")
    assert lines(path)[0]["documents"] == [{"id": None, "scores": {}, "retrieved_by": []}]


def test_metadata_is_logged_where_it_is_named(path: Path) -> None:
    found = [doc("x", "a", tenant="acme", size=float("nan"), when=datetime(2026, 1, 2), other=1)]
    log = RetrievalLogger(path, metadata=["tenant", "size", "when", "missing"])
    ListRetriever(documents=found).invoke("otter", config=using(log))
    assert lines(path)[0]["documents"][0]["metadata"] == {
        "tenant": "acme",
        "size": "NaN",
        "when": "2026-01-02 00:00:00",
    }


def test_one_string_of_metadata_is_refused(path: Path) -> None:
    with pytest.raises(TypeError, match=r"write \[key\]"):
        RetrievalLogger(path, metadata="tenant")


@both_ways
async def test_a_failing_retriever_is_logged_with_its_error(path: Path, asynchronous: bool) -> None:
    retriever = hybrid().model_copy(
        update={"retrievers": [bm25(), FailingRetriever(error=OSError("the index is gone"))]}
    )
    call = caller(retriever, asynchronous)
    with pytest.raises(OSError, match="gone"):
        await call("otter", config=using(RetrievalLogger(path)))
    (line,) = lines(path)
    assert line["error"] == {"type": "OSError", "message": "the index is gone"}
    assert line["documents"] == []
    assert line["stages"]["retrieval"]["failed"] == 1
    assert line["stages"]["fusion"]["failed"] == 1


def test_a_failure_that_was_skipped_is_counted(path: Path) -> None:
    failing = FailingRetriever(error=OSError("the index is gone"))
    retriever = RRFEnsembleRetriever(retrievers=[bm25(), failing], on_error="skip")
    retriever.invoke("otter", config=using(RetrievalLogger(path)))
    (line,) = lines(path)
    assert line["error"] is None
    assert line["stages"]["retrieval"] | {"milliseconds": 0} == {
        "runs": 2,
        "failed": 1,
        "milliseconds": 0,
    }


def test_eight_threads_write_four_hundred_valid_lines(path: Path) -> None:
    log, retriever = RetrievalLogger(path), hybrid()

    def ask(thread: int) -> None:
        for number in range(50):
            retriever.invoke(f"otter {thread} {number}", config=using(log))

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(ask, range(8)))
    written = lines(path)
    assert sorted(line["query"] for line in written) == sorted(
        f"otter {thread} {number}" for thread in range(8) for number in range(50)
    )
    assert all(line["documents"][0]["id"] == "a" for line in written)
    assert all(line["stages"]["retrieval"]["runs"] == 2 for line in written)
    assert (log.roots, log._spans, log._began) == ([], {}, {})


async def test_many_tasks_at_once_are_a_line_each(path: Path) -> None:
    log, retriever = RetrievalLogger(path), hybrid()
    questions = [f"otter {number}" for number in range(60)]
    await asyncio.gather(*(retriever.ainvoke(q, config=using(log)) for q in questions))
    assert sorted(line["query"] for line in lines(path)) == sorted(questions)


def _write_lines(path: Path, process: int) -> None:
    log = RetrievalLogger(path)
    for number in range(100):
        ListRetriever(documents=DOCUMENTS).invoke(
            f"{process} {number} {'x' * 3000}", config=using(log)
        )


@pytest.mark.skipif(sys.platform == "win32", reason="forks processes")
def test_processes_share_a_file(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_lines, args=(path, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len({line["query"] for line in lines(path)}) == 300


def test_batch_is_a_line_for_each_question(path: Path) -> None:
    hybrid().batch(["otter", "beaver"], config=using(RetrievalLogger(path)))
    assert {line["query"]: line["documents"][0]["id"] for line in lines(path)} == {
        "otter": "a",
        "beaver": "b",
    }


def test_a_chain_around_it_is_not_logged(path: Path) -> None:
    chain = RunnableLambda(lambda q: q) | hybrid() | (lambda found: len(found))
    log = RetrievalLogger(path)
    chain.invoke("otter", config=using(log))
    assert [line["retriever"] for line in lines(path)] == ["RRFEnsembleRetriever"]
    assert (log.roots, log._spans) == ([], {})


@both_ways
async def test_rewriting_is_a_stage_with_its_own_search(path: Path, asynchronous: bool) -> None:
    rewriter = FeedbackQueryRewriter(bm25(), [d.page_content for d in DOCUMENTS])
    retriever = MultiQueryRetriever(retriever=bm25(), llm=rewriter)
    await caller(retriever, asynchronous)("otter", config=using(RetrievalLogger(path)))
    (line,) = lines(path)
    assert line["query"] == "otter"
    assert line["stages"]["rewriting"]["runs"] >= 2
    assert SECRET not in path.read_text(encoding="utf-8")  # a rewording borrows from passages


def test_the_query_is_what_redact_returns(path: Path) -> None:
    log = RetrievalLogger(path, redact=lambda query: query.replace("Ada", "[name]"))
    hybrid().invoke("Ada's otter", config=using(log))
    assert lines(path)[0]["query"] == "[name]'s otter"
    hybrid().invoke("otter", config=using(RetrievalLogger(path, redact=lambda query: None)))
    assert lines(path)[1]["query"] is None
    assert "redact_error" not in lines(path)[1]


def test_an_error_message_is_redacted_too(path: Path) -> None:
    log = RetrievalLogger(path, redact=lambda text: text.replace("Ada", "[name]"))
    failing = FailingRetriever(error=ValueError("no results for Ada"))
    with pytest.raises(ValueError, match="Ada"):
        failing.invoke("Ada", config=using(log))
    assert "Ada" not in path.read_text(encoding="utf-8")
    assert lines(path)[0]["error"]["message"] == "no results for [name]"


def failing_redact(query: str) -> str:
    raise ValueError(f"cannot redact {query}")


@pytest.mark.parametrize("redact", [failing_redact, lambda query: query.encode(), len])
@both_ways
async def test_a_failing_redact_never_leaks_the_query(
    path: Path, redact: Any, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        found = await caller(hybrid(), asynchronous)(
            "otter Ada", config=using(RetrievalLogger(path, redact=redact))
        )
    assert [document.id for document in found] == ["a"]
    (line,) = lines(path)
    assert line["query"] is None
    assert line["redact_error"]
    assert "Ada" not in path.read_text(encoding="utf-8") + caplog.text
    assert "redact function failed" in caplog.text


def test_a_failing_redact_leaves_out_the_error_message(path: Path) -> None:
    failing = FailingRetriever(error=ValueError("no results for Ada"))
    with pytest.raises(ValueError, match="Ada"):
        failing.invoke("Ada", config=using(RetrievalLogger(path, redact=failing_redact)))
    assert lines(path)[0]["error"] == {"type": "ValueError", "message": None}


@both_ways
async def test_a_log_that_cannot_be_written_does_not_disturb(
    tmp_path: Path, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = RetrievalLogger(tmp_path)  # a folder
    found = await caller(hybrid(), asynchronous)("otter", config=using(log))
    assert [document.id for document in found] == ["a"]
    assert "could not be logged" in caplog.text
    assert log._spans == {}


@both_ways
async def test_it_raises_where_that_is_wanted(tmp_path: Path, asynchronous: bool) -> None:
    call = caller(hybrid(), asynchronous)
    with pytest.raises(RetrievalLogError, match="could not be logged"):
        await call("otter", config=using(RetrievalLogger(tmp_path, raise_errors=True)))
    path = tmp_path / "log.jsonl"
    with pytest.raises(RetrievalLogError, match="redact") as raised:
        await call("Ada", config=using(RetrievalLogger(path, failing_redact, raise_errors=True)))
    assert "Ada" not in str(raised.value)
    assert lines(path)[0]["query"] is None


def test_the_file_is_its_owners_alone(path: Path) -> None:
    hybrid().invoke("otter", config=using(RetrievalLogger(path)))
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_rotated_file_is_begun_anew(path: Path) -> None:
    log = RetrievalLogger(path)
    hybrid().invoke("otter", config=using(log))
    path.rename(path.with_suffix(".1"))
    hybrid().invoke("beaver", config=using(log))
    assert [line["query"] for line in lines(path)] == ["beaver"]


@given(st.text(st.characters(), max_size=30))
def test_any_query_is_one_line(tmp_path_factory: pytest.TempPathFactory, query: str) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    ListRetriever(documents=[]).invoke(query, config=using(RetrievalLogger(path)))
    (line,) = lines(path)
    assert line["query"] == query


class Waiting(BaseRetriever):
    """Never answers."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        await asyncio.Event().wait()
        return []


async def test_cancelled_retrievals_do_not_fill_the_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ragbook.retrieval_logger, "MAX_OPEN", 5)
    log = RetrievalLogger(path)
    for _ in range(10):
        task = asyncio.create_task(Waiting().ainvoke("otter", config=using(log)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert 0 < len(log._spans) <= 5
    assert len(log._began) == len(log._spans)
    await hybrid().ainvoke("otter", config=using(log))
    assert len(lines(path)) == 1


class GivesUp(BaseRetriever):
    """Cancels a search inside it that takes too long, and answers without it."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        config: Any = {"callbacks": run_manager.get_child()}
        try:
            await asyncio.wait_for(Waiting().ainvoke(query, config), 0.01)
        except TimeoutError:
            return DOCUMENTS
        raise AssertionError("Waiting never answers")


async def test_what_was_cancelled_inside_is_forgotten_with_the_line(path: Path) -> None:
    log = RetrievalLogger(path)
    await GivesUp().ainvoke("otter", config=using(log))
    assert [document["id"] for document in lines(path)[0]["documents"]] == ["a", "b"]
    assert log._spans == {}


def test_odd_metadata_of_others_does_not_keep_a_line_from_being_written(path: Path) -> None:
    odd = doc("otter", "a", retrieved_by=None, word_score="high")
    odd.metadata[1] = "a key that is no string"  # type: ignore[index]
    log = RetrievalLogger(path, raise_errors=True)
    ListRetriever(documents=[odd]).invoke("otter", config=using(log))
    assert lines(path)[0]["documents"] == [{"id": "a", "scores": {}, "retrieved_by": []}]

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from helpers import FailingRetriever, doc
from retrievers.cached import CachedRetriever
from retrievers.documents import (
    OnError,
    ainvoke_untraced,
    by_key,
    check_query,
    copied,
    document_key,
    invoke_untraced,
    keys_of,
    latest_score,
    latest_score_name,
    merge_by_score,
    merge_copies,
    scored_copy,
    without_reasoning,
)
from retrievers.ensemble import RRFEnsembleRetriever


def test_the_id_comes_before_all_else() -> None:
    assert document_key(doc("x", id="1", source="a")) == document_key(doc("y", id="1", source="b"))


def test_a_doc_id_in_the_metadata_is_the_same_identity_as_an_id() -> None:
    assert document_key(doc("x", doc_id=7)) == document_key(doc("y", id="7"))


def test_two_chunks_of_one_file_are_two_documents() -> None:
    one, two = doc("same", source="f", start_index=0), doc("same", source="f", start_index=9)
    assert document_key(one) != document_key(two)
    assert document_key(doc("a", source="f")) != document_key(doc("b", source="f"))


def test_a_page_number_alone_does_not_merge_the_chunks_of_that_page() -> None:
    assert document_key(doc("a", source="f", page=1)) != document_key(doc("b", source="f", page=1))


def test_chunks_whose_positions_count_from_the_start_of_each_page_are_not_merged() -> None:
    # As from PyPDFLoader and a splitter with add_start_index: every page has a chunk at 0.
    pages = [doc(f"kite {n}", source="a.pdf", page=n, start_index=0) for n in range(3)]
    assert len(by_key([pages])[0]) == 3


def test_the_same_text_in_two_files_is_two_documents_and_without_a_source_one() -> None:
    assert document_key(doc("x", source="f")) != document_key(doc("x", source="g"))
    assert document_key(doc("x")) == document_key(doc("x", colour="red"))


@given(st.lists(st.text(max_size=4), min_size=2, max_size=2, unique=True))
def test_different_parts_never_join_to_the_same_key(parts: list[str]) -> None:
    one, two = parts
    keys = {
        document_key(doc(one, source=two or "s")),
        document_key(doc(two, source=one or "s")),
        document_key(doc("t", id=(one + two) or "i")),
        document_key(doc(one + two)),
    }
    assert len(keys) == 4


def test_a_scored_copy_leaves_the_original_alone_and_is_json() -> None:
    original = doc("x", id="1", tags=["a"])
    copy = scored_copy(original, "bm25_score", 3, found_by="bm25")
    assert original.metadata == {"tags": ["a"]}
    assert copy.id == "1"
    assert json.loads(json.dumps(copy.metadata)) == {
        "tags": ["a"],
        "retrieved_by": ["bm25"],
        "bm25_score": 3.0,
    }


def test_writing_into_a_nested_value_of_a_copy_does_not_reach_the_original() -> None:
    original = doc("x", tags=["a"])
    scored_copy(original, "bm25_score", 1).metadata["tags"].append("b")
    assert original.metadata["tags"] == ["a"]


def test_the_latest_score_is_that_of_the_last_stage() -> None:
    once = scored_copy(doc("x", credit_score=700), "bm25_score", 2)
    twice = scored_copy(scored_copy(once, "rrf_score", 0.03), "bm25_score", 5)
    assert latest_score(once) == 2
    assert latest_score(twice) == 5
    assert latest_score(doc("x", rank=1, good_score=True)) is None
    assert latest_score_name(twice) == "bm25_score"
    assert latest_score_name(doc("x", dense_score=0.5, good_score=True)) == "dense_score"
    assert latest_score_name(doc("x", score=1)) is None


def test_merging_keeps_the_best_score_and_all_stages() -> None:
    merged = merge_copies(
        [
            doc("x", score=0.1, retrieved_by=["dense"], lang="en"),
            doc("x", score=0.3, retrieved_by=["bm25", "dense"], page=2),
        ]
    )
    assert merged.metadata == {
        "score": 0.3,
        "retrieved_by": ["dense", "bm25"],
        "lang": "en",
        "page": 2,
    }
    with pytest.raises(ValueError, match="at least one"):
        merge_copies([])


def test_writing_into_a_merged_document_reaches_none_of_its_copies() -> None:
    copies = [doc("x", tags=["a"]), doc("x", tree={"leaves": [1]}, retrieved_by=["bm25"])]
    merged = merge_copies(copies)
    merged.metadata["tags"].append("b")
    merged.metadata["tree"]["leaves"].append(2)
    merged.metadata["retrieved_by"].append("dense")
    assert [copy.metadata for copy in copies] == [
        {"tags": ["a"]},
        {"tree": {"leaves": [1]}, "retrieved_by": ["bm25"]},
    ]


class Page(Document):
    number: int = 0


def test_a_copy_keeps_class_id_text_and_the_fields_of_a_subclass() -> None:
    page = Page(page_content="x", id="1", number=7, metadata={"span": (1, [2])})
    copy = copied(page)
    assert copy == page
    assert type(copy) is Page
    copy.metadata["span"][1].append(3)
    assert page.metadata == {"span": (1, [2])}


class FrozenPage(Page):
    model_config = ConfigDict(frozen=True)


def test_a_frozen_document_can_be_copied_and_a_copy_knows_which_fields_were_set() -> None:
    page = FrozenPage(page_content="x")
    copy = copied(page)
    copy.metadata["lang"] = "en"
    assert page.metadata == {}
    assert page.model_fields_set == {"page_content"}
    assert copy.model_fields_set == {"page_content", "metadata"}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.tuples(inner)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=8,
)


def containers(value: Any) -> list[Any]:
    """Return every object inside a value that can be changed."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list | tuple):
        return [value] if isinstance(value, set) else []
    own = [] if isinstance(value, tuple) else [value]
    return own + [found for item in inner for found in containers(item)]


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_copy_has_equal_metadata_and_shares_nothing_that_can_change(
    metadata: dict[str, Any],
) -> None:
    original = Document(page_content="x", metadata=metadata)
    copy = copied(original)
    assert copy.metadata == deepcopy(original.metadata)
    assert list(copy.metadata) == list(original.metadata)
    shared = {id(c) for c in containers(copy.metadata)} & {
        id(c) for c in containers(original.metadata)
    }
    assert not shared


def test_merging_by_score_takes_the_best_and_ties_keep_the_order_met() -> None:
    copies = {name: [doc(name)] for name in "abcd"}
    found = merge_by_score(copies, {"a": 1, "b": 3, "c": 1, "d": 3}, "rrf_score", top_n=3)
    assert [(d.page_content, d.metadata["rrf_score"]) for d in found] == [
        ("b", 3.0),
        ("d", 3.0),
        ("a", 1.0),
    ]


def test_of_documents_with_one_key_the_first_stays() -> None:
    documents: list[Document] = [doc("a", id="1"), doc("b", id="2"), doc("c", id="1")]
    assert [d.page_content for d in by_key([documents])[0].values()] == ["a", "b"]


def test_a_document_without_an_id_is_the_one_with_an_id_of_the_same_text_and_source() -> None:
    stored, plain = doc("red kite", id="u1", source="a"), doc("red kite", source="a")
    other_source, other_text = doc("red kite", source="b"), doc("grey owl", source="a")
    (one,), *rest = keys_of([[stored], [plain], [other_source], [other_text]])
    assert [names == [one] for names in rest] == [True, False, False]


def test_two_ids_that_share_a_text_stay_two_documents() -> None:
    one, two, plain = doc("x", id="1"), doc("x", id="2"), doc("x")
    assert keys_of([[one, two], [plain]]) == [[("id", "1"), ("id", "2")], [("id", "1")]]


def test_a_document_with_a_doc_id_is_the_one_to_which_a_store_gave_another_id() -> None:
    stored = doc("red kite", id="u1", doc_id="a", source="s")
    plain, other = doc("red kite", doc_id="a", source="s"), doc("red kite", doc_id="b", source="s")
    (one,), *rest = keys_of([[stored], [plain], [other]])
    assert [names == [one] for names in rest] == [True, False]


def test_an_id_that_is_a_doc_id_elsewhere_is_the_same_document() -> None:
    stored, plain = doc("red kite", id="a"), doc("red kite", doc_id="a", source="s")
    assert keys_of([[plain], [stored]]) == [[("id", "a")], [("id", "a")]]


def test_chunks_that_name_their_parent_are_the_stores_chunks_of_the_same_text() -> None:
    stored = [doc("red", id="u1", doc_id="p"), doc("kite", id="u2", doc_id="p")]
    plain = [doc("kite", doc_id="p"), doc("red", doc_id="p")]
    assert keys_of([plain, stored])[0] == [("id", "u2"), ("id", "u1")]


def test_a_document_with_neither_is_the_one_with_a_doc_id_and_so_the_stores() -> None:
    stored, named, plain = doc("x", id="u1", doc_id=0), doc("x", doc_id=0), doc("x")
    assert keys_of([[plain], [named], [stored]]) == [[("id", "u1")]] * 3
    assert keys_of([[plain], [named]]) == [[("id", "0")]] * 2


def test_a_key_of_ones_own_is_applied_as_it_is() -> None:
    keys = keys_of([[doc("x", id="1")], [doc("x")]], key=lambda d: d.id)
    assert keys == [["1"], [None]]


def test_a_query_with_bytes_that_are_no_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        check_query("caf\udce9")


class AnswersWith(BaseRetriever):
    answer: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "got"),
    [(None, "NoneType"), ("kite", "str"), (["kite"], "a list with str"), ((), "tuple")],
)
async def test_a_child_that_returns_no_list_of_documents_is_named(answer: Any, got: str) -> None:
    message = f"AnswersWith must return a list of Document, it returned {got}"
    parent = RRFEnsembleRetriever(retrievers=[AnswersWith(answer=answer)])
    with pytest.raises(TypeError, match=message):
        parent.invoke("q")
    with pytest.raises(TypeError, match=message):
        await parent.ainvoke("q")


def test_metadata_of_others_is_not_taken_for_ours() -> None:
    one = Document("x", id="1", metadata={3: "three", "retrieved_by": "them", "big_score": 10**400})
    two = Document("x", id="1", metadata={3: "drei", "retrieved_by": ["bm25"], "big_score": 1.0})
    assert latest_score(one) is None
    merged = merge_copies([one, two])
    assert merged.metadata == {3: "three", "retrieved_by": ["bm25"], "big_score": 10**400}
    assert scored_copy(one, "dense_score", 0.5, "dense").metadata["retrieved_by"] == ["dense"]


def test_metadata_that_holds_itself_or_is_nested_for_ever_is_a_named_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(ValueError, match=r"\('id', '7'\).* is nested too deeply"):
            copied(doc("x", id="7", tree=value))


class OnlySync(BaseRetriever):
    """What many people write: no asynchronous method, but an argument for each call."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int = 4
    ) -> list[Document]:
        return [doc(f"text {number}") for number in range(k)]


async def test_a_child_with_a_synchronous_method_only_takes_options_in_async_code() -> None:
    cached = CachedRetriever(retriever=OnlySync())
    for child in (OnlySync(), cached):
        assert len(invoke_untraced(child, "kite", k=2)) == 2
        assert len(await ainvoke_untraced(child, "kettle", k=2)) == 2
    assert len(await cached.ainvoke("drone", k=1)) == 1


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_error_that_many_callers_share_bears_each_note_once(on_error: OnError) -> None:
    shared = FailingRetriever(error=RuntimeError("down"))
    fusion = RRFEnsembleRetriever(retrievers=[shared, shared], on_error=on_error)
    for _ in range(3):
        with pytest.raises(RuntimeError) as raised:
            fusion.invoke("kite")
    first, second = (f"retriever_{number} (FailingRetriever)" for number in (1, 2))
    notes = [f"Raised by {first}.", f"Raised by {second}."]
    assert sorted(raised.value.__notes__) == sorted(
        [*notes, f"{second} failed too: {raised.value!r}"]
    )


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("a <thinking>b</thinking> c <THINK>d</THINK> e", "a c e"),
        ("thoughts</think> b", "b"),
        ("a\n<think>cut off", "a"),
        ("What does <think> mean?", "What does <think> mean?"),
        ("<think>a <think> b</think>c", "c"),
    ],
)
def test_what_a_model_thought_is_no_part_of_its_reply(reply: str, kept: str) -> None:
    assert " ".join(without_reasoning(reply).split()) == kept

from __future__ import annotations

import asyncio
import json
import re
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, PrivateAttr, SecretStr

from helpers import doc
from retrievers.documents import (
    avisibility_of,
    by_key,
    check_query,
    copied,
    document_key,
    keys_of,
    latest_score,
    latest_score_name,
    merge_by_score,
    merge_copies,
    scored_copy,
    visibility_of,
)
from retrievers.echo import EchoRetriever
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


# What decides who may see what


class Scoped(BaseRetriever):
    """Stands for a retriever that limits what a user may see."""

    tenant: str
    allowed: Any = None
    k: int = 4
    _asked: int = PrivateAttr(default=0)

    def visibility(self) -> Any:
        self._asked += 1
        return {"tenant": self.tenant, "allowed": self.allowed and sorted(self.allowed())}

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return []


class Around(BaseRetriever):
    """Holds any settings."""

    setting: Any = None
    test: Any = document_key

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return []


class Secretive(Around):
    _tenant: str = PrivateAttr(default="a")


class Service:
    """Waits for an answer to who may see what."""

    def __init__(self) -> None:
        self.grants = ["1"]

    def visibility(self) -> Any:
        raise AssertionError("blocks the event loop")

    async def avisibility(self) -> Any:
        await asyncio.sleep(0)
        return self.grants


SETTINGS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "a", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["a", "b", "set", "tuple"]), inner, max_size=2)
        | st.frozensets(st.sampled_from(["a", "b", "1"]))
    ),
    max_leaves=6,
)


def form(value: Any) -> Any:
    """Return a value with the type of all its parts, which `==` alone does not compare."""
    if isinstance(value, dict):
        return {name: form(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [form(part) for part in value]
    return type(value), repr(value) if isinstance(value, float) else value


@settings(max_examples=300)
@given(SETTINGS, SETTINGS)
def test_two_settings_have_the_same_description_only_if_they_are_the_same(
    first: Any, second: Any
) -> None:
    one, two = visibility_of(Around(setting=first)), visibility_of(Around(setting=second))
    assert (one == two) == (form(first) == form(second))
    assert visibility_of(Around(setting=deepcopy(first))) == one
    assert json.loads(one)


def test_the_order_of_a_dictionary_or_a_set_is_no_difference() -> None:
    one, two = Around(setting={"a": 1, "b": {"x", "y"}}), Around(setting={"b": {"y", "x"}, "a": 1})
    assert visibility_of(one) == visibility_of(two)
    assert visibility_of(Around(setting={1: "a"})) != visibility_of(Around(setting={"1": "a"}))


def test_retrievers_nested_in_lists_dictionaries_and_models_are_described() -> None:
    def nested(tenant: str) -> str:
        inner = Around(setting={"legs": [Scoped(tenant=tenant)]})
        return visibility_of(Around(setting=(inner,)))

    assert nested("a") == nested("a")
    assert nested("a") != nested("b")
    class_matters = {visibility_of(Around()), visibility_of(EchoRetriever(documents=[]))}
    assert len(class_matters) == 2


def test_visibility_is_asked_at_every_call_and_only_once() -> None:
    grants = {"1", "2"}
    scoped = Scoped(tenant="a", allowed=lambda: grants)
    fused = Around(setting=[scoped, scoped])
    before = visibility_of(fused)
    assert scoped._asked == 1
    grants.discard("2")
    assert visibility_of(fused) != before
    grants.add("2")
    assert visibility_of(fused) == before
    assert scoped._asked == 3
    visibility_of(fused, ask=False)
    assert scoped._asked == 3


async def test_on_the_event_loop_a_service_is_awaited() -> None:
    service = Service()
    before = await avisibility_of(Around(setting=service))
    assert await avisibility_of(Around(setting=service)) == before
    service.grants = ["1", "2"]
    assert await avisibility_of(Around(setting=service)) != before
    scoped = Around(setting=Scoped(tenant="a"))
    assert await avisibility_of(scoped) == visibility_of(scoped)


def test_what_fails_to_say_who_may_see_it_raises() -> None:
    def down() -> Any:
        raise ConnectionError("permission service")

    with pytest.raises(ConnectionError, match="permission service"):
        visibility_of(Around(setting=[Scoped(tenant="a", allowed=down)]))
    with pytest.raises(ValueError, match=r"retriever\.setting\.visibility\(\)\[0\] \(object\)"):
        visibility_of(Around(setting=Answering([object()])))


class Answering:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def visibility(self) -> Any:
        return self._answer


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        (lambda document: True, "retriever.setting"),
        ([{"filter": object()}], "retriever.setting[0]['filter']"),
        (doc("a corpus of one"), "retriever.setting"),
        ([doc("a corpus")], "retriever.setting"),
        (Around(setting=b"bytes"), "retriever.setting.setting"),
        (Around(test=lambda document: True), "retriever.setting.test"),
        (Secretive(), "retriever.setting"),
    ],
)
def test_what_is_not_plain_data_is_refused_or_left_to_opaque(setting: Any, path: str) -> None:
    retriever = Around(setting=setting)
    with pytest.raises(ValueError, match=re.escape(f"{path} (")):
        visibility_of(retriever)
    seen = []

    def opaque(path: str, value: Any) -> Any:
        seen.append(path)
        return "stands for it"

    assert "stands for it" in visibility_of(retriever, opaque)
    assert seen == [path]


def test_a_class_made_in_a_function_may_hold_anything_there() -> None:
    def made_for(tenant: str) -> Around:
        class Hidden(Around):
            def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
                return [doc(tenant)]

        return Hidden()

    with pytest.raises(ValueError, match=r"retriever \(Hidden\)"):
        visibility_of(made_for("a"))


def test_a_class_with_visibility_answers_for_its_own_functions_and_private_attributes() -> None:
    one, two = Scoped(tenant="a", allowed=lambda: {"1"}), Scoped(tenant="a", allowed=lambda: {"1"})
    assert visibility_of(one) == visibility_of(two)


def test_a_secret_is_told_apart_and_never_written_out() -> None:
    one, two = Around(setting=SecretStr("hunter2")), Around(setting=SecretStr("hunter3"))
    assert visibility_of(one) == visibility_of(Around(setting=SecretStr("hunter2")))
    assert visibility_of(one) != visibility_of(two)
    assert "hunter" not in visibility_of(one)


def test_values_with_a_text_of_their_own_are_plain_data() -> None:
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    values = [moment, moment.date(), timedelta(days=1), Decimal("1.0"), Path("a"), "a", Colour.RED]
    told = [visibility_of(Around(setting=value)) for value in values]
    assert len(set(told)) == len(told)


class Colour(Enum):
    RED = "red"

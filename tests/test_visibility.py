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
from pydantic import PrivateAttr, SecretStr

from helpers import doc
from retrievers.documents import document_key
from retrievers.echo import EchoRetriever
from retrievers.visibility import avisibility_of, visibility_of


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


def test_a_retriever_that_several_share_is_described_once() -> None:
    def told(levels: int, tenant: str = "a") -> str:
        retriever: Any = Scoped(tenant=tenant)
        for _ in range(levels):
            retriever = Around(setting=[retriever, retriever])
        return visibility_of(retriever)

    assert len(told(14)) < 14 * 1_000  # two to the power of 14 descriptions would be a million
    assert told(14) == told(14)
    assert told(14) != told(13)
    assert told(14, "a") != told(14, "b")
    one = Scoped(tenant="a")
    both = [{"x": one, "y": one}, {"y": one, "x": one}]
    assert visibility_of(both[0]) == visibility_of(both[1])
    two = Scoped(tenant="b")
    mixed = [[one, two, one], [one, two, two], [one, one, two]]
    assert len({visibility_of(parts) for parts in mixed}) == 3


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

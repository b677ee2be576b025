from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.json_mapping import JsonMapping, UnfitJson, check_pointer, json_at

EXAMPLE = {  # section 5 of RFC 6901, with its results
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", EXAMPLE),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/00", None),
        ("/foo/-1", None),
        ("/foo/0/x", None),
        ("/~01", None),
        ("/nothing", None),
    ],
)
def test_json_pointers_are_those_of_rfc_6901(pointer: str, value: Any) -> None:
    item = {"doc": EXAMPLE, "text": "t", "id": 1}
    mapping = JsonMapping(metadata={"found": f"/doc{pointer}"})
    assert mapping(item).metadata.get("found") == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def pointers(value: Any, start: str = "") -> Iterator[tuple[str, Any]]:
    yield start, value
    pairs: Any = []
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for name, inner in pairs:
        yield from pointers(inner, f"{start}/{str(name).replace('~', '~0').replace('/', '~1')}")


@given(JSON)
def test_every_value_of_any_json_is_found_by_its_pointer(value: Any) -> None:
    for pointer, inner in pointers(value):
        assert json_at(value, pointer) is inner or json_at(value, pointer) == inner


@pytest.mark.parametrize("pointer", ["text", "/a~2", "~0", "/a~"])
def test_what_is_no_pointer_is_an_error(pointer: str) -> None:
    with pytest.raises(ValueError, match="A JSON pointer is empty or begins with /"):
        check_pointer(pointer)
    with pytest.raises(ValueError, match="A JSON pointer is empty or begins with /"):
        JsonMapping(metadata={"name": pointer})


@given(JSON)
def test_whatever_json_comes_without_the_fields_it_is_one_clear_error(value: Any) -> None:
    if isinstance(value, dict) and {"text", "id", "score"} <= value.keys():
        return
    with pytest.raises(UnfitJson, match=r"^'/"):
        JsonMapping(score="/score")(value)


@pytest.mark.parametrize("score", [10**400, -(10**400), float("inf"), float("nan"), True, "1"])
def test_a_score_is_a_finite_number_or_an_error(score: Any) -> None:
    with pytest.raises(UnfitJson, match="expected: a finite number"):
        JsonMapping(score="/score")({"text": "t", "id": 1, "score": score})
    largest = {"text": "t", "id": 1, "score": 10**308}
    assert JsonMapping(score="/score")(largest).metadata == {"api_score": 1e308}

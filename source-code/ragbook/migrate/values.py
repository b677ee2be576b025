"""How the value of an argument is rewritten where its meaning changed, not only its name."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

NewArguments = list[tuple[str, cst.BaseExpression]]


class Left(ValueError):
    """A place that cannot be rewritten safely; the message says why."""


def metadata_key(name: str, value: cst.BaseExpression) -> NewArguments:
    """Turn the name of a metadata key into a function of the document; None stays the default."""
    if isinstance(value, cst.Name) and value.value == "None":
        return []
    if not isinstance(value, cst.SimpleString):
        raise Left("id_key is a function of the document here, and it is not a plain string")
    function = cst.parse_expression(f"lambda document: document.metadata[{value.value}]")
    return [(name, function)]


def chain_without_prompt(name: str, value: cst.BaseExpression) -> NewArguments:
    """A chain of one's own has its prompt in it."""
    return [(name, value), ("prompt", cst.Name("None"))]


def twenty_for_none(name: str, value: cst.BaseExpression) -> NewArguments:
    """Write out the number that the old filter put in the place of None."""
    none = isinstance(value, cst.Name) and value.value == "None"
    return [(name, cst.Integer("20") if none else value)]


def cross_encoder_kwargs(name: str, value: cst.BaseExpression) -> NewArguments:
    """Split a dictionary written in place into the arguments that have names here."""
    if not isinstance(value, cst.Dict):
        raise Left("model_kwargs goes to the loading of the weights here; give device, max_length")
    found: NewArguments = []
    for element in value.elements:
        if not isinstance(element, cst.DictElement) or not isinstance(
            element.key, cst.SimpleString
        ):
            raise Left("model_kwargs is not a dictionary of plain keys")
        key = element.key.evaluated_value
        if key not in ("device", "max_length", "model_kwargs"):
            raise Left(f"model_kwargs has {key!r}, for which there is no argument here")
        found.append((str(key), element.value))
    return found


CONVERTERS: dict[str, Callable[[str, cst.BaseExpression], NewArguments]] = {
    function.__name__: function
    for function in (
        metadata_key,
        chain_without_prompt,
        twenty_for_none,
        cross_encoder_kwargs,
    )
}

"""Read a model's reply as a query and a filter, in any form that models write, evaluating none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.structured_query import (
    Comparator,
    Comparison,
    FilterDirective,
    Operation,
    Operator,
    StructuredQuery,
)

from .documents import check_query, without_reasoning

MOST_OPENINGS = 200
"""At how many of a reply's braces an object may begin: a model that babbles writes thousands."""

_BOOLS = {"true": True, "false": False}


def parse_structured_query(reply: str | BaseMessage) -> StructuredQuery:
    """Read a model's reply: a JSON object with `query`, `filter` and perhaps `limit`.

    Text, a code fence and reasoning around the object are passed over. The filter is one as
    `documents.normal_filter` explains, with `$contain` and `$like` besides; or an object with
    `comparator`, `attribute` and `value`, or with `operator` and `arguments`; or text, as LangChain
    asks for it: `and(eq("genre", "jazz"), lt("year", 2000))`. Nothing of it is evaluated.

    Args:
        reply: Text or a message.

    Returns:
        What was read; a limit that is no whole number of at least 1 is left out.

    Raises:
        ValueError: If there is no such object, or the filter cannot be read.
        TypeError: If the reply is neither text nor a message.
    """
    text = reply.text if isinstance(reply, BaseMessage) else reply
    if not isinstance(text, str):
        raise TypeError(f"A reply must be text or a message, got {type(reply).__name__}.")
    for found in _objects(without_reasoning(text)):
        if "query" in found or "filter" in found:
            query, limit = found.get("query"), found.get("limit")
            whole = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1
            return StructuredQuery(
                query=check_query(query) if isinstance(query, str) else "",
                filter=parse_filter(found.get("filter")),
                limit=limit if whole else None,
            )
    raise ValueError(f"The reply holds no JSON object with query and filter: {text!r:.200}.")


def parse_filter(value: Any) -> FilterDirective | None:
    """Read a filter in any of the forms that `parse_structured_query` explains; None for none."""
    if value is None or value in ({}, "") or (isinstance(value, str) and _says_none(value)):
        return None
    try:
        return _from_text(value) if isinstance(value, str) else _from_json(value)
    except RecursionError:
        raise ValueError("The filter is nested too deeply.") from None


def _says_none(text: str) -> bool:
    return text.strip().casefold() in ("", "no_filter", "none", "null")


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    for opening in list(re.finditer(r"\{", text))[:MOST_OPENINGS]:
        try:
            value, _ = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of one that has a key twice, both, of which Python would drop the first."""
    names = dict(pairs)
    return names if len(names) == len(pairs) else {"$and": [{n: value} for n, value in pairs]}


def _from_json(value: Any) -> FilterDirective:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"A filter must be an object that is not empty, got {value!r:.80}.")
    if "comparator" in value:
        return _comparison(value["comparator"], value.get("attribute"), value.get("value"))
    if "operator" in value and isinstance(value.get("arguments"), list):
        return _operation(value["operator"], [_from_json(part) for part in value["arguments"]])
    parts: list[FilterDirective] = []
    for name, inner in value.items():
        if name.removeprefix("$").casefold() in set(Operator):
            given = inner if isinstance(inner, list) else [inner]
            parts.append(_operation(name, [_from_json(part) for part in given]))
        elif isinstance(inner, dict):
            parts += [_comparison(word, name, operand) for word, operand in inner.items()]
        else:
            parts.append(_comparison("in" if isinstance(inner, list) else "eq", name, inner))
    return _joined(parts, value)


def _joined(parts: list[FilterDirective], source: Any) -> FilterDirective:
    if not parts:
        raise ValueError(f"A part of the filter is empty: {source!r:.80}.")
    return parts[0] if len(parts) == 1 else Operation(operator=Operator.AND, arguments=parts)


def _operation(name: Any, parts: list[FilterDirective]) -> FilterDirective:
    word = str(name).removeprefix("$").casefold()
    if word not in set(Operator) or not parts:
        raise ValueError(f"{name!r} with {len(parts)} filters is no operation of a filter.")
    if len(parts) == 1 and word != "not":
        return parts[0]
    return Operation(operator=Operator(word), arguments=parts)


def _comparison(name: Any, attribute: Any, value: Any) -> Comparison:
    word = str(name).removeprefix("$").casefold()
    if word not in set(Comparator) or not isinstance(attribute, str):
        raise ValueError(f"{name!r} on {attribute!r:.40} is no comparison of a filter.")
    return Comparison(comparator=Comparator(word), attribute=attribute, value=value)


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<date>\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?)
    |(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d]\w*(?:\.\w+)*)|(?P<mark>[(),\[\]]))\s*""",
    re.VERBOSE,
)


def _from_text(text: str) -> FilterDirective:
    tokens: list[tuple[str, str]] = []
    end = 0
    while end < len(text):
        token = _TOKEN.match(text, end)
        if token is None:
            raise ValueError(f"The filter cannot be read at {text[end:]!r:.60}.")
        tokens.append((str(token.lastgroup), token[str(token.lastgroup)]))
        end = token.end()
    tokens.append(("end", ""))
    value = _expression(tokens, closing := [0])
    if tokens[closing[0]][0] != "end" or not isinstance(value, FilterDirective):
        raise ValueError(f"The filter is no whole condition: {text!r:.80}.")
    return value


def _expression(tokens: list[tuple[str, str]], at: list[int]) -> Any:
    kind, text = tokens[at[0]]
    at[0] += 1
    if kind == "word" and tokens[at[0]] == ("mark", "("):
        at[0] += 1
        return _call(text, _until(")", tokens, at))
    if (kind, text) == ("mark", "["):
        return _until("]", tokens, at)
    if kind == "string":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if kind == "number":
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    if kind == "word":
        return _BOOLS.get(text.casefold(), text)
    if kind == "date":
        return text
    raise ValueError(f"The filter breaks off or has {text!r} where a value should be.")


def _until(closing: str, tokens: list[tuple[str, str]], at: list[int]) -> list[Any]:
    found: list[Any] = []
    while tokens[at[0]] != ("mark", closing):
        if found and tokens[at[0]] != ("mark", ","):
            raise ValueError(f"The filter has {tokens[at[0]][1]!r} where , or {closing} should be.")
        at[0] += bool(found)
        found.append(_expression(tokens, at))
    at[0] += 1
    return found


def _call(name: str, arguments: list[Any]) -> FilterDirective:
    if name.casefold() in set(Operator):
        if not all(isinstance(part, FilterDirective) for part in arguments):
            raise ValueError(f"{name} needs conditions, got {arguments!r:.80}.")
        return _operation(name, arguments)
    if len(arguments) != 2 or isinstance(arguments[1], FilterDirective):
        raise ValueError(f"{name} needs an attribute and a value, got {arguments!r:.80}.")
    return _comparison(name, *arguments)

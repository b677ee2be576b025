"""Filters over declared attributes: checked, and written as a store or a function has them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from langchain_core.documents import Document
from langchain_core.structured_query import (
    Comparator,
    Comparison,
    FilterDirective,
    Operation,
    Operator,
    StructuredQuery,
    Visitor,
)
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from pydantic import BaseModel, ConfigDict

from .documents import filter_function, normal_filter

Predicate = Callable[[Document], bool]


class AttributeInfo(BaseModel):
    """A metadata key that a filter may use.

    Args:
        name: The key.
        description: What it means and which values it has, for the model.
        type: What its values are: string, integer, float, boolean or date, or several of them, as
            in "string or list[string]". Other words say nothing about the value. A date is text in
            ISO 8601, and compared as text; Chroma compares the sizes of numbers only, so keep the
            year, or seconds, as an integer there.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    type: str


def checked_filter(
    directive: FilterDirective,
    attributes: Sequence[AttributeInfo] | None,
    comparators: Sequence[Comparator] | None = None,
    operators: Sequence[Operator] | None = None,
) -> FilterDirective:
    """Return the filter with each value as its attribute's type, such as 1994 for "1994".

    Args:
        directive: The filter.
        attributes: What may be compared; None for anything.
        comparators: Which comparators may be used; None for all.
        operators: Which operators may be used; None for all.

    Raises:
        ValueError: If it uses something else, or a value is not of the attribute's type.
    """
    if isinstance(directive, Operation):
        if operators is not None and directive.operator not in operators:
            raise ValueError(f"The operator {directive.operator.value!r} is not allowed here.")
        if not directive.arguments or (directive.operator == "not" and directive.arguments[1:]):
            raise ValueError(f"{directive.operator.value} got {len(directive.arguments)} filters.")
        parts = [checked_filter(p, attributes, comparators, operators) for p in directive.arguments]
        return Operation(operator=directive.operator, arguments=parts)
    if not isinstance(directive, Comparison):
        raise ValueError(f"A filter has comparisons and operations, got {directive!r:.80}.")
    comparator, name, value = directive.comparator, directive.attribute, directive.value
    if comparators is not None and comparator not in comparators:
        raise ValueError(f"The comparator {comparator.value!r} is not allowed here.")
    types = ""
    if attributes is not None:
        known = {attribute.name: attribute.type for attribute in attributes}
        if name not in known:
            raise ValueError(f"There is no attribute {name!r}; there are {sorted(known)}.")
        types = known[name]
    if comparator in (Comparator.IN, Comparator.NIN):
        values = value if isinstance(value, list) else [value]
        value = [_typed(name, item, types) for item in values]
    else:
        value = _typed(name, value, types)
    return Comparison(comparator=comparator, attribute=name, value=value)


_BOOLS: dict[str, bool] = {"true": True, "false": False}
_NUMBERS = {"int", "float"}
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bool": ("bool", lambda value: _BOOLS[str(value).casefold()]),
    "int": ("int", lambda value: int(str(value))),
    "float": ("float double number decimal", lambda value: float(str(value))),
    "date": ("date datetime", lambda value: _date(value)),
    "str": ("str text", lambda value: str(value)),
}


def _typed(name: str, value: Any, types: str) -> Any:
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        value = value.get(value["type"])  # a date as LangChain's parser returns it
    if value is None or isinstance(value, list | dict):
        raise ValueError(f"{name!r} must be compared with one value, got {value!r:.80}.")
    words = re.findall("[a-z]+", types.casefold())
    kinds = [
        kind
        for kind, (known, _) in _READERS.items()
        if any(word.startswith(tuple(known.split())) for word in words)
    ]
    own = "bool" if isinstance(value, bool) else type(value).__name__
    if not kinds or own in kinds or (own in _NUMBERS and _NUMBERS.intersection(kinds)):
        return _finite(name, value)  # a whole number may be compared with 1999.5
    for kind in kinds:
        try:
            read = _READERS[kind][1](value)
        except (ValueError, KeyError, TypeError):
            continue
        return _finite(name, read)
    raise ValueError(f"{name!r} is of the type {types}, and is compared with {value!r:.80}.")


def _finite(name: str, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name!r} is compared with {value}, which is no number.")
    return value


def _date(value: Any) -> str:
    """Return a date as it is written, if the calendar has it."""
    if not re.match(r"\d{4}-\d\d-\d\d", value):
        raise ValueError(value)
    datetime.fromisoformat(value)
    return str(value)


class _Translator(Visitor):
    """Writes a filter as the argument `filter` of a store's search."""

    def visit_structured_query(
        self, structured_query: StructuredQuery
    ) -> tuple[str, dict[str, Any]]:
        """Return the query, and the arguments of a store's search."""
        directive = structured_query.filter
        found = {} if directive is None else {"filter": directive.accept(self)}
        return structured_query.query, found


class FilterTranslator(_Translator):
    """Writes a filter as the dictionary that `documents.normal_filter` explains, and Chroma takes.

    Every store that reads `$and`, `$or` and `{key: {"$lt": value}}` takes it. `contain` and `like`
    have no place in it.
    """

    allowed_operators = tuple(Operator)
    allowed_comparators = tuple(
        c for c in Comparator if c not in (Comparator.CONTAIN, Comparator.LIKE)
    )

    def visit_operation(self, operation: Operation) -> dict[str, Any]:
        """Write an operation; `$not` becomes the opposite comparison."""
        self._validate_func(operation.operator)
        parts = [part.accept(self) for part in operation.arguments]
        if operation.operator is Operator.NOT:
            (part,) = parts
            return normal_filter({"$not": part}) or {}
        return {f"${operation.operator.value}": parts}

    def visit_comparison(self, comparison: Comparison) -> dict[str, Any]:
        """Write a comparison; an attribute that is called like an operator is an error."""
        self._validate_func(comparison.comparator)
        written = {comparison.attribute: {f"${comparison.comparator.value}": comparison.value}}
        return normal_filter(written) or {}


class PredicateTranslator(_Translator):
    """Writes a filter as a function of the document, for stores in memory that take one.

    `contain` is true where a list holds the value, or a text holds it as a part. `like` compares
    texts without regard to case; `%` stands for anything, and without one a part is enough. As in
    `documents.normal_filter`, the opposite of a comparison of size is false of a document that
    lacks the key, too, and `$not` before several filters is the opposite of each.
    """

    allowed_operators = tuple(Operator)
    allowed_comparators = tuple(Comparator)

    def visit_operation(self, operation: Operation) -> Predicate:
        """Write an operation."""
        if operation.operator is Operator.NOT:
            return self._opposite(operation.arguments[0])
        parts: list[Predicate] = [part.accept(self) for part in operation.arguments]
        return _joined(operation.operator, parts)

    def visit_comparison(self, comparison: Comparison) -> Predicate:
        """Write a comparison."""
        name, value = comparison.attribute, comparison.value
        if comparison.comparator is Comparator.CONTAIN:
            return lambda document: _contains(document.metadata.get(name), value)
        if comparison.comparator is Comparator.LIKE:
            like = _like(str(value))
            return lambda document: _matches(like, document.metadata.get(name))
        return filter_function(comparison.accept(FilterTranslator()))

    def _opposite(self, directive: FilterDirective) -> Predicate:
        if isinstance(directive, Operation):
            if directive.operator is Operator.NOT:
                inner: Predicate = directive.arguments[0].accept(self)
                return inner
            both = directive.operator is Operator.AND
            parts = [self._opposite(part) for part in directive.arguments]
            return _joined(Operator.OR if both else Operator.AND, parts)
        test: Predicate = directive.accept(self)
        in_stores = FilterTranslator.allowed_comparators
        if isinstance(directive, Comparison) and directive.comparator in in_stores:
            return filter_function({"$not": directive.accept(FilterTranslator())})
        return lambda document: not test(document)


def default_translator(vectorstore: VectorStore) -> Visitor:
    """Return the translator for a store: to a function for `InMemoryVectorStore`."""
    in_memory = isinstance(vectorstore, InMemoryVectorStore)
    return PredicateTranslator() if in_memory else FilterTranslator()


def _joined(operator: Operator, parts: Sequence[Predicate]) -> Predicate:
    join = all if operator is Operator.AND else any
    return lambda document: join(part(document) for part in parts)


def _like(value: str) -> re.Pattern[str]:
    parts = value.split("%")
    first, *middle, last = parts if parts[1:] else ["", *parts, ""]
    # The earliest place of a part is as good as any later one, so (?>…) never looks back: without
    # it a question could ask for "%a%a%a%a%a%b", which takes minutes on a text of 60 letters.
    found = "".join(f"(?>.*?{re.escape(part)})" for part in middle)
    pattern = f"{re.escape(first)}{found}.*{re.escape(last)}"
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _matches(like: re.Pattern[str], actual: Any) -> bool:
    return actual is not None and bool(like.fullmatch(str(actual)))


def _contains(actual: Any, value: Any) -> bool:
    if isinstance(actual, list | tuple):
        return value in actual
    return isinstance(actual, str) and str(value) in actual

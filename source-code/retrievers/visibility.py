"""What decides who may see what a retriever returns, in one string, for whatever keeps results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import Any
from uuid import UUID

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import BaseModel, SecretBytes, SecretStr

Opaque = Callable[[str, Any], Any]
Answers = Sequence[tuple[Any, Any]]
_SCALARS = (str, int, float, bool, type(None))


def refuse_opaque(path: str, value: Any) -> Any:
    """Raise `ValueError`: the `opaque` of `visibility_of` that lets nothing unknown pass."""
    raise ValueError(f"{path} ({type(value).__name__}) is not plain data and cannot be described.")


def visibility_of(
    retriever: Any, opaque: Opaque = refuse_opaque, path: str = "retriever", ask: bool = True
) -> str:
    """Describe in one string what decides which documents a retriever may return, and to whom.

    The string holds the class and the settings of the retriever and of everything nested in its
    fields, through lists and dictionaries. Where a class limits what a user may see, it has a
    method `visibility()`, which says for whom, as data for JSON; it is asked anew at every call,
    since grants change. Such a class answers for its own functions and its private attributes. A
    retriever that several share is described once, and by a hash after that.

    A store, a model or a function is not plain data, and it may limit what is seen: a filter is a
    function, and a store may be one tenant's. Nothing of the kind is left out. `opaque` decides
    what stands for it, or raises.

    Args:
        retriever: The retriever, or anything of the kinds that its settings have.
        opaque: Given the path of such a value, as `retriever.vectorstore`, and the value. It is
            also given a retriever that has private attributes or a class made inside a function.
        path: What the paths begin with.
        ask: Whether `visibility` is asked; without it, only the settings are described.

    Returns:
        JSON. Equal strings stand for equal settings. Secrets are in it only as a hash, but other
        settings as they are, so hash it before it leaves the process.

    Raises:
        ValueError: By default, for a value that is not plain data.
    """
    limiting = list(_limiting(retriever, set())) if ask else []
    answers = [(part, part.visibility()) for part in limiting]
    return _canonical(_Describer(answers, opaque).value(retriever, path))


async def avisibility_of(
    retriever: Any, opaque: Opaque = refuse_opaque, path: str = "retriever"
) -> str:
    """Do what `visibility_of` does, on the event loop: `avisibility` is asked where a class has it.

    The `visibility` of a class without one is called as it is, so it should not wait for a service.
    """
    answers = []
    for part in list(_limiting(retriever, set())):
        own = getattr(part, "avisibility", None)
        answers.append((part, part.visibility() if own is None else await own()))
    return _canonical(_Describer(answers, opaque).value(retriever, path))


def _canonical(description: Any) -> str:
    return json.dumps(description, sort_keys=True, allow_nan=False, separators=(",", ":"))


def _limits(value: Any) -> bool:
    return callable(getattr(type(value), "visibility", None))


def _limiting(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield everything in a retriever's settings that has a method `visibility`, once each."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if _limits(value):
        yield value
    for part in _nested(value):
        if not isinstance(part, _SCALARS):
            yield from _limiting(part, seen)


def _nested(value: Any) -> Sequence[Any]:
    if isinstance(value, BaseModel) and not isinstance(value, Document):
        return list(_settings(value).values())
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset) and not _is_corpus(value):
        return list(value)
    return []


def _settings(value: BaseModel) -> dict[str, Any]:
    return {**value.__dict__, **(value.__pydantic_extra__ or {})}


def _is_corpus(value: Any) -> bool:
    # A corpus is no setting, and to read it through would take longer than to search it.
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Document)


class _Describer:
    """Turns values into data for JSON, so that different values have different data."""

    def __init__(self, answers: Answers, opaque: Opaque) -> None:
        self._answers = answers
        self._opaque = opaque
        self._models: dict[int, tuple[BaseModel, dict[str, Any]]] = {}

    def value(self, value: Any, path: str) -> Any:
        kind: type = type(value)
        if kind in _SCALARS and (kind is not float or math.isfinite(value)):
            return value
        if isinstance(value, float | date | time | timedelta | Decimal | UUID | PurePath):
            return {"value": [_name(kind), str(value)]}
        if isinstance(value, Enum):
            return {"value": [_name(kind), value.name]}
        if isinstance(value, SecretStr | SecretBytes):
            secret = value.get_secret_value()
            secret = secret.encode() if isinstance(secret, str) else secret
            return {"secret": [_name(kind), sha256(secret).hexdigest()]}

        def inner(part: Any, name: object) -> Any:
            return self.value(part, f"{path}[{name!r}]")

        if kind in (list, tuple) and not _is_corpus(value):
            parts = [
                part if type(part) is str else inner(part, number)
                for number, part in enumerate(value)
            ]
            return parts if kind is list else {"tuple": parts}
        if kind in (set, frozenset):
            return {"set": sorted((inner(part, "") for part in value), key=_canonical)}
        if kind is dict:
            items = sorted(value.items(), key=lambda item: repr(item[0]))
            pairs = [[inner(name, name), inner(part, name)] for name, part in items]
            return {"dict": sorted(pairs, key=_canonical)}
        if isinstance(value, BaseModel) and not isinstance(value, Document):
            return self._model(value, path)
        if _limits(value):
            return {"class": _name(kind), "visibility": self._answer(value, path)}
        return {"opaque": self._opaque(path, value)}

    def _model(self, model: BaseModel, path: str) -> dict[str, Any]:
        """Describe a model once: one that two share, as two more share them, is met often."""
        # The model is kept as well, so that no other one gets its identity meanwhile.
        _, known = self._models.get(id(model), (model, None))
        if known is None:
            known = self._new_model(model, path)
        elif "again" not in known:
            known = {"again": sha256(_canonical(known).encode()).hexdigest()}
        self._models[id(model)] = model, known
        return known

    def _new_model(self, model: BaseModel, path: str) -> dict[str, Any]:
        kind = type(model)
        description: dict[str, Any] = {"class": _name(kind), "fields": {}}
        limits = _limits(model)
        for name, value in _settings(model).items():
            field = kind.model_fields.get(name)
            # A function that the class has by default is said by the name of the class.
            by_default = field is not None and value is field.default
            if isinstance(value, FunctionType | MethodType) and (limits or by_default):
                continue
            description["fields"][name] = self.value(value, f"{path}.{name}")
        if limits:
            description["visibility"] = self._answer(model, path)
        elif _hides_state(kind):
            description["opaque"] = self._opaque(path, model)
        return description

    def _answer(self, value: Any, path: str) -> Any:
        answer = next((answer for part, answer in self._answers if part is value), None)
        return _Describer([], refuse_opaque).value(answer, f"{path}.visibility()")


def _hides_state(kind: type[BaseModel]) -> bool:
    private = kind.__private_attributes__.keys() - BaseRetriever.__private_attributes__.keys()
    return bool(private) or "<locals>" in kind.__qualname__


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"

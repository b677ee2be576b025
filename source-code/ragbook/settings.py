"""The numbers of a pattern that can be tuned, and the file that keeps them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from ragbook.files import write_whole

Fusion = Literal["adaptive", "score", "rrf"]
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)

VERSION = 1
"""Version of the settings file; another one is refused."""


class SettingsError(ValueError):
    """Settings cannot be used; the message says which, and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """What a pattern can be tuned by. The defaults are those of the book.

    Args:
        fusion: How dense and keyword search are fused: `adaptive`, `score` or `rrf`.
        dense_weight: The share of dense search in the fusion, from 0 to 1; keyword search has the
            rest.
        rrf_k: The constant of reciprocal rank fusion, at least 1; the other fusions have none.
        bm25_k1: How slowly repetitions of a term saturate in BM25, at least 0.
        bm25_b: How much BM25 holds long passages back, from 0 to 1.
        depth: How many passages each search hands to a fusion, which judges a list by its lower
            half.
        candidates: How many passages a first stage hands to the cross-encoder, whose cost grows
            with them.
        first_stage_weight: How much the first stage's score counts when the cross-encoder reranks,
            from 0 to 1; None is the profile's own.

    Raises:
        SettingsError: If a value has the wrong type or is out of range.
    """

    fusion: Fusion = "adaptive"
    dense_weight: float = 0.5
    rrf_k: int = 60
    bm25_k1: float = 1.5
    bm25_b: float = 0.75
    depth: int = 100
    candidates: int = 30
    first_stage_weight: float | None = None

    def __post_init__(self) -> None:
        if self.fusion not in FUSIONS:
            raise SettingsError(f"fusion must be one of {', '.join(FUSIONS)}, got {self.fusion!r}.")
        _check_number("dense_weight", self.dense_weight, 0, 1)
        _check_number("bm25_k1", self.bm25_k1, 0, math.inf)
        _check_number("bm25_b", self.bm25_b, 0, 1)
        for name in ("rrf_k", "depth", "candidates"):
            _check_count(name, getattr(self, name))
        if self.first_stage_weight is not None:
            _check_number("first_stage_weight", self.first_stage_weight, 0, 1)

    @property
    def weights(self) -> list[float]:
        """The weights of dense and keyword search for a fusion; 1 and 1 for equal shares."""
        return [2 * self.dense_weight, 2 * (1 - self.dense_weight)]

    @property
    def bm25_params(self) -> dict[str, float]:
        """What `BM25Retriever.from_documents` takes as `bm25_params`."""
        return {"k1": self.bm25_k1, "b": self.bm25_b}

    def changes(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults."""
        defaults = asdict(Settings())
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


def write_settings(settings: Settings, path: Path) -> None:
    """Write settings to a JSON file, at once or not at all.

    Raises:
        SettingsError: If the file cannot be written.
    """
    text = json.dumps({"version": VERSION, "settings": asdict(settings)}, indent=2) + "\n"
    try:
        write_whole(path, text)
    except OSError as error:
        raise SettingsError(
            f"The settings file {path} cannot be written: {error.strerror or error}."
        ) from None


def read_settings(path: Path) -> Settings:
    """Read what `write_settings` wrote. A setting that is left out keeps its default.

    Raises:
        SettingsError: If the file cannot be read, or holds anything but known settings in range.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"There is no settings file {path}. Write one with rag tune.") from None
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"The settings file {path} cannot be read: {reason}.") from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"The settings file {path} cannot be read: it is not UTF-8 ({error.reason})."
        ) from None
    except ValueError as error:
        raise SettingsError(f"The settings file {path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict) or content.keys() != {"version", "settings"}:
        raise SettingsError(
            f'The settings file {path} must be an object with "version" and "settings".'
        )
    if content["version"] != VERSION:
        raise SettingsError(
            f"The settings file {path} has version {content['version']!r}, this program reads "
            f"version {VERSION}. Write a new one with rag tune."
        )
    values, known = content["settings"], [field.name for field in fields(Settings)]
    if not isinstance(values, dict):
        raise SettingsError(f'"settings" in {path} must be an object, got {values!r}.')
    if unknown := sorted(values.keys() - set(known)):
        raise SettingsError(
            f"The settings file {path} has the unknown setting {unknown[0]!r}. "
            f"Known are {', '.join(known)}."
        )
    try:
        return Settings(**values)
    except SettingsError as error:
        raise SettingsError(f"The settings file {path}: {error}") from None


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and low <= value <= high and math.isfinite(value)):
        limits = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
        raise SettingsError(f"{name} must be a number {limits}, got {value!r}.")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingsError(f"{name} must be a whole number of at least 1, got {value!r}.")

"""What the rerankers share: one table of both sides, scores from 0 to 1, and a table in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
from lancedb.rerankers import Reranker

from retrievers.documents import min_max

RELEVANCE = "_relevance_score"
FIRST_STAGE = {"_distance": pa.float32(), "_score": pa.float32()}
"""The columns of the first stage: distance of the vectors, and full-text score (BM25)."""

Scores = npt.NDArray[np.float64]


def merge(vector_results: pa.Table, fts_results: pa.Table) -> pa.Table:
    """Put both sides of a hybrid search into one table, each row once, with both of its scores.

    Args:
        vector_results: Rows with `_rowid` and `_distance`, nearest first.
        fts_results: Rows with `_rowid` and `_score`, best first.

    Returns:
        The rows of the vector search, then those that only the full-text search found. A score of
        a side that lacks the row is null. The columns are the same whichever side is empty.

    Raises:
        ValueError: If a side has rows, but not the columns that it must have.
    """
    vector = _complete(vector_results, "_distance")
    fts = _complete(fts_results, "_score")
    both = pa.concat_tables([vector, fts], promote_options="default")
    _, first = np.unique(both["_rowid"].to_numpy(), return_index=True)
    merged = both.take(pa.array(np.sort(first)))
    for name, side in (("_distance", vector), ("_score", fts)):
        rows = pc.index_in(merged["_rowid"], value_set=side["_rowid"])
        place = merged.column_names.index(name)
        merged = merged.set_column(place, name, side[name].take(rows))
    return merged


def ranked(table: pa.Table, scores: Scores, return_score: str) -> pa.Table:
    """Return a table in the order of its scores, best first, with `_relevance_score`.

    Args:
        table: The rows.
        scores: One finite number a row, higher is better. Equal ones keep the order of the rows.
        return_score: `"relevance"` drops `_distance` and `_score`, `"all"` keeps them.
    """
    check_place(table)
    # In double precision, so that what float32 cannot tell apart is in its order all the same.
    order = np.argsort(-scores, kind="stable")
    limit = float(np.finfo(np.float32).max)
    column = np.clip(scores[order], -limit, limit).astype(np.float32)
    best = table.take(pa.array(order)).append_column(RELEVANCE, pa.array(column))
    return best if return_score == "all" else without(best, *FIRST_STAGE)


def without(table: pa.Table, *names: str) -> pa.Table:
    """Return a table without the columns of these names, which it need not have."""
    return table.drop_columns([name for name in names if name in table.column_names])


def check_place(*tables: pa.Table) -> None:
    """Refuse a table of the user's with a column where the relevance goes.

    Raises:
        ValueError: If there is one. Left in, Arrow could no longer tell which is meant.
    """
    if any(RELEVANCE in table.column_names for table in tables):
        raise ValueError(
            f"The table has a column {RELEVANCE!r} of its own, where the reranker writes. Rename "
            "it (table.alter_columns), or name the columns to return with .select([...])."
        )


def column_of(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column, or a field inside one, as `"metadata.date"`.

    Raises:
        ValueError: If the table has none of this name.
    """
    if name in table.column_names:
        return table[name]
    first, *path = name.split(".")
    try:
        return pc.struct_field(table[first], path)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise ValueError(
            f"The results have no column {name!r}, they have: {', '.join(table.column_names)}. "
            "Name another one, or add it to .select([...])."
        ) from None


def normalised(column: pa.ChunkedArray, lower_is_better: bool = False) -> Scores:
    """Move scores to the range from 0, the worst, to 1, the best.

    What is null, NaN or infinite becomes 0, as if the row had not been found. If the others are
    all equal they become 1, because a row that was found has to beat one that was not.
    """
    values = column.cast(pa.float64()).to_numpy()
    finite = np.isfinite(values)
    result = np.zeros(len(values))
    if finite.any():
        result[finite] = min_max((-values if lower_is_better else values)[finite].tolist())
    return result


def check_share(name: str, value: Any) -> float:
    """Return a weight.

    Raises:
        ValueError: If it is not a number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}.")
    return float(value)


def check_reranker(reranker: Any) -> Reranker:
    """Return a reranker to ask.

    Raises:
        TypeError: If it is something else, such as a class instead of an instance.
    """
    if not isinstance(reranker, Reranker):
        raise TypeError(
            f"reranker must be an instance of lancedb.rerankers.Reranker, got {reranker!r:.60}."
        )
    return reranker


def check_same_scores(return_score: str | None, reranker: Reranker) -> str:
    """Return which scores to return: those that the reranker inside does.

    Raises:
        ValueError: If others are asked for.
    """
    if return_score not in (None, reranker.score):
        raise ValueError(
            f"return_score is {return_score!r}, but the reranker inside ({reranker}) returns "
            f"{reranker.score!r}. Set return_score there, and leave it out here."
        )
    return reranker.score


def unsupported(reranker: Reranker, method: str, instead: str) -> NotImplementedError:
    """Return the error of a search that a reranker has nothing to say about."""
    return NotImplementedError(f"{type(reranker).__name__} does not support {method}: {instead}")


def _complete(side: pa.Table, score: str) -> pa.Table:
    for name, kind in (("_rowid", pa.uint64()), (score, FIRST_STAGE[score])):
        if name not in side.column_names:
            if len(side):
                raise ValueError(
                    f"A hybrid search must give its rows with {name!r}, these have: "
                    f"{', '.join(side.column_names)}. Add .with_row_id(True) to the query, and the "
                    "score to .select([...])."
                )
            side = side.append_column(name, pa.array([], type=kind))
    return side

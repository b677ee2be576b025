"""The rerankers inside LanceDB, asked by LanceDB itself: tables in a folder, with both indexes."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lancedb.index import FTS
from lancedb.query import MatchQuery
from lancedb.rerankers import LinearCombinationReranker, MRRReranker, Reranker, RRFReranker
from langchain_core.cross_encoders import BaseCrossEncoder

from helpers import OverlapScorer, doc
from lance_rerankers import (
    CrossEncoderReranker,
    FilteredReranker,
    RecencyReranker,
    WeightedReranker,
    to_arrow_in_thread,
)
from ragbook.collection import Collection

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ROWS = [
    # the nearer to x = 0, the better by vectors; "heron" is the word to find
    ("kite", "red kite over open fields", 0.0, 2020, NOW - timedelta(days=30)),
    ("heron", "blue heron in shallow water", 1.0, 2021, NOW - timedelta(days=60)),
    ("pump", "heron heron pump seal kit", 2.0, 2022, NOW),
    ("none", None, 3.0, 2023, None),
    ("owl", "owl at night", 4.0, None, NOW + timedelta(days=9)),
]
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("vector", pa.list_(pa.float32(), 2)),
        ("year", pa.int64()),
        ("date", pa.timestamp("us", tz="UTC")),
        ("metadata", pa.struct([("text", pa.string()), ("tags", pa.list_(pa.string()))])),
    ]
)
NAMES = SCHEMA.names


def rows() -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": id,
                "text": text,
                "vector": [x, 0.0],
                "year": year,
                "date": moment,
                "metadata": {"text": text, "tags": [id, "bird"]},
            }
            for id, text, x, year, moment in ROWS
        ],
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lance")
    table = lancedb.connect(folder).create_table("birds", rows())
    table.create_index("text", config=FTS())
    return folder


@pytest.fixture(scope="module")
def table(folder: Path) -> Any:
    return lancedb.connect(folder).open_table("birds")


def hybrid(table: Any, reranker: Reranker, text: str = "heron", limit: int = 5) -> Any:
    query = table.search(query_type="hybrid").vector([0.0, 0.0]).text(text)
    return query.limit(limit).rerank(reranker)


def vectors(table: Any, reranker: Reranker, text: str | None = "heron", limit: int = 5) -> Any:
    return table.search([0.0, 0.0]).limit(limit).rerank(reranker, query_string=text)


def words(table: Any, reranker: Reranker, text: str = "heron", limit: int = 5) -> Any:
    return table.search(text, query_type="fts").limit(limit).rerank(reranker)


SEARCHES = {"hybrid": hybrid, "vector": vectors, "fts": words}


class Lookup(BaseCrossEncoder):
    """Gives each text a fixed score, and remembers what it was asked."""

    def __init__(self, scores: dict[str, float] | None = None, default: float = 0.0) -> None:
        self.scores, self.default, self.calls = scores or {}, default, []  # type: ignore[var-annotated]

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        self.calls.append(text_pairs)
        return [self.scores.get(text, self.default) for _, text in text_pairs]


class Slow(OverlapScorer):
    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        time.sleep(0.2)
        return super().score(text_pairs)


def clock() -> datetime:
    return NOW


def weighted(return_score: str = "relevance") -> Reranker:
    return WeightedReranker(0.5, return_score)


def crossed(return_score: str = "relevance") -> Reranker:
    return CrossEncoderReranker(OverlapScorer(), return_score=return_score)


def filtered(return_score: str = "relevance") -> Reranker:
    return FilteredReranker(crossed(return_score), lambda row: row["id"] != "kite")


def recent(return_score: str = "relevance") -> Reranker:
    return RecencyReranker(clock=clock, return_score=return_score)


MAKERS: list[Callable[..., Reranker]] = [weighted, crossed, filtered, recent]
CASES = [
    (make, search)
    for make in MAKERS
    for search in SEARCHES
    if (make, search) not in {(weighted, "vector"), (weighted, "fts")}
]


def ids(result: pa.Table) -> list[str]:
    return [str(id) for id in result["id"].to_pylist()]


def side(score: str, *given: tuple[int, float | None], **columns: pa.Array) -> pa.Table:
    numbers = [number for number, _ in given]
    return pa.table(
        {
            "id": pa.array([f"r{number}" for number in numbers], pa.string()),
            **columns,
            score: pa.array([value for _, value in given], pa.float32()),
            "_rowid": pa.array(numbers, pa.uint64()),
        }
    )


def relevance(result: pa.Table) -> dict[str, float]:
    return dict(zip(ids(result), result["_relevance_score"].to_pylist()))


# What all of them keep


@pytest.mark.parametrize(("make", "search"), CASES)
def test_the_relevance_is_float32_and_falls(make: Any, search: str, table: Any) -> None:
    result = SEARCHES[search](table, make()).to_arrow()
    assert result.schema.field("_relevance_score").type == pa.float32()
    scores = result["_relevance_score"].to_pylist()
    assert len(scores) > 1
    assert scores == sorted(scores, reverse=True)
    assert all(map(math.isfinite, scores))


@pytest.mark.parametrize(("make", "search"), CASES)
def test_relevance_alone_drops_the_scores_of_the_first_stage(
    make: Any, search: str, table: Any
) -> None:
    result = SEARCHES[search](table, make()).to_arrow()
    assert result.column_names == [*NAMES, "_relevance_score"]


@pytest.mark.parametrize(("make", "search"), CASES)
def test_all_keeps_the_scores_that_the_first_stage_gave(make: Any, search: str, table: Any) -> None:
    result = SEARCHES[search](table, make("all")).to_arrow()
    distances = {id: x * x for id, _, x, *_ in ROWS}
    plain = table.search("heron", query_type="fts").limit(5).to_list()
    scores = {row["id"]: row["_score"] for row in plain}
    wanted = {"hybrid": {"_distance", "_score"}, "vector": {"_distance"}, "fts": {"_score"}}
    assert wanted[search] == {"_distance", "_score"} & set(result.column_names)
    for row in result.to_pylist():
        if search != "fts":
            assert row["_distance"] == pytest.approx(distances[row["id"]])
        if search != "vector":
            assert row["_score"] == pytest.approx(scores.get(row["id"]))


@pytest.mark.parametrize(("make", "search"), CASES)
@pytest.mark.parametrize("return_score", ["relevance", "all"])
def test_an_empty_result_has_the_columns_of_a_full_one(
    make: Any, search: str, return_score: str, folder: Path
) -> None:
    distance, score = pa.field("_distance", pa.float32()), pa.field("_score", pa.float32())
    rowid = pa.field("_rowid", pa.uint64())

    def both(table: pa.Table) -> tuple[pa.Table, ...]:
        def of(*fields: pa.Field) -> pa.Table:
            found = table
            for field in fields:
                values = np.arange(len(table))
                found = found.append_column(field, pa.array(values, field.type))
            return found

        sides = {"hybrid": (of(distance, rowid), of(score, rowid)), "vector": (of(distance),)}
        return sides.get(search, (of(score),))

    reranker, full = make(return_score), rows()
    method = getattr(reranker, f"rerank_{search}")
    wanted = method("heron", *both(full)).schema
    assert method("heron", *both(full.slice(0, 0))).schema == wanted
    if search == "hybrid":
        nothing = both(full.slice(0, 0))
        assert method("heron", both(full)[0], nothing[1]).schema == wanted
        assert method("heron", nothing[0], both(full)[1]).schema == wanted


@pytest.mark.parametrize(("make", "search"), CASES)
def test_a_search_that_finds_nothing_is_an_empty_result(make: Any, search: str, table: Any) -> None:
    result = SEARCHES[search](table, make()).where("id = 'nobody'").to_arrow()
    assert result.num_rows == 0
    assert result.schema.field("_relevance_score").type == pa.float32()


@pytest.mark.parametrize(("make", "search"), CASES)
def test_limit_and_where_hold(make: Any, search: str, table: Any) -> None:
    query = SEARCHES[search](table, make(), limit=1).where("year >= 2021")
    result = query.to_arrow()
    assert result.num_rows == 1
    assert set(ids(result)) <= {"heron", "pump", "none"}


@pytest.mark.parametrize("make", MAKERS)
def test_a_hybrid_result_is_one_row_a_row_and_shows_no_row_id(make: Any, table: Any) -> None:
    result = hybrid(table, make()).to_arrow()
    assert len(set(ids(result))) == len(ids(result))
    assert "_rowid" not in result.column_names


@pytest.mark.parametrize("make", MAKERS)
def test_a_query_without_known_words_returns_what_the_vectors_found(make: Any, table: Any) -> None:
    found = set(ids(hybrid(table, make(), "zebra").to_arrow()))
    assert found | {"kite"} == {id for id, *_ in ROWS}


@pytest.mark.parametrize("make", MAKERS)
def test_rows_that_only_the_words_find_are_there(make: Any, table: Any) -> None:
    query = hybrid(table, make(), "owl", limit=2)  # the vectors find kite and heron
    assert "owl" in ids(query.to_arrow())


@pytest.mark.parametrize(("make", "search"), CASES)
def test_values_inside_columns_come_back_as_they_were(make: Any, search: str, table: Any) -> None:
    wanted = {row["id"]: row for row in rows().to_pylist()}
    result = SEARCHES[search](table, make()).to_arrow()
    assert result.schema.field("metadata").type == SCHEMA.field("metadata").type
    for row in result.to_pylist():
        assert {name: row[name] for name in NAMES} == wanted[row["id"]]


@pytest.mark.parametrize(("make", "search"), CASES)
def test_the_same_query_gives_the_same_in_async(make: Any, search: str, folder: Path) -> None:
    async def ask() -> pa.Table:
        table = await (await lancedb.connect_async(folder)).open_table("birds")
        query = table.query()
        if search != "fts":
            query = query.nearest_to([0.0, 0.0])
        if search != "vector":
            query = query.nearest_to_text("heron")
        text = {"query_string": "heron"} if search == "vector" else {}
        return await query.limit(5).rerank(make(), **text).to_arrow()

    sync = SEARCHES[search](lancedb.connect(folder).open_table("birds"), make()).to_arrow()
    assert asyncio.run(ask()).to_pylist() == sync.to_pylist()


@pytest.mark.parametrize(("make", "search"), CASES)
def test_a_column_of_the_users_in_the_place_of_the_relevance_is_refused(
    make: Any, search: str, tmp_path: Path
) -> None:
    own = rows().append_column("_relevance_score", pa.array(np.zeros(len(ROWS))))
    table = lancedb.connect(tmp_path).create_table("own", own)
    table.create_index("text", config=FTS())
    with pytest.raises(ValueError, match=r"_relevance_score.*Rename.*select"):
        SEARCHES[search](table, make()).to_arrow()
    chosen = SEARCHES[search](table, make()).select(["id", "text", "date", "year"])
    assert chosen.to_arrow().num_rows


def test_a_tie_goes_to_the_row_that_came_first_vectors_before_words() -> None:
    vector = side("_distance", (7, 1.0), (3, 1.0))
    fts = side("_score", (9, 2.0), (1, 2.0))
    assert ids(weighted().rerank_hybrid("q", vector, fts)) == ["r7", "r3", "r9", "r1"]


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.floats(width=32)), max_size=8, unique_by=lambda x: x[0]
    ),
    st.lists(
        st.tuples(st.integers(0, 8), st.floats(width=32)), max_size=8, unique_by=lambda x: x[0]
    ),
    st.floats(0, 1),
)
@settings(max_examples=60)
def test_every_row_comes_back_once_in_order_whatever_the_scores(
    vector: list[tuple[int, float]], fts: list[tuple[int, float]], weight: float
) -> None:
    texts = {
        "text": lambda given: pa.array([f"{number}" for number, _ in given], pa.string()),
        "date": lambda given: pa.array([number for number, _ in given], pa.int64()),
    }
    sides = [
        side(name, *given, **{column: make(given) for column, make in texts.items()})
        for name, given in (("_distance", vector), ("_score", fts))
    ]
    scores = dict(vector) | dict(fts)
    finite = {str(n): score for n, score in scores.items() if math.isfinite(score)}
    for reranker in (
        WeightedReranker(weight),
        CrossEncoderReranker(Lookup({n: s * 1e300 for n, s in finite.items() if abs(s) < 1e8})),
        FilteredReranker(WeightedReranker(weight), pc.field("date") >= 0),
        RecencyReranker(reranker=WeightedReranker(weight), clock=clock, recency_weight=weight),
    ):
        result = reranker.rerank_hybrid("q", *sides)
        assert sorted(ids(result)) == sorted(f"r{number}" for number in scores)
        found = result["_relevance_score"].to_pylist()
        assert found == sorted(found, reverse=True)
        assert all(map(math.isfinite, found))
        json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("make", MAKERS)
def test_rows_without_a_row_id_are_refused(make: Any) -> None:
    reranker = weighted() if make is recent else make()
    bare = rows().append_column("_distance", pa.array(np.zeros(len(ROWS)), pa.float32()))
    with pytest.raises(ValueError, match=r"'_rowid'.*with_row_id"):
        reranker.rerank_hybrid("q", bare, bare.slice(0, 0))


@pytest.mark.parametrize("make", MAKERS)
def test_an_unknown_return_score_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="relevance"):
        make("some")


def test_the_names_show_in_the_plan(table: Any) -> None:
    named = FilteredReranker(WeightedReranker(0.25), pc.field("year") > 0)
    assert "FilteredReranker(WeightedReranker(vector_weight=0.25))" in str(named)
    assert str(named) in hybrid(table, named).explain_plan()
    assert "OverlapScorer" in str(crossed())
    assert "date" in str(recent())


def test_importing_the_package_imports_no_lancedb() -> None:
    code = "import lance_rerankers, sys; sys.exit('lancedb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_of_the_package_is_an_error() -> None:
    import lance_rerankers

    assert "WeightedReranker" in dir(lance_rerankers)
    with pytest.raises(AttributeError, match="'Other'"):
        _ = lance_rerankers.Other


# WeightedReranker


def test_each_side_is_moved_to_0_to_1_and_weighed() -> None:
    vector = side("_distance", (1, 0.5), (2, 1.0), (3, 2.5))  # similarity 1, 0.75, 0
    fts = side("_score", (3, 9.0), (4, 5.0), (2, 1.0))  # 1, 0.5, 0
    found = relevance(WeightedReranker(0.25).rerank_hybrid("q", vector, fts))
    assert found == pytest.approx({"r3": 0.75, "r4": 0.375, "r1": 0.25, "r2": 0.1875})
    assert list(found) == ["r3", "r4", "r1", "r2"]


def test_the_weights_of_the_ends_are_one_side_alone() -> None:
    vector = side("_distance", (1, 0.0), (2, 1.0), (3, 2.0))
    fts = side("_score", (3, 9.0), (2, 5.0), (1, 1.0))
    assert ids(WeightedReranker(1).rerank_hybrid("q", vector, fts)) == ["r1", "r2", "r3"]
    assert ids(WeightedReranker(0).rerank_hybrid("q", vector, fts)) == ["r3", "r2", "r1"]


def test_equal_scores_become_1_as_a_found_row_beats_one_that_was_not() -> None:
    vector = side("_distance", (1, 0.3), (2, 0.3))
    found = relevance(weighted().rerank_hybrid("q", vector, side("_score", (2, 0.0))))
    assert found == {"r2": 1.0, "r1": 0.5}


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_finite_number_counts_as_not_found(bad: float | None) -> None:
    vector = side("_distance", (1, bad), (2, 4.0), (3, 2.0))
    found = relevance(weighted().rerank_hybrid("q", vector, side("_score")))
    assert found == {"r3": 0.5, "r1": 0.0, "r2": 0.0}


def test_scores_at_the_ends_of_float32_do_not_overflow() -> None:
    high = 3e38
    fts = side("_score", (1, high), (2, 0.0), (3, -high))
    found = relevance(WeightedReranker(0).rerank_hybrid("q", side("_distance"), fts))
    assert found == pytest.approx({"r1": 1.0, "r2": 0.5, "r3": 0.0})


def test_a_row_twice_on_one_side_counts_once_at_its_first() -> None:
    vector = side("_distance", (1, 0.0), (1, 3.0), (2, 4.0))
    found = relevance(WeightedReranker(1).rerank_hybrid("q", vector, side("_score")))
    assert found == {"r1": 1.0, "r2": 0.0}


def test_it_orders_what_lancedb_found_as_worked_out_by_hand(table: Any) -> None:
    # Similarity from the squares 0, 1, 4, 9, 16; BM25 finds pump (twice "heron") above heron.
    found = relevance(hybrid(table, weighted()).to_arrow())
    wanted = {"kite": 1.0, "pump": 0.75 + 1.0, "heron": 15 / 16, "none": 7 / 16, "owl": 0.0}
    assert found == pytest.approx({id: value / 2 for id, value in wanted.items()})


@given(
    st.dictionaries(st.integers(2, 9), st.integers(0, 64), max_size=8),
    st.dictionaries(st.integers(4, 11), st.integers(0, 64), max_size=8),
    st.sampled_from([0.25, 0.5, 0.75]),
)
@settings(max_examples=40)
def test_two_full_lists_fuse_as_by_lancedbs_linear_combination(
    vector: dict[int, int], fts: dict[int, int], weight: float
) -> None:
    # In 64ths, which floats hold exactly, and from 0 to 1 already, as LanceDB hands them over.
    sides = [
        side(name, *((number, value / 64) for number, value in {**ends, **found}.items()))
        for name, ends, found in (
            ("_distance", {0: 0, 1: 64}, vector),
            ("_score", {12: 64, 13: 0}, fts),
        )
    ]
    ours = WeightedReranker(weight).rerank_hybrid("q", *sides)
    theirs = LinearCombinationReranker(weight).rerank_hybrid("q", *sides)
    assert relevance(ours) == pytest.approx(relevance(theirs))


def test_the_one_row_that_the_words_found_counts_which_lancedb_gives_0() -> None:
    sides = side("_distance", (1, 0.0), (2, 1.0)), side("_score", (2, 0.0))
    assert relevance(weighted().rerank_hybrid("q", *sides)) == {"r1": 0.5, "r2": 0.5}
    theirs = LinearCombinationReranker(0.5).rerank_hybrid("q", *sides)
    assert relevance(theirs) == {"r1": 0.5, "r2": 0.0}


def test_ranks_in_the_place_of_scores_work_too(table: Any) -> None:
    query = table.search(query_type="hybrid").vector([0.0, 0.0]).text("heron").limit(5)
    found = relevance(query.rerank(weighted(), normalize="rank").to_arrow())
    assert found["pump"] == pytest.approx((0.5 + 1) / 2)


@pytest.mark.parametrize("search", ["vector", "fts"])
def test_the_weighted_one_says_that_it_needs_both_sides(search: str, table: Any) -> None:
    wanted = rf"WeightedReranker does not support rerank_{search}.*rerank_hybrid only.*hybrid"
    with pytest.raises(NotImplementedError, match=wanted):
        SEARCHES[search](table, weighted()).to_arrow()


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan, True, "0.5", None])
def test_a_weight_out_of_range_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="vector_weight must be a number from 0 to 1"):
        WeightedReranker(weight)


# CrossEncoderReranker


@pytest.mark.parametrize("search", SEARCHES)
def test_the_model_decides_the_order(search: str, table: Any) -> None:
    scores = {"blue heron in shallow water": 3.0, "heron heron pump seal kit": -2.0}
    encoder = Lookup(scores, default=-9.0)
    found = relevance(SEARCHES[search](table, CrossEncoderReranker(encoder)).to_arrow())
    assert list(found)[:2] == ["heron", "pump"]
    assert (found["heron"], found["pump"]) == (3.0, -2.0)
    assert {question for call in encoder.calls for question, _ in call} == {"heron"}


def test_a_row_that_both_sides_found_is_scored_once(table: Any) -> None:
    encoder = Lookup()
    hybrid(table, CrossEncoderReranker(encoder)).to_arrow()
    (call,) = encoder.calls
    assert len(call) == len(set(call)) == 4  # the row without text is not asked about


def test_pairs_go_to_the_model_in_batches(table: Any) -> None:
    encoder = Lookup()
    one_call, batches = Lookup(), CrossEncoderReranker(encoder, batch_size=3)
    result = vectors(table, batches).to_arrow()
    assert [len(call) for call in encoder.calls] == [3, 1]
    assert result == vectors(table, CrossEncoderReranker(one_call)).to_arrow()


@pytest.mark.parametrize("lowest", [-5.0, 0.0, 7.0, -sys.float_info.max])
def test_a_row_without_text_comes_last_whatever_the_model_would_say(
    lowest: float, table: Any
) -> None:
    result = vectors(table, CrossEncoderReranker(Lookup(default=lowest))).to_arrow()
    assert ids(result) == ["kite", "heron", "pump", "owl", "none"]
    limit = float(np.finfo(np.float32).max)
    assert relevance(result)["none"] == max(lowest, -limit)


def test_rows_that_all_lack_text_get_0_without_calling_the_model(table: Any) -> None:
    encoder = Lookup()
    result = vectors(table, CrossEncoderReranker(encoder)).where("text IS NULL").to_arrow()
    assert relevance(result) == {"none": 0.0}
    assert encoder.calls == []


def test_scores_too_large_for_float32_keep_their_order(table: Any) -> None:
    scores = {"owl at night": 1e300, "red kite over open fields": 1e299}
    found = relevance(vectors(table, CrossEncoderReranker(Lookup(scores))).to_arrow())
    assert list(found)[:2] == ["owl", "kite"]
    assert found["owl"] == found["kite"] == float(np.finfo(np.float32).max)


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, [0.1, 0.9]])
def test_a_score_that_is_no_finite_number_is_refused(bad: Any, table: Any) -> None:
    with pytest.raises(ValueError, match="Lookup"):
        vectors(table, CrossEncoderReranker(Lookup(default=bad))).to_arrow()


def test_too_few_scores_are_refused(table: Any) -> None:
    class Short(BaseCrossEncoder):
        def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
            return [0.0]

    with pytest.raises(ValueError, match="Short returned 1 scores for 4 texts"):
        vectors(table, CrossEncoderReranker(Short())).to_arrow()


def test_the_text_may_be_in_a_field_of_a_column(table: Any) -> None:
    nested = CrossEncoderReranker(OverlapScorer(), column="metadata.text")
    assert hybrid(table, nested).to_arrow() == hybrid(table, crossed()).to_arrow()


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
)
def test_text_may_have_any_of_arrows_types(kind: pa.DataType) -> None:
    texts = pa.array(["b", None, "a"], pa.string()).cast(kind)
    found = side("_distance", (1, 0.0), (2, 0.1), (3, 0.2), text=texts)
    result = CrossEncoderReranker(Lookup({"a": 1.0})).rerank_vector("q", found)
    assert ids(result) == ["r3", "r1", "r2"]


@pytest.mark.parametrize(
    ("column", "message"),
    [("body", "no column 'body'.*id, text"), ("metadata.body", "no column"), ("year", "int64")],
)
def test_a_column_that_is_missing_or_no_text_is_refused(
    column: str, message: str, table: Any
) -> None:
    with pytest.raises(ValueError, match=message):
        vectors(table, CrossEncoderReranker(OverlapScorer(), column)).to_arrow()


def test_a_query_object_of_the_full_text_search_says_its_text(table: Any) -> None:
    encoder = Lookup()
    query = table.search(MatchQuery("heron", "text"), query_type="fts").limit(5)
    query.rerank(CrossEncoderReranker(encoder)).to_arrow()
    assert {question for question, _ in encoder.calls[0]} == {"heron"}


def test_a_question_that_is_no_text_is_refused(table: Any) -> None:
    results = table.search([0.0, 0.0]).to_arrow()
    with pytest.raises(TypeError, match=r"NoneType.*query_string"):
        crossed().rerank_vector(None, results)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="blank"):
        vectors(table, crossed(), " ").to_arrow()


def test_results_of_several_vectors_are_scored_together(table: Any) -> None:
    searches = [table.search([x, 0.0]).limit(2).with_row_id(True) for x in (0.0, 4.0)]
    result = crossed().rerank_multivector(searches, "owl at night", deduplicate=True)
    assert ids(result) == ["owl", "kite", "heron", "none"]
    twice = [table.search([0.0, 0.0]).limit(2).with_row_id(True).to_arrow()] * 2
    assert ids(crossed().rerank_multivector(twice, "kite", deduplicate=True)) == ["kite", "heron"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"cross_encoder": "BAAI/bge-reranker-base"}, TypeError, "HuggingFaceCrossEncoder"),
        ({"column": ""}, ValueError, "column"),
        ({"batch_size": 0}, ValueError, "batch_size .* 0"),
        ({"batch_size": 1.5}, ValueError, "batch_size"),
        ({"batch_size": True}, ValueError, "batch_size"),
    ],
)
def test_unfit_arguments_of_the_cross_encoder_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        CrossEncoderReranker(**{"cross_encoder": OverlapScorer(), **arguments})


@pytest.mark.parametrize("asynchronous", [True, False])
def test_in_a_thread_the_event_loop_stays_free(asynchronous: bool, folder: Path) -> None:
    reranker = CrossEncoderReranker(Slow())

    async def ask() -> tuple[pa.Table, int]:
        if asynchronous:
            table = await (await lancedb.connect_async(folder)).open_table("birds")
            query: Any = table.query().nearest_to([0.0, 0.0]).nearest_to_text("heron")
            query = query.limit(5).rerank(reranker)
        else:
            query = hybrid(lancedb.connect(folder).open_table("birds"), reranker)
        task, ticks = asyncio.create_task(to_arrow_in_thread(query)), 0
        while not task.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return await task, ticks

    result, ticks = asyncio.run(ask())
    assert ticks >= 5  # LanceDB alone stops the loop for all of the model's 0.2 s
    assert result.num_rows == 5


def test_an_error_in_a_thread_reaches_the_caller(table: Any) -> None:
    with pytest.raises(NotImplementedError, match="WeightedReranker"):
        asyncio.run(to_arrow_in_thread(vectors(table, weighted())))


# FilteredReranker


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "predicate", [lambda row: row["year"] == 2022, pc.field("year") == 2022], ids=["row", "arrow"]
)
def test_rows_are_dropped_before_the_model_sees_them(
    predicate: Any, search: str, table: Any
) -> None:
    encoder = Lookup()
    reranker = FilteredReranker(CrossEncoderReranker(encoder), predicate)
    assert ids(SEARCHES[search](table, reranker).to_arrow()) == ["pump"]
    assert encoder.calls == [[("heron", "heron heron pump seal kit")]]


def test_null_is_no_in_an_expression(table: Any) -> None:
    reranker = FilteredReranker(RRFReranker(), pc.field("year") != 2020)
    assert set(ids(hybrid(table, reranker).to_arrow())) == {"heron", "pump", "none"}


def test_what_is_dropped_has_no_influence_on_the_scores_of_the_others(table: Any) -> None:
    reranker = FilteredReranker(weighted(), lambda row: row["id"] in ("heron", "owl"))
    assert relevance(hybrid(table, reranker).to_arrow()) == {"heron": 1.0, "owl": 0.0}


def test_a_predicate_sees_the_columns_of_the_table_alone(table: Any) -> None:
    seen: list[set[str]] = []

    def predicate(row: dict[str, Any]) -> bool:
        seen.append(set(row))
        return "heron" in row["metadata"]["tags"]

    result = hybrid(table, FilteredReranker(weighted("all"), predicate)).to_arrow()
    assert ids(result) == ["heron"]
    assert all(names == {*NAMES, "_rowid"} for names in seen)
    with pytest.raises(ValueError, match="_distance"):
        hybrid(table, FilteredReranker(weighted(), pc.field("_distance") < 1)).to_arrow()


@pytest.mark.parametrize(
    "inner",
    [RRFReranker(), LinearCombinationReranker(), MRRReranker(), weighted(), recent(), crossed()],
    ids=str,
)
def test_it_wraps_lancedbs_rerankers_and_ours(inner: Reranker, table: Any) -> None:
    def keep(row: dict[str, Any]) -> bool:
        return row["id"] in ("pump", "owl")

    some = hybrid(table, FilteredReranker(inner, keep)).to_arrow()
    assert set(ids(some)) == {"pump", "owl"}
    none = hybrid(table, FilteredReranker(inner, lambda row: False)).to_arrow()
    assert none.num_rows == 0
    assert none.schema == some.schema


def test_with_nothing_left_the_model_is_not_called(table: Any) -> None:
    encoder = Lookup()
    reranker = FilteredReranker(CrossEncoderReranker(encoder), lambda row: False)
    for search in SEARCHES.values():
        assert search(table, reranker).to_arrow().num_rows == 0
    assert encoder.calls == []


def test_it_supports_what_the_reranker_inside_does(table: Any) -> None:
    with pytest.raises(NotImplementedError, match="WeightedReranker does not support rerank_fts"):
        words(table, FilteredReranker(weighted(), lambda row: True)).to_arrow()


def test_filters_nest(table: Any) -> None:
    inner = FilteredReranker(crossed(), pc.field("year") >= 2021)
    outer = FilteredReranker(inner, lambda row: row["id"] != "none")
    assert set(ids(hybrid(table, outer).to_arrow())) == {"heron", "pump"}


def test_a_predicate_that_answers_something_else_lets_nothing_through(table: Any) -> None:
    async def allowed(row: dict[str, Any]) -> bool:
        return False

    promise = allowed({})
    for answer in (None, "no", [0], 1, promise):
        reranker = FilteredReranker(weighted(), lambda row, answer=answer: answer)
        with pytest.raises(TypeError, match="predicate must return True or False, it returned"):
            hybrid(table, reranker).to_arrow()
    promise.close()


def test_an_answer_of_numpy_will_do(table: Any) -> None:
    reranker = FilteredReranker(weighted(), lambda row: np.float32(row["vector"][0]) > 1)
    assert set(ids(hybrid(table, reranker).to_arrow())) == {"pump", "none", "owl"}


def test_the_scores_are_those_of_the_reranker_inside() -> None:
    assert FilteredReranker(weighted("all"), lambda row: True).score == "all"
    assert FilteredReranker(weighted("all"), lambda row: True, "all").score == "all"
    with pytest.raises(ValueError, match=r"'all'.*WeightedReranker.*'relevance'"):
        FilteredReranker(weighted(), lambda row: True, "all")


@pytest.mark.parametrize(
    ("reranker", "predicate", "message"),
    [
        (WeightedReranker, lambda row: True, "instance of lancedb.rerankers.Reranker"),
        (WeightedReranker(), "year > 2020", r"predicate.*where"),
        (WeightedReranker(), None, "predicate"),
    ],
)
def test_what_is_no_reranker_or_predicate_is_refused(
    reranker: Any, predicate: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        FilteredReranker(reranker, predicate)


# RecencyReranker


def dated(*dates: Any, kind: pa.DataType | None = None) -> pa.Table:
    found = [(number, 1.0) for number in range(len(dates))]
    return side("_score", *found, date=pa.array(dates, kind))


def test_a_half_life_halves_and_the_relevance_is_weighed_in(table: Any) -> None:
    # All equally relevant; half-life 30 days: the ages are 30, 60 and 0 days, none, the future.
    reranker = RecencyReranker(
        reranker=CrossEncoderReranker(Lookup()), clock=clock, recency_weight=0.8
    )
    found = relevance(vectors(table, reranker).where("text IS NOT NULL").to_arrow())
    recency = {"pump": 1.0, "owl": 1.0, "kite": 0.5, "heron": 0.25}
    assert found == pytest.approx({id: 0.8 * value + 0.2 for id, value in recency.items()})
    assert list(found) == list(recency)


@pytest.mark.parametrize("search", SEARCHES)
def test_the_ends_are_relevance_alone_and_date_alone(search: str, table: Any) -> None:
    def order(weight: float) -> list[str]:
        reranker = RecencyReranker(recency_weight=weight, clock=clock)
        return ids(SEARCHES[search](table, reranker).to_arrow())

    plain = {
        "hybrid": lambda: hybrid(table, RRFReranker()),
        "vector": lambda: table.search([0.0, 0.0]).limit(5),
        "fts": lambda: table.search("heron", query_type="fts").limit(5),
    }
    assert order(0) == ids(plain[search]().to_arrow())
    recency = {"pump": 0, "owl": 0, "kite": -1, "heron": -2, "none": -3}
    assert order(1) == sorted(order(0), key=recency.__getitem__, reverse=True)


def test_a_row_without_a_date_is_infinitely_old() -> None:
    found = relevance(RecencyReranker(clock=clock).rerank_fts("q", dated(None, NOW)))
    assert found == {"r1": 1.0, "r0": 0.5}


MOMENT = datetime(2026, 10, 31, 12, 30, tzinfo=UTC)
DAY = date(2026, 10, 31)


@pytest.mark.parametrize(
    ("value", "kind", "moment"),
    [
        *((MOMENT, pa.timestamp(unit, zone), MOMENT) for unit in ("s", "ms", "us", "ns")
          for zone in ("UTC", "Europe/Berlin")),
        (MOMENT.replace(tzinfo=None), pa.timestamp("us"), MOMENT),
        (DAY, pa.date32(), datetime(2026, 10, 31, tzinfo=UTC)),
        (DAY, pa.date64(), datetime(2026, 10, 31, tzinfo=UTC)),
        ("2026-10-31", pa.string(), datetime(2026, 10, 31, tzinfo=UTC)),
        ("2026-10-31T12:30:00Z", pa.large_string(), MOMENT),
        ("2026-10-31T14:30:00+02:00", pa.string(), MOMENT),
        (int(MOMENT.timestamp()), pa.int64(), MOMENT),
        (MOMENT.timestamp(), pa.float64(), MOMENT),
    ],
)  # fmt: skip
def test_every_kind_of_date_is_the_same_moment(value: Any, kind: Any, moment: datetime) -> None:
    reranker = RecencyReranker(clock=clock, recency_weight=1, half_life=timedelta(days=7))
    found = relevance(reranker.rerank_fts("q", dated(value, None, kind=kind)))
    wanted = 0.5 ** ((NOW - moment) / timedelta(days=7))
    assert found == pytest.approx({"r0": wanted, "r1": 0.0})


def test_dates_in_a_dictionary_column_are_read() -> None:
    column = pa.array(["2026-11-30", "2020-01-01", None]).dictionary_encode()
    found = side("_score", (0, 1.0), (1, 1.0), (2, 1.0), date=column)
    result = RecencyReranker(clock=clock, recency_weight=1).rerank_fts("q", found)
    assert ids(result) == ["r0", "r1", "r2"]


def test_dates_that_python_cannot_hold_are_old_or_in_the_future() -> None:
    far = pa.array([-(10**14), 10**14], pa.int64()).cast(pa.timestamp("s"))
    found = side("_score", (0, 1.0), (1, 1.0), date=far)
    result = RecencyReranker(clock=clock, recency_weight=1).rerank_fts("q", found)
    assert relevance(result) == {"r1": 1.0, "r0": 0.0}


def test_a_column_without_any_date_leaves_the_order() -> None:
    reranker = RecencyReranker(clock=clock)
    assert ids(reranker.rerank_fts("q", dated(None, "", kind=pa.string()))) == ["r0", "r1"]
    assert ids(reranker.rerank_fts("q", dated(None, None, kind=pa.null()))) == ["r0", "r1"]


@given(st.lists(st.dates(date(1900, 1, 1), date(2100, 1, 1)), max_size=6))
@settings(max_examples=40)
def test_by_date_alone_the_newest_come_first_and_the_future_is_now(days: list[date]) -> None:
    decade = timedelta(days=3650)
    reranker = RecencyReranker(clock=clock, recency_weight=1, half_life=decade)
    order = [int(id[1:]) for id in ids(reranker.rerank_fts("q", dated(*days, kind=pa.date32())))]
    assert order == sorted(range(len(days)), key=lambda n: min(days[n], NOW.date()), reverse=True)


@pytest.mark.parametrize("bad", ["yesterday", 1_700_000_000_000, True])
def test_what_is_no_date_is_refused_with_its_column(bad: Any) -> None:
    with pytest.raises(ValueError, match="Not a date") as caught:
        RecencyReranker(clock=clock).rerank_fts("q", dated(bad))
    assert "'date'" in "".join(caught.value.__notes__)


def test_a_missing_date_column_is_named(table: Any) -> None:
    with pytest.raises(ValueError, match=r"no column 'written'.*year, date"):
        vectors(table, RecencyReranker("written")).to_arrow()


def test_a_clock_in_any_zone_will_do() -> None:
    zones = [
        lambda: NOW,
        lambda: NOW.replace(tzinfo=None),
        lambda: NOW.astimezone(timezone(timedelta(hours=5))),
    ]
    found = [RecencyReranker(clock=zone).rerank_fts("q", dated(MOMENT)) for zone in zones]
    assert found[0] == found[1] == found[2]


def test_the_present_is_the_default_clock() -> None:
    found = relevance(RecencyReranker(recency_weight=1).rerank_fts("q", dated(datetime.now(UTC))))
    assert found["r0"] == pytest.approx(1.0, abs=1e-3)


def test_recency_of_a_filtered_weighted_search(table: Any) -> None:
    keep = FilteredReranker(weighted("all"), pc.field("year") >= 2021)
    result = hybrid(table, RecencyReranker(reranker=keep, clock=clock)).to_arrow()
    assert ids(result)[0] == "pump"
    assert {"_distance", "_score"} < set(result.column_names)


def test_the_first_stage_of_a_hybrid_search_is_lancedbs_own(table: Any) -> None:
    implicit = hybrid(table, RecencyReranker(clock=clock)).to_arrow()
    explicit = hybrid(table, RecencyReranker(clock=clock, reranker=RRFReranker())).to_arrow()
    assert implicit == explicit


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"date_column": None}, ValueError, "date_column"),
        ({"half_life": 30}, ValueError, r"half_life.*timedelta\(days=30\)"),
        ({"half_life": timedelta(0)}, ValueError, "half_life"),
        ({"recency_weight": 2}, ValueError, "recency_weight"),
        ({"reranker": RRFReranker}, TypeError, "reranker must be an instance"),
        ({"reranker": RRFReranker(), "return_score": "all"}, ValueError, "RRFReranker"),
        ({"clock": NOW}, TypeError, "clock"),
    ],
)
def test_unfit_arguments_of_recency_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        RecencyReranker(**arguments)


# The benchmark


def test_the_benchmark_gives_inside_and_outside_the_same_lists(tmp_path: Path) -> None:
    import lance_quality

    documents = [doc("red kite", "a"), doc("blue heron", "b"), doc("blue kite nest", "c")]
    queries = {"q1": "red kite", "q2": "blue swan"}
    collection = Collection(
        name="birds", documents=documents, queries=queries, qrels={"q1": {"a": 1}, "q2": {"b": 2}}
    )
    vectors = {"red kite": [1.0, 0.0], "blue heron": [0.0, 1.0], "blue kite nest": [0.6, 0.8]}
    vectors["blue swan"] = [0.1, 0.9]
    table = lance_quality.build_table(str(tmp_path), documents, vectors)
    methods = lance_quality.make_methods(table, documents, vectors, OverlapScorer())
    found = {row["method"]: row for row in lance_quality.measure(methods, collection)}
    pairs = {
        lance_quality.BASELINE: "RRFEnsembleRetriever",
        "inside: WeightedReranker": "ScoreFusionRetriever",
        "inside: CrossEncoderReranker": "RerankRetriever",
    }
    for inside, outside in pairs.items():
        other = f"outside, LanceDB's lists: {outside}"
        assert methods[inside]("blue swan") == methods[other]("blue swan")
        assert found[inside]["nDCG@10"] == found[other]["nDCG@10"]
    assert found[lance_quality.BASELINE]["against baseline"]["difference"] == 0

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings, FakeEmbeddings

from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.lance import LanceRetriever
from retrievers.lance_table import LanceError, open_table, unindexed_rows, update_indexes
from retrievers.rerank import RerankRetriever
from scale import index, search, vector_index
from scale.command_line import ingested_models
from scale.recall import (
    Measured,
    cheapest,
    measure,
    probes,
    sampled_queries,
    save_search,
    saved_search,
)
from scale.vector_index import (
    KINDS,
    PAYS_FROM,
    build_indexes,
    plan_vector_index,
    read_note,
    write_note,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import lance_commits

SCRIPTS = Path(__file__).parents[1] / "source-code" / "scale"
DIMENSION = 16
GROUPS = 8
ROWS = 256 * GROUPS


def vector_of(number: int) -> np.ndarray[Any, Any]:
    """A vector near one of eight axes, so that groups of similar vectors are plain."""
    noise = np.random.default_rng(number).normal(0, 0.05, DIMENSION)
    noise[number % GROUPS] += 1
    return noise.astype(np.float32)


class Numbers(Embeddings):
    """Embeds "passage 7" as the vector of row 7."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [float(number) for number in vector_of(int(text.split()[-1]))]


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    flat = pa.array(np.concatenate([vector_of(number) for number in numbers]))
    columns = {
        "id": pa.array([f"d{number}" for number in numbers]),
        "text": pa.array([f"passage {number}" for number in numbers]),
        "vector": pa.FixedSizeListArray.from_arrays(flat, DIMENSION),
        "metadata": pa.array(["{}"] * count),
    }
    return pa.table(columns)


def made(folder: Path, count: int) -> Any:
    lancedb.connect(folder).create_table("documents", rows(0, count))
    return open_table(folder, "documents")


def quiet(_: str) -> None:
    pass


def built(table: Any, **options: Any) -> Any:
    options = {"pays_from": 300, "partitions": GROUPS, "sub_vectors": 8, "say": quiet} | options
    return build_indexes(table, **options)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    table = made(tmp_path_factory.mktemp("indexed"), ROWS)
    built(table)
    return table


# Which index


def test_a_partition_is_trained_on_256_rows_or_more() -> None:
    assert plan_vector_index(600, 384, pays_from=1, partitions=8).options["num_partitions"] == 2


@given(
    rows=st.integers(PAYS_FROM, 10**9),
    dimension=st.integers(1, 4096),
    kind=st.sampled_from(list(KINDS)),
)
def test_a_plan_suits_the_table(rows: int, dimension: int, kind: str) -> None:
    plan = plan_vector_index(rows, dimension, kind)

    assert plan.kind == kind
    assert 1 <= plan.options["num_partitions"] <= rows
    assert 4096 <= rows / plan.options["num_partitions"] < 4096 * 2
    if kind == "ivf-pq":
        assert dimension % plan.options["num_sub_vectors"] == 0
        assert plan.options["num_sub_vectors"] <= max(1, dimension / 8)


def test_a_vector_of_384_numbers_is_kept_in_48_bytes() -> None:
    plan = plan_vector_index(1_000_000, 384)

    assert plan.options == {"num_partitions": 244, "num_sub_vectors": 48, "max_iterations": 25}
    assert plan.reason == "ivf-pq, 244 partitions of about 4,098 rows, 48 bytes a vector"


def test_below_100000_rows_no_vector_index_pays() -> None:
    assert plan_vector_index(99_999, 384).kind == ""
    assert "99,999 rows need no vector index" in plan_vector_index(99_999, 384).reason
    assert plan_vector_index(100_000, 384).kind == "ivf-pq"


def test_a_vector_index_is_not_trained_on_too_few_rows_whatever_is_asked() -> None:
    plan = plan_vector_index(255, 384, pays_from=1)

    assert plan.kind == ""
    assert "255 rows are too few for a vector index" in plan.reason
    assert plan_vector_index(256, 384, pays_from=1).kind == "ivf-pq"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "pq"}, "kind must be one of ivf-pq, .* got 'pq'"),
        ({"sub_vectors": 100}, "must divide the 384 numbers of a vector, got 100. 96 does"),
        ({"sub_vectors": 0}, "sub_vectors must be"),
        ({"partitions": 0}, "partitions must be"),
        ({"kind": "ivf-sq", "sub_vectors": 48}, "sub_vectors is for ivf-pq only"),
    ],
)
def test_a_plan_says_what_does_not_suit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_vector_index(1_000_000, 384, **options)


# Building


def test_building_again_takes_in_new_rows_only(tmp_path: Path) -> None:
    table = made(tmp_path, 600)
    built(table)
    before = {i.name: i.index_uuid for i in table.list_indices()}
    table.add(rows(600, 50))
    assert set(unindexed_rows(table).values()) == {50}

    said: list[str] = []
    built(table, say=said.append)

    assert set(before) == {"text_idx", "vector_idx"}
    assert unindexed_rows(table) == {"text_idx": 0, "vector_idx": 0}
    assert "The vector index, ivf-pq, is up to date." in said
    assert not [line for line in said if line.startswith("Building")]
    retriever = LanceRetriever(table=table, embeddings=Numbers(), k=1)
    assert retriever.invoke("passage 640")[0].id == "d640"


def test_building_again_without_new_rows_changes_nothing(indexed: Any) -> None:
    built(indexed)  # LanceDB writes an index once more when it first optimizes it
    before = indexed.version, [i.index_uuid for i in indexed.list_indices()]

    plan = built(indexed)

    assert (indexed.version, [i.index_uuid for i in indexed.list_indices()]) == before
    assert (plan.kind, plan.options["num_partitions"]) == ("ivf-pq", GROUPS)


def test_another_kind_replaces_the_vector_index(tmp_path: Path) -> None:
    table = made(tmp_path, 600)
    built(table, kind="ivf-flat", sub_vectors=None)

    built(table, kind="ivf-sq", sub_vectors=None)

    kinds = [i.index_type for i in table.list_indices() if i.columns == ["vector"]]
    assert kinds == ["IvfSq"]


def test_a_small_table_gets_a_full_text_index_only(tmp_path: Path) -> None:
    table = made(tmp_path, 20)
    said: list[str] = []

    plan = build_indexes(table, say=said.append)

    assert plan.kind == ""
    assert [i.columns for i in table.list_indices()] == [["text"]]
    assert "20 rows are too few" in said[-1]


def test_rebuilding_drops_a_vector_index_that_no_longer_pays(tmp_path: Path) -> None:
    table = made(tmp_path, 600)
    built(table, kind="ivf-flat", sub_vectors=None)

    build_indexes(table, rebuild=True, say=quiet)

    assert [i.columns for i in table.list_indices()] == [["text"]]


def test_a_table_without_vectors_is_refused(tmp_path: Path) -> None:
    table = lancedb.connect(tmp_path).create_table("words", [{"id": "a", "text": "word"}])

    with pytest.raises(LanceError, match=r"no column 'vector'.*columns are id, text"):
        build_indexes(table, say=quiet)


def test_many_commits_leave_one_file_after_building(tmp_path: Path) -> None:
    table = made(tmp_path, 300)
    for number in range(30):
        table.add(rows(300 + number, 1))
    folder = tmp_path / "documents.lance"
    assert len(list(folder.glob("data/*"))) == 31
    assert len(list(folder.glob("_versions/*.manifest"))) == 31

    with pytest.warns(UserWarning, match="removes every version except the latest"):
        built(table, pays_from=PAYS_FROM, keep=timedelta(0))

    assert len(list(folder.glob("data/*.lance"))) == 1
    assert len(list(folder.glob("_versions/*.manifest"))) <= 3
    assert table.count_rows() == 330


def test_what_a_commit_replaced_stays_for_those_who_read_it(tmp_path: Path) -> None:
    table = made(tmp_path, 300)
    table.add(rows(300, 1))
    reader = lancedb.connect(tmp_path).open_table("documents")  # stays at its version

    built(table, pays_from=PAYS_FROM)

    assert reader.count_rows() == 301
    assert reader.version < table.version


def test_a_change_that_meets_another_commit_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path, 20)
    faults = [LanceError("Commit conflict for version 3."), LanceError("Commit conflict.")]

    def update(table: Any, *, keep: timedelta) -> None:
        if faults:
            raise faults.pop()
        update_indexes(table, keep=keep)

    monkeypatch.setattr(vector_index, "update_indexes", update)
    build_indexes(table, say=quiet)
    assert not faults

    faults[:] = [LanceError("The disk is full.")]
    with pytest.raises(LanceError, match="The disk is full"):
        build_indexes(table, say=quiet)
    faults[:] = [LanceError("Commit conflict.")] * 5
    with pytest.raises(LanceError, match="Commit conflict"):
        build_indexes(table, say=quiet)


def test_keep_is_not_negative(indexed: Any) -> None:
    with pytest.raises(ValueError, match="keep must not be negative"):
        update_indexes(indexed, keep=timedelta(seconds=-1))


# Recall


def by_hand(queries: list[np.ndarray[Any, Any]], own: list[int | None], k: int) -> list[set[str]]:
    everything = np.stack([vector_of(number) for number in range(ROWS)])
    everything /= np.linalg.norm(everything, axis=1, keepdims=True)
    nearest = []
    for query, number in zip(queries, own):
        scores = everything @ (query / np.linalg.norm(query))
        if number is not None:
            scores[number] = -np.inf
        nearest.append({f"d{row}" for row in np.argsort(-scores)[:k]})
    return nearest


def test_recall_is_the_share_of_the_exact_neighbours(indexed: Any) -> None:
    queries = [vector_of(number) + np.float32(0.02) for number in range(ROWS, ROWS + 12)]
    right = by_hand(queries, [None] * len(queries), 10)

    measured = measure(indexed, [query.tolist() for query in queries], GROUPS)

    assert (measured[0].nprobes, measured[0].recall) == (None, 1.0)
    for m in measured[1:]:
        hits = 0
        for query, expected in zip(queries, right):
            found = indexed.search(query.tolist()).distance_type("cosine").limit(10)
            found = found.nprobes(m.nprobes)
            if m.refine_factor is not None:
                found = found.refine_factor(m.refine_factor)
            hits += len(expected & {row["id"] for row in found.to_list()})
        assert m.recall == pytest.approx(hits / (10 * len(queries)))
    assert measured[-1].recall > measured[1].recall


def test_a_row_is_not_counted_as_its_own_neighbour(indexed: Any) -> None:
    sampled = sampled_queries(indexed, 15)
    own = [query.own for query in sampled]
    right = by_hand([np.array(query.vector) for query in sampled], own, 3)

    without_refining = measure(indexed, sampled, GROUPS, k=3)[1]

    hits = 0
    for query, expected in zip(sampled, right):
        found = indexed.search(query.vector).distance_type("cosine").limit(4).nprobes(1)
        ids = [row["id"] for row in found.to_list() if row["id"] != f"d{query.own}"][:3]
        hits += len(expected & set(ids))
    assert without_refining.recall == pytest.approx(hits / 45)
    assert 0 < hits < 45


def test_equal_rows_are_no_loss(tmp_path: Path) -> None:
    same = rows(0, 1)
    table = lancedb.connect(tmp_path).create_table("documents", pa.concat_tables([same] * 300))
    built(table, kind="ivf-flat", sub_vectors=None, partitions=1)

    measured = measure(table, sampled_queries(table, 5), 1)

    assert {m.recall for m in measured} == {1.0}


def test_sampled_queries_are_the_same_each_time_and_at_most_the_rows(indexed: Any) -> None:
    first, again = sampled_queries(indexed, 7), sampled_queries(indexed, 7)

    assert first == again
    assert len({query.own for query in first}) == 7
    assert len(sampled_queries(indexed, 10_000)) == ROWS


def test_measuring_needs_queries(indexed: Any) -> None:
    with pytest.raises(ValueError, match="nothing to measure with"):
        measure(indexed, [], GROUPS)


def test_probes_end_with_all_partitions() -> None:
    assert probes(0) == []
    assert probes(1) == [1]
    assert probes(12) == [1, 2, 5, 10, 12]
    assert probes(10_000) == [1, 2, 5, 10, 20, 50, 100, 200]


EXACT = Measured(None, None, 1.0, 0.1, 0.1)


def test_the_cheapest_setting_is_the_fastest_that_reaches_the_recall() -> None:
    few, more, most = (
        Measured(1, None, 0.94, 1.0, 2.0),
        Measured(5, 2, 0.95, 3.0, 9.0),
        Measured(20, 5, 0.99, 4.0, 5.0),
    )

    assert cheapest([EXACT, few, more, most]) == more
    assert cheapest([EXACT, few, more, most], 0.97) == most
    assert cheapest([EXACT, few, more, most], 0.995) is None
    assert cheapest([EXACT]) is None


def test_a_chosen_setting_is_used_by_the_retriever(tmp_path: Path) -> None:
    table = made(tmp_path, 20)
    assert saved_search(table) == {}

    save_search(table, {"nprobes": 5, "refine_factor": 2})

    retriever = LanceRetriever.open(
        tmp_path, "documents", Numbers(), mode="vector", **saved_search(table)
    )
    assert (retriever.nprobes, retriever.refine_factor) == (5, 2)
    assert retriever.invoke("passage 3", k=1)[0].id == "d3"
    save_search(table, {})
    assert saved_search(table) == {}


def test_notes_stay_beside_each_other_and_what_is_no_note_is_none(tmp_path: Path) -> None:
    table = made(tmp_path, 2)
    write_note(table, "scale.partitions", {"num_partitions": 7})
    save_search(table, {"nprobes": 3})
    assert read_note(table, "scale.partitions") == {"num_partitions": 7}

    for text in ("{", "[1]", '{"nprobes": "3"}', '{"nprobes": -1, "other": 2}'):
        update = {"path": "vector", "metadata": {"scale.search": text}}
        table.update_field_metadata(update)
        assert saved_search(table) == {}


# The scripts


def test_index_prints_what_it_does_and_the_setting_that_search_then_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, 600)
    command = [str(tmp_path), "--min-rows", "300", "--kind", "ivf-flat", "--partitions", "2"]

    index.main([*command, "--samples", "10", "--recall", "1"])

    printed = capsys.readouterr().out
    assert "has 600 rows with vectors of 16 numbers" in printed
    assert "Building the vector index: ivf-flat, 2 partitions of about 300 rows" in printed
    assert "The cheapest with a recall of at least 1: LanceRetriever.open(…, nprobes=" in printed
    chosen = saved_search(open_table(tmp_path, "documents"))
    assert chosen["nprobes"] >= 1
    args = search._arguments([str(tmp_path), "passage 9", "--kind", "fulltext"])
    assert search.open_retriever(args).nprobes == chosen["nprobes"]


def test_index_says_when_no_setting_reaches_the_recall() -> None:
    text = index.report([EXACT, Measured(1, 2, 0.5, 1.0, 1.0)], 10, 10, 0.9)

    assert "No setting reaches a recall of 0.9; the most is 0.500" in text


def test_index_of_a_small_table_measures_exact_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, 20)

    index.main([str(tmp_path), "--samples", "3"])

    printed = capsys.readouterr().out
    assert "20 rows are too few for a vector index" in printed
    assert printed.endswith("There is no vector index: every search is exact.\n")


def test_index_measures_with_questions_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "db", 20)
    questions = tmp_path / "questions.txt"
    questions.write_text("passage 1\n\npassage 2\n", "utf-8")
    monkeypatch.setattr(index, "model", lambda args: Numbers())

    index.main([str(tmp_path / "db"), "--questions", str(questions)])

    assert "Over 2 queries:" in capsys.readouterr().out


def test_search_prints_scores_ids_and_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_indexes(made(tmp_path, 20), say=quiet)
    monkeypatch.setattr(search, "model", lambda args: Numbers())
    for kind in search.MODES:
        search.main([str(tmp_path), "passage 3", "--kind", kind, "--k", "1"])

        question, found, *_ = capsys.readouterr().out.splitlines()
        assert question == "Q: passage 3"
        assert found.split(maxsplit=1)[1] == "d3  passage 3"
    search.main([str(tmp_path), "nowhere", "--kind", "fulltext"])
    assert "Nothing was found." in capsys.readouterr().out


def test_search_names_the_command_that_makes_the_index_of_words(tmp_path: Path) -> None:
    made(tmp_path, 20)

    with pytest.raises(SystemExit) as stopped:
        search.main([str(tmp_path), "passage 3"])

    assert f"source-code/scale/index.py {tmp_path}, or search with --kind dense" in str(
        stopped.value
    )


@pytest.mark.parametrize("script", [index, search])
def test_a_script_ends_with_one_sentence_where_there_is_no_table(
    script: Any, tmp_path: Path
) -> None:
    words = ["word"] if script is search else []
    with pytest.raises(SystemExit) as stopped:
        script.main([str(tmp_path / "no where"), *words, "--table", "mine"])
    cure = "Ingest into it first: source-code/scale/ingest.py CORPUS --to"
    assert str(stopped.value) == (
        f"Error: There is no folder {tmp_path / 'no where'}. Check the path. "
        f"{cure} '{tmp_path / 'no where'}' --table mine"
    )
    assert list(tmp_path.iterdir()) == []

    with pytest.raises(SystemExit) as stopped:
        script.main([str(tmp_path), *words])
    assert str(stopped.value) == (
        f"Error: The table 'documents' was not found in {tmp_path}. {cure} {tmp_path}"
    )


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_said_to_be_one(question: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        search.main([str(tmp_path), "word", question])
    assert stopped.value.code == "Error: The question is empty. Ask something."


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--k", "0"], "Error: --k must be a whole number of at least 1"),
        (["--samples", "-1"], "Error: --samples must be"),
        (["--questions", "nowhere.txt"], "nowhere.txt"),
        (["--questions", "BLANK"], "Error: There is no question in"),
        (["--questions", "LONG"], "Error: A vector has 3 dimensions and the column 'vector' has"),
        (["--device", "cpu", "--questions", "LONG"], "Error: --device is for --model"),
    ],
)
def test_what_cannot_be_measured_is_said_before_an_index_is_built(
    options: list[str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path / "db", 20)
    files = {"BLANK": tmp_path / "blank.txt", "LONG": tmp_path / "long.txt"}
    files["BLANK"].write_text("\n \n", "utf-8")
    files["LONG"].write_text("\ufeffpassage 1", "utf-8")
    if "--device" not in options:
        monkeypatch.setattr(index, "model", lambda args: FakeEmbeddings(size=3))
    with pytest.raises(SystemExit) as stopped:
        index.main([str(tmp_path / "db"), *(str(files.get(o, o)) for o in options)])
    assert fault in str(stopped.value)
    assert list(table.list_indices()) == []


@pytest.mark.parametrize(
    "options", [["--keep-hours", "inf"], ["--keep-hours", "nan"], ["--recall", "1.5"]]
)
def test_a_number_that_is_none_is_refused_with_the_usage(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        index.main(["db", *options])
    assert stopped.value.code == 2
    assert f"argument {options[0]}: must be" in capsys.readouterr().err


def test_no_samples_measure_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, 20)
    index.main([str(tmp_path), "--samples", "0"])
    assert capsys.readouterr().out.endswith("Nothing is measured.\n")


@pytest.mark.parametrize("option", ["--k", "--nprobes", "--refine-factor"])
def test_a_count_that_search_cannot_take_is_one_sentence(option: str, tmp_path: Path) -> None:
    made(tmp_path, 20)
    with pytest.raises(SystemExit) as stopped:
        search.main([str(tmp_path), "passage", "--kind", "fulltext", option, "0"])
    assert stopped.value.code == f"Error: {option} must be a whole number of at least 1, got 0."


def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    made(tmp_path, 20)
    nowhere = tmp_path / "no model"
    with pytest.raises(SystemExit) as stopped:
        search.main([str(tmp_path), "passage", "--kind", "dense", "--model", str(nowhere)])
    assert str(stopped.value).startswith("Error: The model could not be loaded: ")
    assert "\n" not in str(stopped.value)


def test_what_only_looks_like_settings_of_an_ingest_is_no_fault(tmp_path: Path) -> None:
    database = lancedb.connect(tmp_path)
    database.create_table("a_ingest", [{"settings": "{}"}])
    database.create_table("b_ingest", [{"other": "{}"}])
    assert [ingested_models(str(tmp_path), name) for name in ("a", "b", "c")] == [set()] * 3


def test_index_runs_as_a_file(tmp_path: Path) -> None:
    made(tmp_path, 20)
    command = [sys.executable, SCRIPTS / "index.py", tmp_path, "--samples", "2"]

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("There is no vector index: every search is exact.\n")


class Profile:
    """The model of a profile, which is called "numbers"."""

    embedding_model = "numbers"

    def embeddings(self) -> Embeddings:
        return Numbers()


@pytest.mark.parametrize(("ingested", "warned"), [("numbers", False), ("letters", True)])
def test_a_model_of_another_name_than_the_one_that_ingested_is_warned_of(
    ingested: str,
    warned: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made(tmp_path, 20)
    settings = [{"source": "corpus", "settings": json.dumps({"model": ingested})}]
    lancedb.connect(tmp_path).create_table("documents_ingest", settings)
    monkeypatch.setattr("ragbook.profiles.get_profile", lambda name: Profile())

    search.main([str(tmp_path), "passage 3", "--kind", "dense", "--k", "1"])

    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].endswith("d3  passage 3")
    expected = "Warning: letters embedded the rows, and numbers the question." if warned else ""
    assert printed.err.partition(" Unless")[0] == expected


# The retrievers around it need no change


class Last(BaseCrossEncoder):
    """A cross-encoder that prefers what comes last in the alphabet."""

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        order = sorted(text for _, text in text_pairs)
        return [float(order.index(text)) for _, text in text_pairs]


def test_other_retrievers_compose_with_it_as_with_any(indexed: Any) -> None:
    dense = LanceRetriever(
        table=indexed, embeddings=Numbers(), mode="vector", nprobes=GROUPS, refine_factor=10
    )
    words = LanceRetriever(table=indexed, mode="fts")
    both = RRFEnsembleRetriever(retrievers=[dense, words], top_n=3)
    reranked = RerankRetriever(base_retriever=dense, cross_encoder=Last(), top_n=2)

    best: Document = both.invoke("passage 11")[0]
    assert best.id == "d11"
    assert best.metadata["retrieved_by"] == ["dense", "bm25"]
    found = [document.page_content for document in dense.invoke("passage 11")]
    assert [d.page_content for d in reranked.invoke("passage 11")] == sorted(found)[:-3:-1]


# What commits leave


@pytest.mark.filterwarnings("ignore:optimize")
def test_lists_of_files_grow_faster_than_commits_and_deleting_leaves_one_file() -> None:
    *counted, merged, deleted = lance_commits.measure(commits=100, rows=2)

    few, many = counted[0], counted[-1]
    assert (few["when"], many["when"]) == ("10 commits", "100 commits")
    assert many["lists_mb"] > 20 * few["lists_mb"]
    assert merged["rows_mb"] > many["rows_mb"]
    assert deleted["files"] < 10
    assert deleted["lists_mb"] < many["lists_mb"] / 20

"""The explanation of one retrieval: as a tree that can be read, and as JSON lines."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from rich.console import Console

from helpers import FailingRetriever, ListRetriever, doc, texts
from ragbook.explain import Explanation, explain, json_lines, passages, tree
from retrievers.bm25 import BM25Retriever
from retrievers.cached import CachedRetriever
from retrievers.compression import ContextualCompressionRetriever
from retrievers.compressors import SentenceWindow
from retrievers.ensemble import RRFEnsembleRetriever
from retrievers.fallback import FallbackRetriever
from retrievers.feedback import FeedbackQueryRewriter
from retrievers.multi_query import MultiQueryRetriever
from retrievers.permission import PermissionFilteredRetriever
from retrievers.rerank import RerankRetriever

DOCUMENTS = [
    doc("otter otter", "first.txt#1"),
    doc("otter and beaver in the wide river", "second.txt#1"),
    doc("a beaver", "third.txt#1"),
]


class ByLength(BaseCrossEncoder):
    """Prefers long texts."""

    def score(self, text_pairs: Any) -> list[float]:
        return [float(len(text)) for _, text in text_pairs]


def dense(*ids: str) -> ListRetriever:
    """A search that finds these, as if by embeddings."""
    by_id = {document.id: document for document in DOCUMENTS}
    return ListRetriever(
        documents=[
            doc(by_id[name].page_content, name, retrieved_by=["dense"], dense_score=1 - n / 10)
            for n, name in enumerate(ids)
        ]
    )


def bm25() -> BM25Retriever:
    return BM25Retriever.from_documents(DOCUMENTS)


def hybrid() -> RRFEnsembleRetriever:
    searches = [dense("third.txt#1", "second.txt#1", "first.txt#1"), bm25()]
    return RRFEnsembleRetriever(retrievers=searches)


def stacked() -> RerankRetriever:
    return RerankRetriever(base_retriever=hybrid(), cross_encoder=ByLength())


def multi_query() -> MultiQueryRetriever:
    rewriter = RunnableLambda(lambda question: ["beaver", "river", "wide"])
    return MultiQueryRetriever(retriever=bm25(), llm=rewriter, fusion="rrf")


def shown(explanation: Explanation, width: int = 80, count: int = 5) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(tree(explanation, count))
    return console.file.getvalue()  # type: ignore[attr-defined]


def line_of(text: str, part: str) -> str:
    return " ".join(next(line for line in text.splitlines() if part in line).split())


def test_a_fusion_tells_the_rank_in_each_child() -> None:
    text = shown(explain(hybrid(), "otter"))
    # By hand: dense has second 2nd and first 3rd, BM25 first 1st, second 2nd, and third nowhere.
    # 1/62 + 1/62 < 1/63 + 1/61, by the thousandth.
    assert "dense 3, bm25 1 -> 1" in line_of(text, "first.txt#1")
    assert "dense 2, bm25 2 -> 2" in line_of(text, "second.txt#1")
    assert "dense 1, bm25 - -> 3" in line_of(text, "third.txt#1")


def test_a_rerank_tells_the_rank_and_score_before_and_after() -> None:
    text = shown(explain(stacked(), "otter"))
    assert "rrf 2 (0.032) -> 1 (34.000)" in line_of(text, "second.txt#1")
    assert "rrf 1 (0.032) -> 2 (11.000)" in line_of(text, "first.txt#1")


def test_a_multi_query_tells_the_wordings_and_which_found_a_passage() -> None:
    text = shown(explain(multi_query(), "otter"))
    assert "query_1 2, query_2 2, query_3 1, query_4 1 -> 1" in line_of(text, "second.txt#1")
    assert "query_1 1 -> 2" in line_of(text, "first.txt#1")
    for wording in ("“otter”", "“beaver”", "“river”", "“wide”"):
        assert text.count(wording) == 1


def test_children_stand_in_their_order_whichever_thread_was_first() -> None:
    for _ in range(10):
        text = shown(explain(multi_query(), "otter"))
        places = [text.index(f" {tag} r") for tag in ("rewriter", "query_1", "query_2", "query_4")]
        assert places == sorted(places)


def test_ranks_in_the_children_stand_in_their_order_whichever_thread_was_first() -> None:
    explanation = explain(hybrid(), "otter")
    in_order = list(passages(explanation, explanation.root)[0].before)
    explanation.root.children.reverse()
    assert list(passages(explanation, explanation.root)[0].before) == in_order == ["dense", "bm25"]


def test_bm25_tells_the_points_of_each_term_and_they_add_up() -> None:
    explanation = explain(bm25(), "otter in the river")
    found = passages(explanation, explanation.root)
    assert [passage.document.id for passage in found] == ["second.txt#1", "first.txt#1"]
    assert set(found[0].points) == {"otter", "river"}
    for passage in found:
        assert passage.score is not None
        assert sum(passage.points.values()) == pytest.approx(passage.score[1])
    assert "river" in line_of(shown(explanation), "second.txt#1")


def test_the_points_are_those_of_the_wording_that_was_searched() -> None:
    explanation = explain(multi_query(), "otter")
    searched = {span.tag: span for _, span in explanation.root.walk()}
    assert set(passages(explanation, searched["query_2"])[0].points) == {"beaver"}


def test_two_indexes_are_not_mixed_up() -> None:
    other = BM25Retriever.from_documents(DOCUMENTS[:2])
    retriever = RRFEnsembleRetriever(retrievers=[bm25(), other])
    explanation = explain(retriever, "otter")
    for child in explanation.root.children:
        assert all(not passage.points for passage in passages(explanation, child))
    assert "retriever_1 1, retriever_2 1 -> 1" in shown(explanation)


def test_untagged_children_of_one_class_are_numbered() -> None:
    class Chained(BaseRetriever):
        """Another's composite, which gives its children no tags."""

        searches: list[BaseRetriever]

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            config: Any = {"callbacks": run_manager.get_child()}
            return [d for search in self.searches for d in search.invoke(query, config=config)]

    searches: list[BaseRetriever] = [dense("third.txt#1", "first.txt#1"), dense("first.txt#1")]
    explanation = explain(Chained(searches=searches), "otter")
    found = passages(explanation, explanation.root)
    assert [(passage.document.id, passage.before) for passage in found[:2]] == [
        ("third.txt#1", {"ListRetriever 1": 1, "ListRetriever 2": None}),
        ("first.txt#1", {"ListRetriever 1": 2, "ListRetriever 2": 1}),
    ]


def test_a_search_that_found_nothing_is_named_by_its_tag() -> None:
    retriever = RRFEnsembleRetriever(retrievers=[ListRetriever(documents=[]), bm25()])
    assert "retriever_1 -, bm25 1 -> 1" in shown(explain(retriever, "otter"))


def test_a_copy_without_an_id_is_the_same_passage() -> None:
    without = ListRetriever(documents=[doc(DOCUMENTS[0].page_content, dense_score=0.5)])
    retriever = RRFEnsembleRetriever(retrievers=[without, bm25()])
    assert "dense 1, bm25 1 -> 1" in shown(explain(retriever, "otter"))


@pytest.mark.parametrize("make", [bm25, hybrid, stacked, multi_query])
@pytest.mark.parametrize("width", [80, 200])
def test_it_fits_the_terminal(make: Any, width: int) -> None:
    text = shown(explain(make(), "otter beaver"), width)
    assert max(map(len, text.splitlines())) <= width
    assert "first.txt#1" in text


def test_long_ids_and_questions_are_folded_not_lost() -> None:
    name = "folder/" * 8 + "file#1"
    documents = [doc("otter", name)]
    retriever = RRFEnsembleRetriever(
        retrievers=[BM25Retriever.from_documents(documents), ListRetriever(documents=documents)]
    )
    text = shown(explain(retriever, "otter " * 40))
    assert max(map(len, text.splitlines())) <= 80
    joined = "".join(text.split())
    assert text.count("otter") >= 40
    assert "folder/" in joined


def test_markup_and_control_characters_are_shown_as_text() -> None:
    documents = [doc("otter", "[red]bold[/nothing]\x1b[31m#1")]
    retriever = BM25Retriever.from_documents(documents)
    text = shown(explain(retriever, "[bold]otter[/nothing] \x1b]0;title\x07"), 120)
    assert "[red]bold[/nothing]" in text
    assert "[bold]otter[/nothing]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_only_the_first_passages_are_shown() -> None:
    text = shown(explain(hybrid(), "otter"), count=1)
    assert "third.txt#1" in text  # the first of the dense search
    assert "second.txt#1" not in text
    assert "3 passages" in text


def test_a_failure_is_part_of_the_explanation() -> None:
    failing = FailingRetriever(error=OSError("the [index] is gone"))
    explanation = explain(RRFEnsembleRetriever(retrievers=[bm25(), failing]), "otter")
    assert isinstance(explanation.error, OSError)
    assert "OSError: the [index] is gone" in shown(explanation)
    rows = [json.loads(line) for line in json_lines(explanation)]
    assert rows[0]["error"] == {"type": "OSError", "message": "the [index] is gone"}


def test_a_skipped_failure_is_seen_and_has_no_rank() -> None:
    failing = FailingRetriever(error=OSError("gone"))
    retriever = RRFEnsembleRetriever(retrievers=[bm25(), failing], on_error="skip")
    explanation = explain(retriever, "otter")
    assert explanation.error is None
    text = shown(explanation)
    assert "OSError: gone" in text
    assert "bm25 1 (" in line_of(text, "first.txt#1")


def test_a_query_that_is_no_string_raises() -> None:
    retriever: BaseRetriever = hybrid()
    explanation = explain(retriever, 3)  # type: ignore[arg-type]
    assert isinstance(explanation.error, TypeError)


def test_a_blank_question_finds_nothing() -> None:
    explanation = explain(hybrid(), " ")
    assert passages(explanation, explanation.root) == []
    assert "0 passages" in shown(explanation)


def test_json_lines_are_the_tree() -> None:
    rows = [json.loads(line) for line in json_lines(explain(stacked(), "otter"))]
    assert [(row["span"], row["parent"], row["depth"], row["stage"]) for row in rows[:2]] == [
        (0, None, 0, "rerank"),
        (1, 0, 1, "fusion"),
    ]
    assert {(row["tag"], row["parent"], row["depth"]) for row in rows[2:]} == {
        ("retriever_1", 1, 2),
        ("retriever_2", 1, 2),
    }
    assert all(row["query"] == "otter" and row["error"] is None for row in rows)
    assert all(row["ms"] >= row["own_ms"] >= 0 for row in rows)
    first = rows[0]["documents"][0]
    assert first == {
        "id": "second.txt#1",
        "rank": 1,
        "score": 34.0,
        "score_name": "rerank_score",
        "retrieved_by": ["dense", "bm25"],
        "before": {"rrf": 2},
    }
    assert rows[1]["documents"][2]["before"] == {"dense": 1, "bm25": None}
    keyword = next(row for row in rows if row["name"] == "BM25Retriever")
    assert keyword["documents"][0]["points"] == {"otter": keyword["documents"][0]["score"]}


def test_json_lines_say_that_a_rewriters_search_is_rewriting() -> None:
    rewriter = FeedbackQueryRewriter(bm25(), texts(DOCUMENTS))
    retriever = MultiQueryRetriever(retriever=bm25(), llm=rewriter)
    rows = [json.loads(line) for line in json_lines(explain(retriever, "otter"))]
    stages = {row["tag"]: row["stage"] for row in rows}
    assert stages["feedback"] == stages["rewriter"] == "rewriting"
    assert stages["query_1"] == "retrieval"


def test_scores_that_are_no_numbers_leave_valid_json() -> None:
    found = [doc("otter", "a", dense_score=float("nan")), doc("beaver", None)]
    (line,) = json_lines(explain(ListRetriever(documents=found), "otter"))
    row = json.loads(line, parse_constant=pytest.fail)
    assert [(document["id"], document["score"]) for document in row["documents"]] == [
        ("a", None),
        (None, None),
    ]


def test_a_truth_value_is_no_score() -> None:
    found = [doc("otter", "a", dense_score=0.5, good_score=True)]
    (line,) = json_lines(explain(ListRetriever(documents=found), "otter"))
    (document,) = json.loads(line)["documents"]
    assert (document["score_name"], document["score"]) == ("dense_score", 0.5)


def test_explaining_changes_no_document() -> None:
    retriever = hybrid()
    before = [document.model_copy(deep=True) for document in retriever.invoke("otter")]
    explanation = explain(retriever, "otter")
    list(json_lines(explanation))
    shown(explanation)
    assert explanation.root.documents == before


class Narrow(BaseRetriever):
    """A composite of someone's own: keeps some of what its child found, perhaps shortened."""

    base_retriever: BaseRetriever
    ids: list[str]
    characters: int = 1000
    events: Any = ()

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        config: Any = {"callbacks": run_manager.get_child("base_retriever")}
        for name, data in self.events:
            dispatch_custom_event(name, data, config={"callbacks": run_manager.get_child()})
        return [
            document.model_copy(update={"page_content": document.page_content[: self.characters]})
            for document in self.base_retriever.invoke(query, config=config)
            if document.id in self.ids
        ]


class Guarded(Narrow):
    """Limits what a user may see."""

    def visibility(self) -> list[str]:
        return sorted(self.ids)


def test_a_stage_that_keeps_some_says_how_many_of_how_many() -> None:
    text = shown(explain(Narrow(base_retriever=hybrid(), ids=["first.txt#1"]), "otter"))
    assert "1 passage 1 of 3 kept" in line_of(text, "Narrow")
    assert "1 of 3" not in line_of(text, "RRFEnsembleRetriever")
    assert "third.txt#1" in text  # nothing is withheld where nothing limits


def test_a_stage_that_shortens_texts_says_from_what_to_what() -> None:
    retriever = Narrow(base_retriever=hybrid(), ids=["first.txt#1", "second.txt#1"], characters=5)
    text = shown(explain(retriever, "otter"), 120)
    assert "45 -> 10 characters" in line_of(text, "Narrow")  # 11 and 34 characters, 5 left of each
    assert "characters" not in line_of(text, "RRFEnsembleRetriever")


def test_it_is_said_which_one_of_several_children_all_passages_are_from() -> None:
    failing = FailingRetriever(error=OSError("gone"))
    first_fails = RRFEnsembleRetriever(retrievers=[failing, bm25()], on_error="skip")
    assert "all from retriever_2" in shown(explain(first_fails, "otter"), 120)
    empty = RRFEnsembleRetriever(retrievers=[bm25(), ListRetriever(documents=[])])
    assert "all from retriever_1" in shown(explain(empty, "otter"), 120)
    assert "all from" not in shown(explain(hybrid(), "otter"), 120)


def test_what_a_stage_says_of_itself_is_shown_as_text() -> None:
    events = [
        ("cache", {"outcome": "hit"}),
        ("two", {"a": 1, "b": [True]}),
        ("[bold]done[/x]", None),
        ("long", "x" * 500),
    ]
    retriever = Narrow(base_retriever=bm25(), ids=["first.txt#1"], events=events)
    explanation = explain(retriever, "otter")
    text = shown(explanation, 240)
    for part in ("cache: hit;", 'two: {"a": 1, "b": [true]}', "[bold]done[/x]"):
        assert part in text
    assert "x" * 80 not in text
    (row, _) = [json.loads(line) for line in json_lines(explanation)]
    assert "cache: hit" in row["remarks"]


@pytest.mark.parametrize("named", [False, True], ids=["bare", "with_config"])
def test_what_a_user_may_not_see_is_counted_and_never_named(named: bool) -> None:
    guarded: Any = Guarded(base_retriever=stacked(), ids=["first.txt#1"])
    if named:
        guarded = guarded.with_config(run_name="search for a user")
    explanation = explain(guarded, "otter")
    text = shown(explanation, 160)
    everything = text + "\n".join(json_lines(explanation))
    for secret in ("second.txt", "third.txt"):
        assert secret not in everything
    assert "1 of 3 kept" in text
    assert "1 passage (2 more withheld)" in line_of(text, "RerankRetriever")
    withheld = [json.loads(line)["withheld"] for line in json_lines(explanation)]
    assert (withheld[:3], sorted(withheld[3:])) == ([0, 2, 2], [1, 2])


def test_one_guarded_search_of_several_withholds_below_itself_only() -> None:
    guarded = Guarded(base_retriever=bm25(), ids=["first.txt#1"])
    retriever = RRFEnsembleRetriever(retrievers=[guarded, dense("third.txt#1")])
    text = shown(explain(retriever, "otter"), 160)
    assert "second.txt#1" not in text
    assert "third.txt#1" in text


def test_a_guarded_search_that_failed_shows_nothing_below() -> None:
    class Denied(Guarded):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            super()._get_relevant_documents(query, run_manager=run_manager)
            raise PermissionError("no grant")

    explanation = explain(Denied(base_retriever=bm25(), ids=[]), "otter")
    everything = shown(explanation) + "\n".join(json_lines(explanation))
    assert "no grant" in everything
    assert ".txt" not in everything


def test_a_stage_that_says_it_limits_nothing_withholds_nothing_and_one_that_cannot_say_does() -> (
    None
):
    class Anyone(Narrow):
        def visibility(self) -> None:
            return None

    class ServiceDown(Narrow):
        def visibility(self) -> None:
            raise OSError("the permission service is down")

    open_text = shown(explain(Anyone(base_retriever=bm25(), ids=["first.txt#1"]), "otter"))
    assert "second.txt#1" in open_text
    shut = shown(explain(ServiceDown(base_retriever=bm25(), ids=["first.txt#1"]), "otter"))
    assert "second.txt#1" not in shut


def test_metadata_that_is_no_list_of_stages_is_no_stage() -> None:
    found = [doc("otter", "a", retrieved_by="bm25"), doc("beaver", "b", retrieved_by=None)]
    (line,) = json_lines(explain(ListRetriever(documents=found), "otter"))
    assert [document["retrieved_by"] for document in json.loads(line)["documents"]] == [[], []]


def test_a_fallback_says_which_source_failed_and_which_answered() -> None:
    failing = FailingRetriever(error=OSError("gone"), name="wiki")
    text = shown(explain(FallbackRetriever(retrievers=[failing, bm25()]), "otter"), 200)
    title = line_of(text, "FallbackRetriever")
    assert "all from retriever_2" in title
    assert '"source": "wiki", "outcome": "failed"' in title
    assert "OSError: gone" in text


def test_a_cache_says_hit_or_miss_and_hides_no_candidate() -> None:
    retriever = CachedRetriever(
        retriever=RerankRetriever(base_retriever=hybrid(), cross_encoder=ByLength(), top_n=1)
    )
    first, second = (shown(explain(retriever, "otter")) for _ in range(2))
    assert "cache: miss" in line_of(first, "CachedRetriever")
    assert "third.txt#1" in first
    assert "withheld" not in first
    assert "cache: hit" in line_of(second, "CachedRetriever")
    assert "RerankRetriever" not in second


def test_a_permission_filter_is_explained_without_a_name_that_is_not_granted() -> None:
    retriever = PermissionFilteredRetriever(
        base_retriever=stacked(), visible_ids={"first.txt#1"}, trace_candidates=True
    )
    explanation = explain(RRFEnsembleRetriever(retrievers=[retriever, retriever]), "otter")
    everything = shown(explanation, 160) + "\n".join(json_lines(explanation))
    assert "(2 more withheld)" in everything
    assert "second.txt" not in everything
    assert "third.txt" not in everything


def test_a_compression_says_from_how_many_characters_to_how_many() -> None:
    window = SentenceWindow(cross_encoder=ByLength(), top_n=1, window=0)
    found = [doc("An otter. It sleeps in a holt by the river.", "a"), doc("Beavers.", "b")]
    retriever = ContextualCompressionRetriever(
        base_retriever=ListRetriever(documents=found), compressor=window
    )
    title = line_of(shown(explain(retriever, "otter"), 160), "ContextualCompression")
    assert "1 of 2 kept" in title
    assert "43 -> " in title  # the first document's characters

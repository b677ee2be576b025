"""A cross-encoder in 8-bit integers: a quarter of the size, and no torch to load; runs on a CPU."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.cross_encoders import BaseCrossEncoder

from .batching import CommonBatches
from .documents import check_pairs

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
UNFINISHED = ".making-"
SAMPLES = [
    ("Which bird stands in water?", "The blue heron stands still in shallow water."),
    ("water", "Red kites circle. " * 400),
    ("Which bird?", ""),
]
"""Pairs on which the exported model must agree with the original: usual, cut off, empty."""


class OnnxCrossEncoder(BaseCrossEncoder):
    """Score pairs of question and text with a cross-encoder exported to ONNX, in 8-bit integers.

    The first use loads the model as `HuggingFaceCrossEncoder` does, exports it, checks that the
    export scores as the original, rounds its weights and keeps the result in `folder`. Later ones
    only read that folder: neither torch nor the hub is needed. Each pair is computed by itself,
    without padding. So its score depends on nothing else, although the integers' scale is taken
    from the numbers at hand, and on a CPU this is as quick as batches.

    Method: dynamic quantisation with a scale for each output channel, as in Wu, Judd, Zhang, Isaev
    and Micikevicius, "Integer Quantization for Deep Learning Inference: Principles and Empirical
    Evaluation", arXiv:2004.09602, 2020.

    Args:
        model_name: Folder of a cross-encoder, or its name on the Hugging Face hub.
        folder: Where exported models are kept, each in a folder of its own, made when it is not
            there; default: `onnx-cross-encoders` in the user's cache folder. A model folder whose
            files change is exported anew; a name on the hub stays as it was first exported.
        max_length: Word pieces after which a pair is cut; default: what the model allows.
        int8: False keeps the weights as 32-bit floats: the original's scores, without torch.

    Raises:
        TypeError: If `model_name` is neither a string nor a path.
        ValueError: If `max_length` is below 1.
    """

    def __init__(
        self,
        model_name: str | Path,
        folder: str | Path | None = None,
        max_length: int | None = None,
        int8: bool = True,
    ) -> None:
        if not isinstance(model_name, str | Path):
            kind = type(model_name).__name__
            raise TypeError(f"model_name must be a folder or a model's name, got {kind}.")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}.")
        self.model_name = str(model_name)
        self.folder = _cache_folder() if folder is None else Path(folder)
        self.max_length = max_length
        self.int8 = int8
        self._exported: _Exported | None = None
        # Pairs share no batch, so a round serves one caller and keeps no other waiting for it.
        self._calls = CommonBatches(self._score, most=1)

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs of question and text; higher is better.

        Args:
            text_pairs: Pairs `(question, text)`.

        Returns:
            One number a pair, in the same order, on the scale of the original model.

        Raises:
            TypeError: If something else than pairs of strings is given.
            ValueError: If the model was not trained to score pairs, or a text holds half of a
                character.
            RuntimeError: If a package is missing, or the model cannot be loaded, exported or kept.
        """
        check_pairs(text_pairs)
        return self._calls.run(text_pairs) if text_pairs else []

    async def ascore(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs as `score` does, from a task of an event loop."""
        check_pairs(text_pairs)
        return await self._calls.arun(text_pairs) if text_pairs else []

    def prepare(self) -> Path:
        """Export the model unless that was done before, and return the folder that holds it.

        To be called where a program is installed, so that its first question need not wait.

        Raises:
            ValueError: If the model was not trained to score pairs.
            RuntimeError: If a package is missing, or the model cannot be loaded, exported or kept.
        """
        kind = ("int7" if _lacks_vnni() else "int8") if self.int8 else "float32"
        name = f"{Path(self.model_name).name}-{kind}-{_fingerprint(self.model_name)}"
        target = self.folder / name
        if target.exists():
            return target
        with _unfinished(self.folder) as folder:
            _export(self.model_name, folder, kind)
            try:
                folder.rename(target)
            except OSError as error:
                if not target.exists():  # else another process was quicker
                    raise _unwritable(self.folder, error) from error
        return target

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        if self._exported is None:
            self._exported = _open(self.prepare(), self.max_length)
        return self._exported.score(pairs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r})"


class _Exported:
    """A model's session, its tokenizer, and the names of the arrays that it takes."""

    def __init__(self, model: Path, tokenizer: Path, inputs: list[str], max_length: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # Else its threads keep the cores busy for a while after each call, waiting for another.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)
        self._inputs = inputs

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        scores = []
        for encoded in self._tokenizer.encode_batch(list(pairs)):
            rows = {
                "input_ids": encoded.ids,
                "attention_mask": encoded.attention_mask,
                "token_type_ids": encoded.type_ids,
            }
            arrays = {name: np.array([rows[name]], np.int64) for name in self._inputs}
            (outputs,) = self._session.run(None, arrays)
            # As in HuggingFaceCrossEncoder: of "not relevant, relevant" the second.
            scores.append(float(outputs.reshape(-1)[-1]))
        return scores


def _open(folder: Path, max_length: int | None) -> _Exported:
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        model = folder / "model.onnx"
        if model.stat().st_size != about["bytes"]:
            raise ValueError(f"model.onnx has not the {about['bytes']} bytes that were written")
        most = min(max_length or about["max_length"], about["max_length"])
        return _Exported(model, folder / "tokenizer.json", about["inputs"], most)
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    except Exception as error:
        raise RuntimeError(
            f"The exported cross-encoder in {folder} is damaged ({_first_line(error)}). Delete "
            "that folder; it is made again at the next use."
        ) from error


def _export(model_name: str, folder: Path, kind: str) -> None:
    """Write `model.onnx`, `tokenizer.json` and `about.json` into an empty folder."""
    try:
        import onnx  # noqa: F401  # which torch and the quantisation need
        import onnxruntime  # noqa: F401
        import sentence_transformers  # noqa: F401

        from .cross_encoder import last_column, load_cross_encoder
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    model = load_cross_encoder(model_name, device="cpu", model_kwargs={"dtype": "float32"})
    network = model[0].model if hasattr(model[0], "model") else model.model
    if not type(network).__name__.endswith("ForSequenceClassification"):
        raise ValueError(
            f"The model {model_name!r} is a {type(network).__name__}, and only models for sequence "
            "classification are exported. Use HuggingFaceCrossEncoder for it."
        )
    expected = last_column(model.predict(SAMPLES), len(SAMPLES), model_name)
    tokenizer, plain, final = (
        folder / name for name in ("tokenizer.json", "plain.onnx", "model.onnx")
    )
    try:
        inputs = _write_plain(model, plain)
        model.tokenizer.backend_tokenizer.save(str(tokenizer))
        got = _Exported(plain, tokenizer, inputs, model.max_seq_length).score(SAMPLES)
        if not np.allclose(got, expected, atol=1e-4):
            raise ValueError(f"sample pairs score {got} instead of {expected}")
        if kind == "float32":
            plain.rename(final)
        else:
            _quantise(plain, final, reduce_range=kind == "int7")
        about = {"inputs": inputs, "max_length": model.max_seq_length}
        text = json.dumps({"model": model_name, "bytes": final.stat().st_size, **about}, indent=1)
        (folder / "about.json").write_text(text, encoding="utf-8")
    except Exception as error:
        raise RuntimeError(
            f"Could not export the cross-encoder {model_name!r} into {folder.parent} "
            f"({_first_line(error)}). If there is room on the disk, it is of a kind that cannot be "
            "exported: use HuggingFaceCrossEncoder for it."
        ) from error


def _write_plain(model: Any, file: Path) -> list[str]:
    """Export a cross-encoder with its activation in 32-bit floats; return its inputs' names."""
    import torch

    example = model.tokenizer([SAMPLES[0], SAMPLES[2]], padding=True, return_tensors="pt")
    inputs = [name for name in INPUTS if name in example]

    class Scores(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        def forward(self, *arrays: Any) -> Any:
            logits = model.model(**dict(zip(inputs, arrays, strict=True))).logits
            return model.activation_fn(logits)

    module = Scores()
    module.add_module("network", model.model)
    with warnings.catch_warnings():  # about branches that the samples then check
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(example[name] for name in inputs),
            str(file),
            input_names=inputs,
            output_names=["scores"],
            dynamic_axes={name: {0: "pairs", 1: "pieces"} for name in inputs},
            opset_version=17,
            dynamo=False,  # the other exporter needs one more package
        )
    return inputs


def _quantise(plain: Path, final: Path, reduce_range: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    shaped = plain.with_name("shaped.onnx")
    quant_pre_process(plain, shaped, skip_optimization=True, skip_symbolic_shape=True)
    quantize_dynamic(
        shaped, final, per_channel=True, reduce_range=reduce_range, weight_type=QuantType.QInt8
    )
    plain.unlink()
    shaped.unlink()


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Give a folder to work in, beside the finished ones, that is gone afterwards."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{UNFINISHED}*"):
            if _is_abandoned(left):
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
        made.chmod(0o755)  # as mkdir would have made it
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    # By a process that was killed. One that goes on may rename its folder at any moment.
    try:
        return time.time() - folder.stat().st_mtime > 3600
    except FileNotFoundError:
        return False


def _unwritable(folder: Path, error: OSError) -> RuntimeError:
    return RuntimeError(
        f"The folder for exported cross-encoders, {folder}, cannot be made or written to "
        f"({error.strerror or error}). Give another one with folder=…"
    )


def _fingerprint(model_name: str) -> str:
    """Return letters that change when a model's files do."""
    files: list[tuple[str, int, int]] = []
    if Path(model_name).is_dir():
        for path in sorted(Path(model_name).glob("*.*")):
            if (state := path.stat()).st_size:
                files.append((path.name, state.st_size, state.st_mtime_ns))
    name = str(Path(model_name).resolve()) if files else model_name
    return hashlib.sha256(json.dumps([name, files]).encode()).hexdigest()[:12]


def _lacks_vnni() -> bool:
    # Older x86 CPUs add products of 8-bit numbers in 16 bits, too few unless weights have 7.
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return True


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "onnx-cross-encoders"


def _missing(error: ModuleNotFoundError) -> RuntimeError:
    return RuntimeError(
        f"OnnxCrossEncoder needs the package {error.name}. Install it with `uv sync --extra onnx`, "
        "in a project of your own with `uv add onnx onnxruntime sentence-transformers`."
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"

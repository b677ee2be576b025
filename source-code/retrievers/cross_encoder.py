"""A cross-encoder: a model that reads question and text together and says how well they fit."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.cross_encoders import BaseCrossEncoder

from .documents import check_pairs


class HuggingFaceCrossEncoder(BaseCrossEncoder):
    """Score pairs of question and text with a cross-encoder of sentence-transformers.

    The model is loaded when the first pair is scored: from the folder or the local cache if it is
    there, and only otherwise from the Hugging Face hub. One instance can serve several threads;
    they take turns, because a tokenizer must not be used by two threads at once.

    Method: Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085, 2019.

    Args:
        model_name: Folder of the model, or its name on the Hugging Face hub, such as
            `"BAAI/bge-reranker-base"`.
        batch_size: Pairs per call of the model.
        max_length: Word pieces after which a pair is cut; default: what the model allows.
        device: Such as `"cpu"` or `"cuda"`; default: the best one there is.
        model_kwargs: Keyword arguments for the loading of the weights. Weights that are stored in
            half precision run faster on a CPU with `{"dtype": "float32"}`.

    Raises:
        TypeError: If `model_name` is neither a string nor a path.
        ValueError: If `batch_size` or `max_length` is below 1.
    """

    def __init__(
        self,
        model_name: str | Path,
        batch_size: int = 32,
        max_length: int | None = None,
        device: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model_name, str | Path):
            kind = type(model_name).__name__
            raise TypeError(f"model_name must be a folder or a model's name, got {kind}.")
        for name, value in (("batch_size", batch_size), ("max_length", max_length)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self.model_name = str(model_name)
        self.batch_size = batch_size
        self.max_length = max_length
        self.device = device
        self.model_kwargs = dict(model_kwargs or {})
        self._model: Any = None
        self._lock = threading.Lock()

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs of question and text; higher is better.

        Args:
            text_pairs: Pairs `(question, text)`.

        Returns:
            One number a pair, in the same order. The scale is the model's own: from 0 to 1 with a
            sigmoid, as most models with one output have it, or any number. Of the two outputs of
            a model for "not relevant, relevant" it is the second.

        Raises:
            TypeError: If something else than pairs of strings is given.
            ValueError: If the model was not trained to score pairs, or has more than two outputs.
            RuntimeError: If the model cannot be loaded.
        """
        check_pairs(text_pairs)
        if not text_pairs:
            return []
        with self._lock:
            if self._model is None:
                self._model = self._load()
            outputs = self._model.predict(
                list(text_pairs), batch_size=self.batch_size, show_progress_bar=False
            )
        scores = np.asarray(outputs, dtype=float).reshape(len(text_pairs), -1)
        if scores.shape[1] not in (1, 2):
            raise ValueError(
                f"The model {self.model_name!r} has {scores.shape[1]} outputs a pair, so it is a "
                "classifier, not a ranker. Use a model with num_labels=1, or with num_labels=2 "
                "for (not relevant, relevant)."
            )
        return [float(score) for score in scores[:, -1]]

    def _load(self) -> Any:
        from sentence_transformers import CrossEncoder

        settings: dict[str, Any] = {
            "max_length": self.max_length,
            "device": self.device,
            "model_kwargs": self.model_kwargs,
        }
        try:
            try:
                # Asking the hub first takes a minute of retries where it cannot be reached.
                model = CrossEncoder(self.model_name, local_files_only=True, **settings)
            except OSError:
                if Path(self.model_name).exists():
                    raise
                model = CrossEncoder(self.model_name, **settings)
        except Exception as error:
            raise RuntimeError(
                f"Could not load the cross-encoder {self.model_name!r} ({_first_line(error)}). "
                "If it is a folder, check the path and that config.json and the weights are in it. "
                "If it is a name on the Hugging Face hub, check its spelling and connect once, so "
                f"that it can be downloaded: hf download {self.model_name}"
            ) from error
        if _lacks_head(model):
            raise ValueError(
                f"The model {self.model_name!r} was not trained to score pairs: its scores would "
                "come from random weights. Use a cross-encoder (reranker), not an embedding model."
            )
        return model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r})"


def _lacks_head(model: Any) -> bool:
    # Given an embedding model, the library adds an untrained head, and only logs that it did.
    network = getattr(model, "model", None)
    trained: list[str] = getattr(getattr(network, "config", None), "architectures", None) or []
    head = "ForSequenceClassification"
    has_head = type(network).__name__.endswith(head)
    return has_head and bool(trained) and not any(name.endswith(head) for name in trained)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"

"""A cross-encoder: a model that reads question and text together and says how well they fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.cross_encoders import BaseCrossEncoder

from .batching import CommonBatches, token_batches
from .documents import check_pairs

CPU_TOKENS = 1024
"""Tokens of a batch on a CPU; what a larger one computes on the way does not fit its caches."""


class HuggingFaceCrossEncoder(BaseCrossEncoder):
    """Score pairs of question and text with a cross-encoder of sentence-transformers.

    The model is loaded when the first pair is scored: from the folder or the local cache if it is
    there, and only otherwise from the Hugging Face hub. Pairs of about one length go into a batch,
    so that little is padded. One instance can serve many threads and tasks at once: they take turns
    with the model, and the pairs of those who wait go into common batches.

    Method: Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085, 2019.

    Args:
        model_name: Folder of the model, or its name on the Hugging Face hub, such as
            `"BAAI/bge-reranker-base"`.
        batch_size: The most pairs in one call of the model.
        max_length: Word pieces after which a pair is cut; default: what the model allows.
        device: Such as `"cpu"` or `"cuda"`; default: the best one there is.
        batch_tokens: The most tokens in one call of the model, with the padding; a longer pair goes
            alone. Default: 1,024 on a CPU, and on other devices whatever `batch_size` pairs have.
        model_kwargs: Keyword arguments for the loading of the weights. Weights that are stored in
            half precision run faster on a CPU with `{"dtype": "float32"}`.

    Raises:
        TypeError: If `model_name` is neither a string nor a path.
        ValueError: If `batch_size`, `batch_tokens` or `max_length` is below 1.
    """

    def __init__(
        self,
        model_name: str | Path,
        batch_size: int = 32,
        max_length: int | None = None,
        device: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if not isinstance(model_name, str | Path):
            kind = type(model_name).__name__
            raise TypeError(f"model_name must be a folder or a model's name, got {kind}.")
        for name, value in (
            ("batch_size", batch_size),
            ("max_length", max_length),
            ("batch_tokens", batch_tokens),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self.model_name = str(model_name)
        self.batch_size = batch_size
        self.max_length = max_length
        self.device = device
        self.model_kwargs = dict(model_kwargs or {})
        self._model: Any = None
        self.batch_tokens = batch_tokens
        self._batches = CommonBatches(self._score)

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
            ValueError: If the model was not trained to score pairs, or has more than two outputs,
                or a text holds half of a character.
            RuntimeError: If the model cannot be loaded.
        """
        check_pairs(text_pairs)
        return self._batches.run(text_pairs) if text_pairs else []

    async def ascore(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Score pairs as `score` does, from a task of an event loop."""
        check_pairs(text_pairs)
        return await self._batches.arun(text_pairs) if text_pairs else []

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        if self._model is None:
            self._model = load_cross_encoder(
                self.model_name,
                max_length=self.max_length,
                device=self.device,
                model_kwargs=self.model_kwargs,
            )
        budget = self.batch_tokens
        if budget is None and str(self._model.device) == "cpu":
            budget = CPU_TOKENS
        scores = [0.0] * len(pairs)
        for batch in token_batches(self._lengths(pairs), budget, self.batch_size):
            outputs = self._model.predict(
                [pairs[place] for place in batch], batch_size=len(batch), show_progress_bar=False
            )
            for place, score in zip(batch, last_column(outputs, len(batch), self.model_name)):
                scores[place] = score
        return scores

    def _lengths(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Return the word pieces of each pair, counting a text that is in many of them once."""
        if len(pairs) == 1:
            return [1]
        texts = list({text: None for pair in pairs for text in pair})
        tokenizer = self._model.tokenizer
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        count = {text: len(ids) for text, ids in zip(texts, encoded, strict=True)}
        special = tokenizer.num_special_tokens_to_add(pair=True)
        most = getattr(self._model, "max_seq_length", None) or sys.maxsize
        return [min(count[query] + count[text] + special, most) for query, text in pairs]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r})"


def load_cross_encoder(model_name: str, **settings: Any) -> Any:
    """Return a `CrossEncoder` of sentence-transformers.

    Args:
        model_name: Folder of the model, or its name on the Hugging Face hub.
        settings: Further arguments of `CrossEncoder`.

    Raises:
        ValueError: If the model was not trained to score pairs.
        RuntimeError: If the model cannot be loaded.
    """
    from sentence_transformers import CrossEncoder

    try:
        try:
            # Asking the hub first takes a minute of retries where it cannot be reached.
            model = CrossEncoder(model_name, local_files_only=True, **settings)
        except OSError:
            if Path(model_name).exists():
                raise
            model = CrossEncoder(model_name, **settings)
    except Exception as error:
        raise RuntimeError(
            f"Could not load the cross-encoder {model_name!r} ({_first_line(error)}). "
            "If it is a folder, check the path and that config.json and the weights are in it. "
            "If it is a name on the Hugging Face hub, check its spelling and connect once, so "
            f"that it can be downloaded: hf download {model_name}"
        ) from error
    if _lacks_head(model):
        raise ValueError(
            f"The model {model_name!r} was not trained to score pairs: its scores would "
            "come from random weights. Use a cross-encoder (reranker), not an embedding model."
        )
    return model


def last_column(outputs: Any, count: int, model_name: str) -> list[float]:
    """Return the score of each pair: a model's one output, or "relevant" of its two.

    Raises:
        ValueError: If the model has more outputs.
    """
    scores = np.asarray(outputs, dtype=float).reshape(count, -1)
    if scores.shape[1] not in (1, 2):
        raise ValueError(
            f"The model {model_name!r} has {scores.shape[1]} outputs a pair, so it is a "
            "classifier, not a ranker. Use a model with num_labels=1, or with num_labels=2 "
            "for (not relevant, relevant)."
        )
    return [float(score) for score in scores[:, -1]]


def _lacks_head(model: Any) -> bool:
    # Given an embedding model, the library adds an untrained head, and only logs that it did.
    network = getattr(model, "model", None)
    trained: list[str] = getattr(getattr(network, "config", None), "architectures", None) or []
    head = "ForSequenceClassification"
    has_head = type(network).__name__.endswith(head)
    return has_head and bool(trained) and not any(name.endswith(head) for name in trained)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"

"""Exemplar SVM in memory: a classifier is trained to tell the question from all texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .documents import min_max
from .knn import VectorsInMemory


class SVMRetriever(VectorsInMemory):
    """Rank texts by a linear classifier whose only positive example is the question.

    For each question a support vector machine learns to tell the question's vector from those of
    all texts; the texts that it takes for the question most are the result. Unlike the cosine it
    weighs those dimensions in which this question differs from this corpus. It is trained per
    question on every vector, which takes milliseconds for hundreds of texts and seconds for many
    thousands: take it to rerank, or for small corpora.

    `metadata["svm_score"]` is the decision function: about 1 at the question, -1 at what it is told
    from. Equal scores keep the order of the texts. The training is that of langchain_community's
    class, except that its random order is fixed (`random_state=0`), so the same call gives the same
    answer each time.

    `relevancy_threshold` is compared with the score moved to the range from 0, the lowest of texts
    and question, to 1, the highest, which is the question's own unless a text lies beyond it. Where
    all are equal, all texts are what was asked for, and pass.

    Method: Malisiewicz, Gupta and Efros, "Ensemble of Exemplar-SVMs for Object Detection and
    Beyond", ICCV 2011; for embeddings Karpathy, "knn_vs_svm", 2023.

    The arguments are those of `VectorsInMemory`. It needs the package scikit-learn.
    """

    @property
    def _stage(self) -> str:
        return "svm"

    def _scores(self, query: Any) -> tuple[Any, Sequence[float]]:
        from sklearn.svm import LinearSVC  # type: ignore[import-untyped]

        examples = np.concatenate([query[None], self.index])
        is_question = np.zeros(len(examples))
        is_question[0] = 1
        classifier = LinearSVC(
            class_weight="balanced", max_iter=10_000, tol=1e-6, C=0.1, random_state=0
        )
        scores = classifier.fit(examples, is_question).decision_function(examples)
        question, texts = scores[0], scores[1:]
        return texts, min_max([question, *texts[self._first]])[1:]

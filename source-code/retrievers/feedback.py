"""Pseudo-relevance feedback: rewrite a question with words of the documents it already finds."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    CallbackManagerForChainRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor

from .documents import ainvoke_child, check_count, check_query, invoke_child

Analyser = Callable[[str], list[str]]

_ENGLISH_STOP_WORDS = """
    a about above after again against all also although am among an and any are aren as at be
    became because been before being below between both but by can cannot could did didn do does
    doesn doing don done down during each either else etc even ever every few for found from
    further get give given gives had has have having he hence her here hers him his how however
    i if in into is isn it its itself just let like ll made make makes many may me might more
    most much must my neither no nor not now obtained of off often on once one only or other
    others our out over own per rather re same several shall she should shown since so some such
    than that the their them then there therefore these they this those though through thus to
    too toward towards two under until up upon us use used uses using various ve very via was
    wasn we well were weren what when where whether which while who whom whose why will with
    within without won would yet you your
"""

_STOP_WORDS = frozenset(_ENGLISH_STOP_WORDS.split())

# Indic and South-East Asian vowel signs belong to the word, but are not \w; danda is punctuation.
_WORD = re.compile(r"[^\W_][\w\u0300-\u036f\u0900-\u0963\u0966-\u0dff\u0e00-\u0eff\u1000-\u109f]*")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


class FeedbackQueryRewriter(Runnable[str, list[str]]):
    """Rewrite a question with words of the documents that it already finds; no model is needed.

    The retriever answers the question, and its best documents are taken for relevant. Words that
    are frequent in them and rare in the corpus are likely to be the ones in which other relevant
    documents speak of the subject. The first rewriting adds the best words of all those documents;
    the second adds the best words of the first document, the third those of the second, and so on,
    so that each follows one of the senses that the first search met.

    Where the first search found nothing relevant, the words lead astray. So search the question
    itself too, as `MultiQueryRetriever` does.

    Method: the relevance model of Lavrenko and Croft, "Relevance-Based Language Models", SIGIR
    2001, mixed with the question as in RM3 (Abdul-Jaleel et al., "UMass at TREC 2004: Novelty and
    HARD"). Two changes fit it to any retriever: a document's weight is the reciprocal of its rank,
    as scores of different retrievers do not compare; and a word's probability is multiplied by its
    inverse document frequency, as words are handed on without the weights that would keep common
    ones down.

    Args:
        retriever: Answers the question first. A lexical one (BM25) is the best choice, also if the
            rewritings go to a dense one, which then gains from both; see
            `benchmarks/feedback_quality.py`. Its `k` should be at least `num_documents`.
        corpus: The texts that tell how rare a word is, usually those that the retriever searches.
            They are read once and not kept. Without them all words but stop words count as equally
            rare.
        num_documents: How many of the best documents are taken for relevant.
        num_terms: How many words a rewriting adds, at most.
        num_queries: How many rewritings to return, at most.
        question_repeats: How often each rewriting says the question before the added words: its
            weight against them, for retrievers that count a repeated word twice, as BM25 does.
        preprocess_func: Splits a text into the words that may be added. They should be words as
            written, not stems, because the rewriting is read by the retriever's own analyser.

    Raises:
        TypeError: If `retriever` is not a retriever, `corpus` is a single string, or the question
            is not a string.
        ValueError: If a number is below 1.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        corpus: Iterable[str] = (),
        *,
        num_documents: int = 10,
        num_terms: int = 20,
        num_queries: int = 3,
        question_repeats: int = 2,
        preprocess_func: Analyser | None = None,
    ) -> None:
        if not isinstance(retriever, BaseRetriever):
            raise TypeError(f"retriever must be a BaseRetriever, got {type(retriever).__name__}.")
        if isinstance(corpus, str):
            raise TypeError("corpus must be several texts, got one string. Put it into a list.")
        self.retriever = retriever
        self.num_documents = _at_least_one("num_documents", num_documents)
        self.num_terms = _at_least_one("num_terms", num_terms)
        self.num_queries = _at_least_one("num_queries", num_queries)
        self.question_repeats = _at_least_one("question_repeats", question_repeats)
        self.preprocess_func = preprocess_func or content_words
        self._corpus_size = 0
        self._document_frequency: Counter[str] = Counter()
        for text in corpus:
            self._corpus_size += 1
            self._document_frequency.update({fold(word) for word in self.preprocess_func(text)})

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[str]:
        """Return the rewritten questions, without the question itself; `[]` if nothing is found.

        Args:
            input: The question.
            config: Callbacks, tags and so on; the retriever runs as a child tagged `feedback`.
            kwargs: Passed on to the retriever, such as `filter=…`.
        """
        return self._call_with_config(self._rewrite, input, config, **kwargs)

    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[str]:
        """Do what `invoke` does, on the event loop."""
        return await self._acall_with_config(self._arewrite, input, config, **kwargs)

    def _rewrite(
        self, question: str, run_manager: CallbackManagerForChainRun, **kwargs: Any
    ) -> list[str]:
        if not check_query(question).strip():
            return []
        found = invoke_child(self.retriever, question, run_manager, "feedback", **kwargs)
        return self._expand(question, found)

    async def _arewrite(
        self, question: str, run_manager: AsyncCallbackManagerForChainRun, **kwargs: Any
    ) -> list[str]:
        if not check_query(question).strip():
            return []
        found = await ainvoke_child(self.retriever, question, run_manager, "feedback", **kwargs)
        return await run_in_executor(None, self._expand, question, found)

    def _expand(self, question: str, documents: Sequence[Document]) -> list[str]:
        asked = {fold(word) for word in self.preprocess_func(question)}
        spellings: dict[str, Counter[str]] = {}
        models = []  # of each document, p(term | document) * idf(term)
        for document in documents[: self.num_documents]:
            words = self.preprocess_func(document.page_content)
            for word in words:
                spellings.setdefault(fold(word), Counter())[word] += 1
            counts = Counter(map(fold, words))
            models.append(
                {
                    term: count / len(words) * self._idf(term)
                    for term, count in counts.items()
                    if term not in asked
                }
            )
        relevance: dict[str, float] = {}  # sum over documents, each weighted by 1 / rank
        for rank, model in enumerate(models, start=1):
            for term, weight in model.items():
                relevance[term] = relevance.get(term, 0.0) + weight / rank
        rewritings: dict[str, None] = {}
        for model in [relevance, *models]:
            # Equal weights keep the order in which the terms were met: sorted() is stable.
            best = sorted(model, key=lambda term: -model[term])[: self.num_terms]
            added = [max(spellings[term], key=spellings[term].__getitem__) for term in best]
            if added:
                rewritings[" ".join([question.strip()] * self.question_repeats + added)] = None
        return list(rewritings)[: self.num_queries]

    def _idf(self, term: str) -> float:
        if not self._corpus_size:
            return 1.0
        holds = self._document_frequency[term]
        return math.log(1 + (self._corpus_size - holds + 0.5) / (holds + 0.5))


def content_words(text: str) -> list[str]:
    """Split a text into lower-case words, without English stop words, numbers and single letters.

    Runs of Chinese and Japanese characters, which have no spaces, become overlapping pairs.
    """
    words = []
    for word in _WORD.findall(text.casefold()):
        if _UNSPACED.fullmatch(word):
            words += [word[i : i + 2] for i in range(len(word) - 1)]
        elif len(word) > 1 and not word.isdecimal() and word not in _STOP_WORDS:
            words.append(word)
    return words


def fold(word: str) -> str:
    """Give the singular and the plural of a regular English noun the same form.

    Method: the S stemmer of Harman, "How Effective Is Suffixing?", JASIS 1991.
    """
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


def _at_least_one(name: str, value: int) -> int:
    count = check_count(name, value, None)
    if count is None:
        raise ValueError(f"{name} must be a whole number of at least 1, got None.")
    return count

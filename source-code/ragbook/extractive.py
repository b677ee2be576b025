"""A chat model that quotes: it answers with sentences of the context and invents nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, Field

from ragbook.chains import INSTRUCTIONS, NO_ANSWER, parse_context
from retrievers.bm25 import STOP_WORDS, default_preprocess_func
from retrievers.sentences import SENTENCE_OPENERS, split_sentences

__all__ = ["NO_ANSWER", "ExtractiveChatModel", "Quote", "split_sentences"]

THRESHOLD = 0.40
PARAPHRASE_THRESHOLD = 0.36
FEW_WORDS = 1 / 3
"""When the embedded scorer's score shows an answer: from the first number on, and from the second
on where the best passage shares less than the third with the question. Chosen by
`uv run benchmarks/extractive_threshold.py`."""


class Quote(NamedTuple):
    """One sentence of the context, the name of its passage, and how well it fits the question."""

    sentence: str
    name: str
    rank: float


class ExtractiveChatModel(BaseChatModel):
    """Answer the book's prompt with the context's best sentences, word for word, each cited.

    It cannot make anything up, runs in a fraction of a second, and shows what a reader of the
    passages would have to read. It cannot add up, compare or put into other words either.

    A sentence's rank is the sum of four things:

    - its score with the question;
    - `follow_weight` times the score of the sentence before it, because "He proposed ..." answers
      when the sentence before names whom;
    - `word_weight` times the share of the question's words that it holds, rare ones counting more;
    - `type_bonus` if it holds what the question word asks for: a name that the question does not
      hold (who), a number (when, how many).

    The context is held not to contain the answer

    - when the question has no word of content, such as "the";
    - when most of the names, numbers and codes in the question do not occur in it;
    - when no passage and no sentence scores `threshold`, or `paraphrase_threshold` where every
      passage holds less than `FEW_WORDS` of the question's words, rare ones counting more:
      words in common raise a score by themselves, so an answer in other words reaches less.

    Args:
        make_scorer: Makes the scorer of (question, text) pairs for the texts of one context, from
            which it may learn which words are rare there, such as `profile.cross_encoder`. For a
            scorer that needs no texts: `lambda texts: scorer`.
        threshold: The least score of an answer, on the scorer's own scale.
        paraphrase_threshold: The same where no passage shares enough words with the question.
        max_sentences: How many sentences an answer has at most.
        max_chars: How long an answer is at most, beyond its first sentence.
        keep_ratio: A sentence of a smaller rank than this part of the best one's is left out.
        follow_weight: See above.
        word_weight: See above.
        type_bonus: See above.

    Raises:
        ValueError: If the messages are not the book's prompt.
    """

    model_config = ConfigDict(extra="forbid")

    make_scorer: Callable[[Sequence[str]], BaseCrossEncoder]
    threshold: float = THRESHOLD
    paraphrase_threshold: float = PARAPHRASE_THRESHOLD
    max_sentences: int = Field(default=4, ge=1)
    max_chars: int = Field(default=1200, ge=1)
    keep_ratio: float = Field(default=0.7, ge=0, le=1)
    follow_weight: float = Field(default=0.5, ge=0)
    word_weight: float = Field(default=0.3, ge=0)
    type_bonus: float = Field(default=0.1, ge=0)

    @property
    def _llm_type(self) -> str:
        return "extractive"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        question, passages = read_prompt(messages)
        quotes = self.quotes(question, passages)
        lines = [f"{quote.sentence} [{quote.name}]" for quote in quotes] or [NO_ANSWER]
        for number, line in enumerate(lines):
            text = f"\n{line}" if number else line
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk

    def quotes(self, question: str, passages: Sequence[tuple[str, str]]) -> list[Quote]:
        """Return the sentences that answer, in the order of the context; none if nothing does.

        Args:
            question: The question.
            passages: (name, text) pairs, as `parse_context` returns them.
        """
        if not content_terms(question) or not mostly_named(question, passages):
            return []
        ranked, closeness, shared = self.rank(question, passages)
        return self.best(ranked) if closeness >= self.needed(shared) else []

    def needed(self, shared: float) -> float:
        """Return the least score of an answer, where the best passage shares so many words."""
        return self.threshold if shared >= FEW_WORDS else self.paraphrase_threshold

    def best(self, ranked: Sequence[Quote]) -> list[Quote]:
        """Return the best of the ranked sentences, in the order of the context."""
        best_first = sorted(range(len(ranked)), key=lambda i: -ranked[i].rank)
        kept: list[int] = []
        room = self.max_chars
        for i in best_first[: self.max_sentences]:
            room -= len(ranked[i].sentence)
            if kept and (room < 0 or ranked[i].rank < self.keep_ratio * ranked[kept[0]].rank):
                break
            kept.append(i)
        return [ranked[i] for i in sorted(kept)]

    def rank(
        self, question: str, passages: Sequence[tuple[str, str]]
    ) -> tuple[list[Quote], float, float]:
        """Rank every sentence of the context.

        Args:
            question: The question.
            passages: (name, text) pairs.

        Returns:
            The sentences in the order of the context, each once; the best score of any sentence or
            passage, minus infinity without a question or a sentence; and the greatest share of the
            question's words in any passage.
        """
        cited: dict[str, str] = {}
        for name, text in passages:
            for sentence in split_sentences(text):
                cited.setdefault(sentence, name)
        if not cited or not question.strip():
            return [], -math.inf, 0.0
        sentences, names = list(cited), list(cited.values())
        whole = [text for _, text in passages if text.strip()]
        scores = self.make_scorer(sentences).score(
            [(question, text) for text in [*sentences, *whole]]
        )
        right_type = _holds_answer_type(question, sentences)
        share = word_share(question, sentences)
        ranked = []
        for i, (sentence, name) in enumerate(cited.items()):
            follows = i > 0 and names[i - 1] == name
            rank = scores[i] + self.type_bonus * right_type(sentence)
            rank += self.word_weight * share(sentence)
            rank += self.follow_weight * max(scores[i - 1], 0.0) if follows else 0.0
            ranked.append(Quote(sentence, name, rank))
        return ranked, max(scores), max(map(share, whole))


def read_prompt(messages: Sequence[BaseMessage]) -> tuple[str, list[tuple[str, str]]]:
    """Take the book's prompt apart into the question and the (name, text) pairs of its context.

    Raises:
        ValueError: If the messages are something else.
    """
    types = [message.type for message in messages]
    if types != ["system", "human"] or not messages[0].text.startswith(INSTRUCTIONS):
        raise ValueError(
            "ExtractiveChatModel reads only the prompt ragbook.chains.PROMPT, one system message "
            f"with the context and one human message with the question; got messages {types}."
        )
    context = messages[0].text.removeprefix(INSTRUCTIONS)
    return messages[1].text, parse_context(context)


def mostly_named(question: str, passages: Sequence[tuple[str, str]]) -> bool:
    """Tell whether at least half of the question's names, numbers and codes are in the context.

    A passage about another person, year or code may be as near in meaning as one can get, and yet
    it does not answer.
    """
    context = "\n".join(text for _, text in passages).casefold()
    named = _names(question)
    missing = [name for name in named if not re.search(rf"(?<!\w){re.escape(name)}", context)]
    return len(missing) <= len(named) / 2


_WORD = re.compile(r"[^\W_](?:[\w+./:-]*\w)?")


def _names(question: str) -> list[str]:
    """Return, folded, the words that hold a digit or, after the first word, a capital."""
    words = _WORD.findall(question)
    shouted = question.isupper()
    return [
        word.casefold().removesuffix("s") if len(word) > 4 else word.casefold()
        for number, word in enumerate(words)
        if any(c.isdigit() for c in word)
        or (number and not shouted and any(map(str.isupper, word)))
    ]


_HOW = r"\bhow (?:many|much|long|high|far|old|fast|big|large|often|tall|heavy|hot|deep|wide)\b"


def content_terms(question: str) -> list[str]:
    """Return the question's terms, stemmed and each once, without function words.

    "many" in "how many" says what kind of answer is wanted and not what it is about.
    """
    text = re.sub(_HOW, " ", question, flags=re.IGNORECASE)
    terms = dict.fromkeys(default_preprocess_func(text))
    return [term for term in terms if term not in STOP_WORDS]


def word_share(question: str, sentences: Sequence[str]) -> Callable[[str], float]:
    """Return the function that tells how much of the question's content a text holds, 0 to 1.

    Terms are stemmed, and weigh the more the fewer of the sentences hold them, by BM25's inverse
    document frequency.

    Args:
        question: The question.
        sentences: Those of the context.
    """
    held = [set(default_preprocess_func(sentence)) for sentence in sentences]
    weights = {}
    for term in content_terms(question):
        holders = sum(term in terms for terms in held)
        weights[term] = math.log(1 + (len(held) - holders + 0.5) / (holders + 0.5))

    def share(text: str) -> float:
        found = weights.keys() & set(default_preprocess_func(text))
        # In the question's order: a set's changes from run to run, and the last digit with it.
        return sum(w for term, w in weights.items() if term in found) / sum(weights.values())

    return share if weights else lambda text: 0.0


_WHO = re.compile(r"\b(?:who|whom|whose)\b", re.IGNORECASE)
_WHEN_OR_HOW_MUCH = re.compile(
    r"\bwhen\b"
    rf"|{_HOW}"
    r"|\b(?:what|which) (?:year|date|number|code|percentage|share)\b"
    r"|\b(?:number|code|year)s? (?:of|for)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|hundred|thousand"
    r"|million|billion)\b",
    re.IGNORECASE,
)
# fmt: off
_CALENDAR = {
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
}
# fmt: on
_CAPITALISED = re.compile(
    r"(?P<inside>(?<=[\w,;:(] )[(\"'“‘«]*)?(?<![\w’'-])(?P<word>[^\W\d_][\w’'-]*)"
)
"""A word, and whether it stands inside a sentence. (Whether it has a capital is told later.)"""


def _holds_answer_type(question: str, context: Sequence[str]) -> Callable[[str], bool]:
    """Return the test whether a sentence holds the kind of thing that the question asks for.

    Args:
        question: The question.
        context: The sentences, whose lower-case words are no names at a sentence's start either.
    """
    if _WHO.search(question):
        known = {word.casefold() for word in _WORD.findall(question)}
        lower = {word for text in context for word in _WORD.findall(text) if word.islower()}
        return lambda text: bool(_proper_names(text, lower) - known)
    if _WHEN_OR_HOW_MUCH.search(question):
        return lambda text: bool(_NUMBER.search(text))
    return lambda text: False


def _proper_names(text: str, lower: set[str]) -> set[str]:
    """Return, folded, the capitalised words that are no months, days, or mere sentence openings.

    A word that begins a sentence has a capital in any case. It counts as a name unless it is a
    function word, or the context has it in lower case.
    """
    names = set()
    for found in _CAPITALISED.finditer(text):
        word = found["word"]
        folded = word.casefold()
        if not word[0].isupper() or not any(map(str.islower, word)) or folded in _CALENDAR:
            continue
        opens = found["inside"] is None
        if not (opens and (folded in lower or folded in SENTENCE_OPENERS or folded in STOP_WORDS)):
            names.add(folded)
    return names

"""The context that a chat model reads: documents below their names, within the room it has."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence

from langchain_core.documents import Document

logger = logging.getLogger(__name__)

NO_ANSWER = "The context does not contain the answer."
"""What every model is asked to say, word for word, when the passages do not answer the question."""

INSTRUCTIONS = (
    "Answer the question from the context below and from nothing else. Each passage of the context "
    "begins with a line that names it in square brackets. After each statement, write the name of "
    f"the passage that it comes from, in square brackets. If the context does not hold the answer, "
    f"write only: {NO_ANSWER}\n\nContext:\n"
)

CONTEXT_WINDOW = 8192
"""Tokens that a chat model reads and writes in one go. Every profile sets its model to this, as
Ollama's own default is smaller and cuts longer prompts without a word."""

CONTEXT_TOKENS = CONTEXT_WINDOW - 2048
"""Tokens of it for the context. The rest is for the instructions, the question and the answer."""

HEADER = re.compile(r"^\[(.+)\]$", re.MULTILINE)
LOOKS_LIKE_HEADER = re.compile(r"^\\*\[.+\]$", re.MULTILINE)
ESCAPED_HEADER = re.compile(r"^\\(\\*\[.+\])$", re.MULTILINE)


def format_context(documents: Sequence[Document], max_tokens: int = CONTEXT_TOKENS) -> str:
    """Write documents as the prompt's context, each below a line with its name in brackets.

    Documents beyond `max_tokens` are left out from the first that does not fit, with a logged
    warning: a model server would cut the prompt somewhere and not say so. A first document that is
    too long on its own keeps its beginning.

    Args:
        documents: What the retriever found, best first.
        max_tokens: The room for them, as `estimate_tokens` counts.

    Returns:
        The context, which `parse_context` takes apart again; empty without documents.
    """
    blocks: list[str] = []
    room = max_tokens
    for number, document in enumerate(documents, start=1):
        block = f"[{document_name(document, number)}]\n{escape(document.page_content)}"
        needed = estimate_tokens(block) + 1
        if needed > room:
            if not blocks:
                blocks.append(shorten(block, room))
            logger.warning(
                "Only %s of %d documents went into the context: it has room for %d tokens.",
                number - 1 if number > 1 else "the beginning of the first",
                len(documents),
                max_tokens,
            )
            break
        room -= needed
        blocks.append(block)
    return "\n\n".join(blocks)


def parse_context(text: str) -> list[tuple[str, str]]:
    """Take a context apart into (name, text) pairs: the inverse of `format_context`."""
    headers = list(HEADER.finditer(text))
    ends = [header.start() - len("\n\n") for header in headers[1:]] + [len(text)]
    return [
        (header[1], ESCAPED_HEADER.sub(r"\1", text[header.end() + 1 : end]))
        for header, end in zip(headers, ends)
    ]


def document_name(document: Document, number: int) -> str:
    """Return the name under which an answer cites a document: its id, else its source.

    Args:
        document: The document.
        number: Its place in the context, which names a document that has neither.
    """
    name = document.id or document.metadata.get("doc_id") or document.metadata.get("source")
    return " ".join(str(name or "").split()) or f"document {number}"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text without a tokenizer, rather too many than too few.

    Three bytes of UTF-8 a token: English has four to five letters a token, Chinese about one
    character (three bytes).
    """
    return math.ceil(len(text.encode()) / 3)


def escape(text: str) -> str:
    """Put a backslash before lines that look like a header, such as a Markdown reference."""
    return LOOKS_LIKE_HEADER.sub(r"\\\g<0>", text)


def shorten(block: str, max_tokens: int) -> str:
    """Cut a block to what fits, at the last end of a line or word."""
    kept = block.encode()[: max_tokens * 3].decode(errors="ignore")
    cut = max(kept.rfind("\n"), kept.rfind(" "))
    header_end = block.index("\n")
    kept = kept[:cut] if cut > header_end else kept
    line = kept.rfind("\n")
    if line > header_end and HEADER.fullmatch(kept, line + 1):
        kept = kept[:line]  # what stood behind it made it no header
    return kept

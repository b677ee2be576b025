"""Split documents into chunks whose ids stay the same from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from langchain_core.documents import Document


def split(
    documents: Iterable[Document], chunk_size: int = 1000, chunk_overlap: int = 0
) -> Iterator[Document]:
    """Split documents by LangChain's `RecursiveCharacterTextSplitter`: paragraphs, lines, words.

    Args:
        documents: Documents with an id.
        chunk_size: The longest chunk, in characters.
        chunk_overlap: How many characters at most a chunk repeats from the one before.

    Yields:
        The chunks in their order. The id of chunk n is `<id of the document>#<n>`, from 1; metadata
        is that of the document, `source` (its id, unless it has a source) and `start_index`, where
        the chunk begins in its text.

    Raises:
        ValueError: If `chunk_size` < 1, or `chunk_overlap` is not from 0 to `chunk_size` - 1.
    """
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    check_split(chunk_size, chunk_overlap)
    splitter = RecursiveCharacterTextSplitter(
        chunk_size=chunk_size, chunk_overlap=chunk_overlap, add_start_index=True
    )
    for document in documents:
        for number, chunk in enumerate(splitter.split_documents([document]), start=1):
            chunk.metadata.setdefault("source", document.id)
            chunk.id = f"{document.id}#{number}"
            yield chunk


def check_split(chunk_size: int, chunk_overlap: int) -> None:
    """Refuse sizes that no splitter can keep.

    Raises:
        ValueError: If they are such.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 character, got {chunk_size}.")
    if not 0 <= chunk_overlap < chunk_size:
        raise ValueError(
            f"chunk_overlap must be at least 0 and below chunk_size = {chunk_size}, "
            f"got {chunk_overlap}."
        )

"""From a folder of .txt and .md files to documents, passages and labelled questions."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from langchain_core.documents import Document
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scale.split import check_split
from scale.text import NotText, decoded

logger = logging.getLogger(__name__)

SUFFIXES = (".txt", ".md")


class CorpusError(ValueError):
    """A folder, text file or question file cannot be used; the message says why and what to do."""


def load_documents(folder: str | Path) -> list[Document]:
    """Read every .txt and .md file below a folder, one document a file.

    Hidden files and folders, such as `.git`, are left out. Files must be UTF-8, with or without a
    byte order mark; line ends become `\\n`. An empty file is skipped with a warning. Links are
    followed, and a folder that several links lead to is read once; a link to a folder outside is
    not followed.

    Args:
        folder: The folder, as a path or a string; `~` is the home folder.

    Returns:
        The documents, sorted by their path in the folder. That path, with forward slashes, is the
        document's id and its `metadata["source"]`.

    Raises:
        CorpusError: If there is no such folder, it holds no text, or files cannot be read; it names
            all of them.
    """
    root = Path(folder).expanduser()
    if root.is_file():
        raise CorpusError(f"{folder} is a file, not a folder. Give the folder that holds it.")
    if not root.is_dir():
        raise CorpusError(
            f"There is no folder {folder}. Check the path, or make the folder and put .txt or .md "
            "files into it."
        )
    paths = {_name(path.relative_to(root)): path for path in text_files(root)}
    if not paths:
        raise CorpusError(f"The folder {folder} has no .txt or .md file. Put at least one into it.")
    documents, faults = [], []
    for source, path in sorted(paths.items()):
        try:
            text = _read(path)
        except CorpusError as error:
            faults.append(str(error))
            continue
        if text.strip():
            documents.append(Document(id=source, page_content=text, metadata={"source": source}))
        else:
            logger.warning("Skipped %s: the file is empty.", path)
    if faults:
        raise CorpusError("\n".join(faults))
    if not documents:
        raise CorpusError(
            f"Every .txt and .md file in the folder {folder} is empty. Put text into one of them."
        )
    return documents


def text_files(folder: str | Path) -> list[Path]:
    """Return the files that `load_documents` reads."""
    root = Path(folder).expanduser()
    return list(_text_files(root, root, set()))


def load_passages(
    folder: str | Path, chunk_size: int = 1000, chunk_overlap: int = 0
) -> list[Document]:
    """Read a folder as `load_documents` does and split it as `split_into_passages` does."""
    return split_into_passages(load_documents(folder), chunk_size, chunk_overlap)


def split_into_passages(
    documents: Iterable[Document], chunk_size: int = 1000, chunk_overlap: int = 0
) -> list[Document]:
    """Split documents at blank lines into passages, and long paragraphs into parts.

    A passage is always a piece of the text as it stands: it is found again at
    `text[start_index : start_index + len(page_content)]`, and with no overlap the passages cover
    every character that is not blank exactly once.

    In Markdown (a source that ends in `.md`) a heading goes with the paragraph after it, because it
    says what the paragraph is about, and so does a paragraph that ends in a colon or has no letter
    or digit, such as `---`. Blank lines inside a code fence do not split it. Front matter is left
    out unless there is nothing else.

    Args:
        documents: Documents with an `id` or a `metadata["source"]`, which starts the passage ids.
        chunk_size: The longest passage, in characters. A longer paragraph is split before
            list items and table rows, at sentence ends, at line ends, at spaces, or anywhere, in
            that order of preference.
        chunk_overlap: How many characters at most, rounded down to whole words, such a part
            repeats from the part before it. They count towards `chunk_size`.

    Returns:
        Passages in the order of the text. Ids are `chemistry.txt#3` for the third paragraph and
        `chemistry.txt#3.1`, `chemistry.txt#3.2` for the parts of a long one; metadata has `source`,
        `paragraph` (from 1) and `start_index`.

    Raises:
        ValueError: If `chunk_size` < 1, or `chunk_overlap` is not from 0 to `chunk_size` - 1.
        CorpusError: If a document has neither an id nor a source.
    """
    check_split(chunk_size, chunk_overlap)
    passages = []
    for document in documents:
        text, source = document.page_content, document.metadata.get("source") or document.id
        if not source:
            raise CorpusError(
                f"A document has neither an id nor metadata['source']: {text[:60]!r}. "
                "Passage ids start with one of them; set it."
            )
        blocks = _markdown_blocks(text) if source.lower().endswith(".md") else _blocks(text)
        for paragraph, block in enumerate(blocks, start=1):
            parts = _parts(text, block, chunk_size, chunk_overlap)
            for number, (start, end) in enumerate(parts, start=1):
                suffix = f".{number}" if len(parts) > 1 else ""
                passages.append(
                    Document(
                        id=f"{document.id or source}#{paragraph}{suffix}",
                        page_content=text[start:end],
                        metadata={
                            **document.metadata,
                            "source": source,
                            "paragraph": paragraph,
                            "start_index": start,
                        },
                    )
                )
    return passages


class Question(BaseModel):
    """A question with the strings that a right answer contains and the passages that help.

    Args:
        id: Such as `q001`.
        question: As a person would ask it.
        relevant: Ids of the passages that help to answer; none if it is unanswerable.
        answers: Short strings, all of which a right answer contains; may be left out.
        kind: What makes the question hard to retrieve for, in any words; may be left out. Without
            relevant passages it is `unanswerable`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"\S")
    question: str = Field(pattern=r"\S")
    relevant: tuple[str, ...]
    answers: tuple[str, ...] = ()
    kind: str = ""

    @model_validator(mode="before")
    @classmethod
    def _name_the_kind(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("relevant") in ([], ()):
            return {**values, "kind": values.get("kind") or "unanswerable"}
        return values

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.kind == "unanswerable":
            if self.answers or self.relevant:
                raise ValueError("an unanswerable question has no answers and no relevant passages")
        elif not self.relevant:
            raise ValueError(
                f"a question of kind {self.kind} needs relevant passages; one that no passage "
                "answers has no kind, or the kind unanswerable"
            )
        return self


def load_questions(
    path: str | Path, passages: Iterable[Document] | None = None, folder: str = ""
) -> list[Question]:
    """Read labelled questions from a file with one JSON object a line.

    A question needs `question` and `relevant`; one without an `id` is called `q1`, `q2`, … by its
    place among the questions.

    Args:
        path: The file, such as `data/questions.jsonl`.
        passages: If given, every label must be the id of one of them.
        folder: Where the passages are from, for the error message.

    Returns:
        The questions in the order of the file. Blank lines are skipped.

    Raises:
        CorpusError: If the file cannot be read, or a line is not a question; names file and line.
    """
    known = None if passages is None else {passage.id for passage in passages}
    questions: dict[str, Question] = {}
    for number, line in enumerate(_read(Path(path).expanduser()).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        question = _question(line, place, f"q{len(questions) + 1}")
        if question.id in questions:
            raise CorpusError(
                f"{place}: the id {question.id} is taken by an earlier line. Give this one another."
            )
        missing = [label for label in question.relevant if known is not None and label not in known]
        if missing:
            raise CorpusError(
                f"{place}: no passage{folder and f' of {folder}'} has the id "
                f"{', '.join(missing)}. Correct `relevant`: rag passages lists the ids of a folder."
            )
        questions[question.id] = question
    return list(questions.values())


def default_data_folder() -> Path:
    """Return `data` in the current folder if it is there, else the repository's own.

    Raises:
        CorpusError: If neither is there, as in an installation without the repository.
    """
    for folder in (Path("data"), Path(__file__).resolve().parents[2] / "data"):
        if folder.is_dir():
            return folder
    raise CorpusError(
        "There is no folder data here, and the book's own is not installed. Name a folder with "
        ".txt or .md files, for example: rag ask --data FOLDER QUESTION"
    )


def _name(path: Path) -> str:
    # In a locale that is not UTF-8, Python keeps the bytes of a name as surrogates.
    return os.fsencode(path.as_posix()).decode("utf-8", "replace")


def _text_files(folder: Path, root: Path, seen: set[Path]) -> Iterator[Path]:
    real = folder.resolve()
    if real in seen:  # a loop of links, or a second way to the same folder
        return
    if not real.is_relative_to(root.resolve()):
        logger.warning("Skipped %s: it is a link to a folder outside %s.", folder, root)
        return
    seen.add(real)
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError as error:
        raise _unreadable("folder", folder, error) from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _text_files(entry, root, seen)
        elif entry.suffix.lower() in SUFFIXES and (entry.is_file() or entry.is_symlink()):
            yield entry  # a dangling link too, so that reading it reports it


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable("file", path, error) from error
    try:
        return decoded(data, str(path))
    except NotText as error:
        raise CorpusError(f"{path} {error}") from error


def _unreadable(what: str, path: Path, error: OSError) -> CorpusError:
    return CorpusError(
        f"The {what} {path} cannot be read: {error.strerror or error}. "
        "Check that it exists and that you have the right to read it, or take it out."
    )


def _question(line: str, place: str, default_id: str) -> Question:
    try:
        fields = json.loads(line)
        if isinstance(fields, dict):
            fields.setdefault("id", default_id)
        return Question.model_validate(fields)
    except json.JSONDecodeError as error:
        raise CorpusError(
            f"{place}: not valid JSON ({error.msg}, column {error.colno}). "
            "Write one JSON object on each line."
        ) from error
    except ValidationError as error:
        fault = _fault(error.errors()[0])
        raise CorpusError(f"{place}: {fault}. Correct this line.") from error


def _fault(error: Any) -> str:
    """Say in plain words what is wrong with a question, for pydantic's first error."""
    name = f"`{error['loc'][0]}`" if error["loc"] else ""
    given = json.dumps(error["input"], ensure_ascii=False)
    given = given if len(given) <= 60 else f"{given[:60]}…"
    match error["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return f"there is no field {name}; the fields are {', '.join(Question.model_fields)}"
        case "string_type" if len(error["loc"]) > 1:
            return f"{name} must be a list of strings, it has {given}"
        case "string_type":
            return f"{name} must be a string, got {given}"
        case "tuple_type":
            return f'{name} must be a list of strings, such as ["…"], got {given}'
        case "string_pattern_mismatch":
            return f"{name} is blank"
        case "model_type":
            return f'a question is an object, such as {{"question": "…"}}, got {given}'
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


class _Block(NamedTuple):
    """A paragraph: `text[start:end]`, of which `text[start:body]` leads in to the rest."""

    start: int
    body: int
    end: int


_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_UNDERLINED = re.compile(r"[^\n]+\n {0,3}(?:=+|-+)")
_FENCE = re.compile(r"(?:[ \t]|>|[-*+] |\d+[.)] )*(`{3,}(?=[^`]*$)|~{3,})")
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n(?:#|\w[^\n]*[:=]).*?^\1[ \t]*$", re.S | re.M)

_LIST_ITEM = r"\n(?=[ \t]*(?:[-*+|]|\d+[.)])[ \t])"
_SENTENCE_END = r"(?<=[.!?…])\s|(?<=[.!?…][\"'”’)])\s|(?<=[。！？])"


def _blocks(text: str, start: int = 0, markdown: bool = False) -> list[_Block]:
    """Find the runs of lines between blank lines; in Markdown a heading is a run of its own."""
    blocks: list[_Block] = []
    open_block, fence = False, ""
    for line in text[start:].split("\n"):
        is_blank, is_heading, inside = not line.strip(), False, bool(fence)
        if markdown and fence:
            if re.fullmatch(rf"[\s>]*{fence[0]}{{{len(fence)},}}\s*", line):
                fence = ""
        elif markdown and (match := _FENCE.match(line)):
            fence = match[1]
        elif markdown:
            is_heading = bool(_HEADING.match(line))
        if not is_blank:
            first = start + len(line) - len(line.lstrip())
            last = start + len(line.rstrip())
            if open_block and not is_heading:
                blocks[-1] = blocks[-1]._replace(end=last)
            else:
                blocks.append(_Block(first, first, last))
        open_block = (open_block or not is_blank) if inside else not (is_blank or is_heading)
        start += len(line) + 1
    return blocks


def _markdown_blocks(text: str) -> list[_Block]:
    front = _FRONT_MATTER.match(text)
    blocks = _blocks(text, front.end() if front else 0, markdown=True) or _blocks(text)
    joined: list[_Block] = []
    lead: int | None = None
    for block in blocks:
        if _leads_in(text[block.start : block.end]):
            lead = block.start if lead is None else lead
        else:
            joined.append(block if lead is None else block._replace(start=lead))
            lead = None
    if lead is not None:  # nothing follows the last heading
        last = joined.pop() if joined else _Block(lead, lead, lead)
        joined.append(last._replace(end=blocks[-1].end))
    return joined


def _leads_in(block: str) -> bool:
    """Tell whether a Markdown block belongs with the one after it."""
    one_line = "\n" not in block and bool(_HEADING.match(block))
    underlined = bool(_UNDERLINED.fullmatch(block))
    return one_line or underlined or block.endswith(":") or not re.search(r"\w", block)


def _parts(text: str, block: _Block, size: int, overlap: int) -> list[tuple[int, int]]:
    """Cut a block into parts of at most `size` characters; the first one holds the headings."""
    start, body, end = block
    if end - start <= size:
        return [(start, end)]
    # Imported here: most folders have no paragraph that needs it.
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    if body - start > (size - overlap) // 2:
        body = start  # headings that leave no room are split like text
    splitter = RecursiveCharacterTextSplitter(
        separators=[_LIST_ITEM, _SENTENCE_END, r"\n\n", r"\n", " ", ""],
        is_separator_regex=True,
        chunk_size=size - overlap - (body - start),
        chunk_overlap=0,  # with overlap, the splitter's start_index is wrong in repetitive text
        add_start_index=True,
    )
    parts: list[tuple[int, int]] = []
    for chunk in splitter.create_documents([text[body:end]]):
        if chunk.page_content.strip():
            first = body + chunk.metadata["start_index"]
            reach = _reach_back(text, first, overlap, body) if parts else start
            parts.append((reach, first + len(chunk.page_content)))
    return parts


def _reach_back(text: str, start: int, overlap: int, floor: int) -> int:
    """Move `start` back by at most `overlap` characters, to the beginning of a word."""
    earliest = max(floor, start - overlap)
    if earliest == floor:
        return floor
    for position in range(earliest, start):
        if text[position - 1].isspace() and not text[position].isspace():
            return position
    # No word begins there: the end of a longer word, or writing without spaces.
    return start if re.search(r"\s", text[earliest:start]) else earliest

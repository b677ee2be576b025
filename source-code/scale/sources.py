"""What a corpus is made of: its files, on a disk or in an object store, and units of work."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

_PATTERNS = {
    "parquet": r"\.(parquet|pq)$",
    "jsonl": r"\.(jsonl|ndjson|json)(\.gz)?$",
    "text": r"\.(txt|md)$",
}
FORMATS = ("beir", *_PATTERNS)

SMALLEST_SHARD, LARGEST_SHARD = 1 << 20, 16 << 20
"""Bytes of text that are read, embedded and written as one."""
SHARDS = 2000
"""How many shards to aim at: a table of very many small commits is slow to open."""


class IngestError(RuntimeError):
    """A corpus could not be ingested; the message says what was wrong and what to do."""


@dataclass(frozen=True)
class File:
    """A file of a corpus: its name in it, its path for the file system, size, and last change."""

    name: str
    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


@dataclass(frozen=True)
class Piece:
    """A part of a file: lines that begin from byte `start` to `stop`, or one row group, or all."""

    name: str
    path: str
    size: int
    start: int = 0
    stop: int = 0
    group: int = 0


@dataclass(frozen=True)
class Unit:
    """What one task reads. It gives one shard of rows, or several where the pieces are large.

    The units of a corpus depend on nothing but its files and `shard_bytes`.
    """

    number: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes of the files that it reads."""
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, which format they have, and how to reach them."""

    location: str
    format: str
    files: tuple[File, ...]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the object store, keys too; so no message shows them."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def manifest(self) -> list[list[Any]]:
        """Return name, size and last change of every file: what must not change before the end."""
        return [[file.name, file.size, file.modified] for file in self.files]


def find_corpus(
    location: str | os.PathLike[str],
    format: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Corpus:
    """Find the files of a corpus.

    Args:
        location: A file, a folder (with all folders in it) or a pattern with `*`, on this machine
            or as `s3://…`. Names that begin with a dot or an underscore are left out.
        format: `"beir"`, `"parquet"`, `"jsonl"` or `"text"`; by default, what the names say.
        options: Keys, region and address of an object store, named as LanceDB names them.

    Raises:
        IngestError: If there are no such files, files of several formats, or no right to read.
    """
    if format is not None and format not in FORMATS:
        raise IngestError(f"The format must be one of {', '.join(FORMATS)}, got {format!r}.")
    shown = os.fspath(location)
    if not shown.strip():
        raise IngestError("The corpus has no address. Give a file, a folder or a pattern.")
    found = _listed(shown, options or {})
    if format is None and any(file.name == "corpus.jsonl" for file in found):
        format = "beir"
    if format == "beir":
        chosen = [file for file in found if re.search(r"(^|/)corpus\.jsonl(\.gz)?$", file.name)]
        if len(chosen) != 1:
            raise IngestError(f"{shown} is no folder in BEIR's format: it has no corpus.jsonl.")
        return Corpus(shown, format, tuple(chosen), dict(options or {}))
    by_format = {
        name: [file for file in found if re.search(pattern, file.name.lower())]
        for name, pattern in _PATTERNS.items()
        if format in (None, name)
    }
    present = [name for name, files in by_format.items() if files]
    if not present:
        wanted = "Parquet, JSON lines or text (.txt, .md)" if format is None else format
        raise IngestError(
            f"There is no file of {wanted} at {shown}. Check the path; .gz is read for JSON lines."
        )
    if len(present) > 1:
        counts = ", ".join(f"{len(by_format[name])} of {name}" for name in present)
        raise IngestError(f"{shown} has files of several formats ({counts}). Choose by --format.")
    files = sorted(by_format[present[0]], key=lambda file: file.name)
    return Corpus(shown, present[0], tuple(files), dict(options or {}))


def shard_bytes(corpus: Corpus) -> int:
    """Return how many bytes of text a shard of this corpus has by default."""
    return min(max(corpus.size // SHARDS, SMALLEST_SHARD), LARGEST_SHARD)


def units(corpus: Corpus, size: int) -> list[Unit]:
    """Cut a corpus into units of about `size` bytes: small files together, large ones in parts."""
    packed: list[list[Piece]] = []
    weight = size + 1
    for piece in _pieces(corpus, size):
        if weight + piece.size > size:
            packed.append([])
            weight = 0
        packed[-1].append(piece)
        weight += piece.size
    return [Unit(number, tuple(pieces)) for number, pieces in enumerate(packed)]


def filesystem(location: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the `pyarrow.fs` file system of an address, and the path in it.

    Raises:
        IngestError: If it is an address of another kind than `s3://…`.
    """
    from pyarrow import fs  # type: ignore[import-untyped]

    if "://" not in location:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(location))
    if not location.startswith("s3://"):
        raise IngestError(f"A corpus is a path on this machine or s3://…, got {location!r}.")
    return fs.S3FileSystem(**_s3_arguments(options)), location.removeprefix("s3://").rstrip("/")


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Translate what LanceDB calls the settings of S3, and its environment, to Arrow's names."""
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    environment = {
        "endpoint": os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT"),
        "region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    }
    given = {name: value for name, value in environment.items() if value} | given
    endpoint = given.get("endpoint") or given.get("endpoint_url")
    arguments: dict[str, Any] = {
        "access_key": given.get("access_key_id"),
        "secret_key": given.get("secret_access_key"),
        "session_token": given.get("session_token"),
        "region": given.get("region") or ("us-east-1" if endpoint else None),
    }
    if endpoint:
        scheme, separator, host = endpoint.partition("://")
        arguments["endpoint_override"] = host if separator else endpoint
        arguments["scheme"] = scheme if separator else "https"
    return {name: value for name, value in arguments.items() if value}


def _listed(location: str, options: Mapping[str, str]) -> list[File]:
    from pyarrow import fs

    system, path = filesystem(location, options)
    base, pattern = _base_and_pattern(path)
    try:
        about = system.get_file_info(base)
        if about.type == fs.FileType.File:
            return [_file(about, about.base_name)]
        if about.type == fs.FileType.NotFound:
            raise IngestError(f"There is no file or folder {location}. Check the path.")
        entries = system.get_file_info(fs.FileSelector(base, recursive=True))
        paths = [entry.path for entry in entries]
    except (OSError, ValueError) as error:  # of names that are not UTF-8 too
        raise IngestError(f"{location} cannot be read: {one_line(error)}.") from error
    files = []
    for entry, entry_path in zip(entries, paths):
        name = entry_path[len(base) :].lstrip("/").replace(os.sep, "/")
        hidden = any(part.startswith((".", "_")) for part in name.split("/"))
        if entry.type == fs.FileType.File and not hidden and pattern.fullmatch(name):
            files.append(_file(entry, name))
    return files


def _file(about: Any, name: str) -> File:
    return File(name, about.path, about.size, about.mtime_ns or 0)


def _base_and_pattern(path: str) -> tuple[str, re.Pattern[str]]:
    """Return the folder before the first `*` of a path, and which names in it are meant."""
    parts = path.split("/")
    first = next((n for n, part in enumerate(parts) if "*" in part or "?" in part), None)
    if first is None:
        return path, re.compile(r".*", re.DOTALL)
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    rest = re.split(r"(\*\*/|\*\*|\*|\?)", "/".join(parts[first:]))
    return "/".join(parts[:first]) or "/", re.compile(
        "".join(words.get(word, re.escape(word)) for word in rest), re.DOTALL
    )


def _pieces(corpus: Corpus, size: int) -> Iterator[Piece]:
    if corpus.format == "parquet":
        yield from _row_groups(corpus)
        return
    for file in corpus.files:
        whole = Piece(file.name, file.path, file.size, 0, file.size)
        if corpus.format == "text" or file.name.endswith(".gz"):  # gzip is read from its start
            yield whole
            continue
        parts = max(1, -(-file.size // size))
        bounds = [file.size * part // parts for part in range(parts + 1)]
        for start, stop in pairwise(bounds):
            yield replace(whole, size=stop - start, start=start, stop=stop)


def _row_groups(corpus: Corpus) -> Iterator[Piece]:
    from concurrent.futures import ThreadPoolExecutor

    def pieces(file: File) -> list[Piece]:
        footer = parquet_footer(corpus, file)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        starts = [0, *accumulate(group.num_rows for group in groups)]
        # The bytes of the columns, as rows of a group may be anywhere in the file.
        sizes = [group.total_byte_size for group in groups]
        scale = file.size / (sum(sizes) or 1)
        return [
            Piece(file.name, file.path, int(weight * scale), start, start + group.num_rows, number)
            for number, (group, start, weight) in enumerate(zip(groups, starts, sizes))
        ]

    with ThreadPoolExecutor(16) as threads:
        for found in threads.map(pieces, corpus.files):
            yield from found


def parquet_footer(corpus: Corpus, file: File) -> Any:
    """Return what the end of a Parquet file says: its schema, and where its rows are.

    Raises:
        IngestError: If it is no such file, or cannot be read.
    """
    from pyarrow import parquet

    system, _ = filesystem(corpus.location, corpus.options)
    try:
        with system.open_input_file(file.path) as opened:
            return parquet.ParquetFile(opened).metadata
    except (OSError, ValueError) as error:
        raise IngestError(f"{file.name} is no Parquet file: {one_line(error)}.") from error


def one_line(error: BaseException) -> str:
    """Return what an error says, in one line and without an end mark."""
    words = " ".join(str(error).split())
    return (words or type(error).__name__)[:300].rstrip(" .,")


def listed(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and that there are more."""
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")

"""The book's graph database: what is in it, and building it once and finding it again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from ragbook.corpus import CorpusError, default_data_folder, load_passages, text_files
from ragbook.embedding_cache import cache_folder, cached_embeddings
from ragbook.knowledge_graph import Edge, KnowledgeGraph, build_knowledge_graph
from retriever_tools.graph_rows import (
    EdgeTable,
    GraphRows,
    NodeTable,
    Progress,
    tell,
    with_vectors,
    write_rows,
)

if TYPE_CHECKING:
    from ragbook.profiles import Profile
    from retriever_tools.ladybug_store import LadybugStore

logger = logging.getLogger(__name__)

KEPT = 7 * 24 * 3600
"""Seconds that a graph which is out of date is kept, as a service that was started with it runs on
with it, and nothing tells whether one does."""

_RULES = (
    *("entities.py", "entity_names.py", "entity_terms.py", "entity_words.py"),
    *("communities.py", "graph_data.py", "knowledge_graph.py"),
)


def knowledge_rows(folder: Path) -> GraphRows:
    """Return the rows of the knowledge graph of a folder of text.

    Tables of nodes: `Chunks` (id, content, source, partition_id, which is the source), `Entities`
    (id, entity_name, kind, aliases, description, mentions), `Communities` (id, title, content,
    size), each with `embedding`. Relationships: `MENTIONED_IN` (Entities to Chunks), `RELATED_TO`
    (Entities to Entities, once a pair, so match it in both directions), `IN_COMMUNITY` (Entities to
    Communities), each with `weight`.

    Raises:
        CorpusError: If the folder is not there or holds no text.
    """
    return _rows_of(load_passages(folder))


def _rows_of(passages: list[Document]) -> GraphRows:
    graph = build_knowledge_graph(passages)
    return GraphRows(
        nodes=[_chunks(graph), _entities(graph), _communities(graph)],
        edges=[
            _links("MENTIONED_IN", "Chunks", graph.mentioned_in),
            _links("RELATED_TO", "Entities", graph.related_to),
            _links("IN_COMMUNITY", "Communities", graph.in_community),
        ],
    )


def example_rows(folder: Path | None = None) -> GraphRows:
    """Return the rows of the book's example database.

    Beside the knowledge graph of the folder's texts (see `knowledge_rows`): `Airports` (id, name,
    city, island, region, elevation_m, runway_m, opened, content) with `FLIGHT` between them
    (flight, carrier, distance_km, minutes, weekly), and `Tickets` (id, title, content, product,
    partition_id, which is the product, team, status, updated, embedding). The airports lie in an
    archipelago that does not exist.

    Args:
        folder: The book's `data`; default: where it is.
    """
    folder = folder or default_data_folder()
    rows = knowledge_rows(folder)
    return GraphRows(
        nodes=[*rows.nodes, _airports(folder), _tickets(folder)],
        edges=[*rows.edges, _flights(folder)],
    )


def build_example(
    store_path: Path, embeddings: Embeddings, progress: Progress | None = None
) -> None:
    """Build the book's example database.

    Args:
        store_path: The database's file; an old one is replaced when the new one is whole.
        embeddings: Embed chunks, entities, communities and tickets.
        progress: Told what is being done.
    """
    tell(progress, "Finding entities and their relations")
    write_graph(store_path, example_rows(), embeddings, progress)


def build_from_folder(
    store_path: Path, folder: Path, embeddings: Embeddings, progress: Progress | None = None
) -> None:
    """Build the knowledge graph of your own texts; it has no airports, flights and tickets.

    Raises:
        CorpusError: If the folder is not there or holds no text.
    """
    passages = load_passages(folder)  # before anything is said to be done
    tell(progress, "Finding entities and their relations")
    write_graph(store_path, _rows_of(passages), embeddings, progress)


def example_store(profile: Profile, progress: Progress | None = None) -> LadybugStore:
    """Open the book's example database, built first if there is none or its data changed."""
    return _opened(profile, None, progress)


def folder_store(profile: Profile, folder: Path, progress: Progress | None = None) -> LadybugStore:
    """Open the knowledge graph of a folder of text, built first if there is none of it as it is.

    Raises:
        CorpusError: If the folder is not there or holds no text.
    """
    return _opened(profile, folder, progress)


def graph_path(profile: Profile, folder: Path | None = None) -> Path:
    """Return where the graph of a folder, as its files are now, is kept.

    Its name holds a digest of the data, of the embedding model and of the code that builds it:
    whatever changes, the graph is built anew, and a graph that is there is never out of date. What
    stands before the digest is the same for all graphs of a folder and a model, so that old ones
    are found and removed.

    Args:
        profile: Whose embeddings it has.
        folder: The folder of text; None: the book's example.
    """
    digest = hashlib.sha256(json.dumps(profile.embedding_model).encode())
    for module in _RULES:
        digest.update(Path(__file__).with_name(module).read_bytes())
    root = folder or default_data_folder()
    files = sorted(text_files(root)) if root.is_dir() else []
    if folder is None:
        files += [root / name for name in ("airports.jsonl", "flights.jsonl", "tickets.jsonl")]
    for file in files:
        name = file.relative_to(root).as_posix()
        data = _read(file)
        digest.update(json.dumps([name, len(data)]).encode() + data)
    of = [profile.embedding_model, None if folder is None else str(folder.resolve())]
    source = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:8]
    kind = "example" if folder is None else "folder"
    return cache_folder() / "graphs" / f"{kind}-{source}-{digest.hexdigest()[:16]}.lbug"


def write_graph(
    store_path: Path,
    rows: GraphRows,
    embeddings: Embeddings,
    progress: Progress | None = None,
) -> None:
    """Embed what is to be embedded, and write rows into a database file, wholly or not at all."""
    from retriever_tools.graph_writer import GraphWriter

    filled = with_vectors(rows, embeddings, progress)
    tell(progress, "Writing the graph")
    with GraphWriter(store_path) as graph:
        write_rows(graph, filled)


def _opened(profile: Profile, folder: Path | None, progress: Progress | None) -> LadybugStore:
    from retriever_tools.graph_writer import remove_abandoned
    from retriever_tools.ladybug_file import DiskFullError, draft, remove_draft
    from retriever_tools.ladybug_store import LadybugStore
    from retriever_tools.store import StoreError

    path = graph_path(profile, folder)
    if store := _kept(path):
        return store
    if path.exists():
        told = "The graph in the cache is damaged, so it is built again; tools added to it are lost"
        tell(progress, told)
    remove_abandoned(path.parent, r"(?:example|folder)-[0-9a-f-]+\.lbug")
    embeddings = cached_embeddings(profile, progress=progress is not None)
    new = draft(path)
    try:
        if folder is None:
            build_example(new, embeddings, progress)
        else:
            build_from_folder(new, folder, embeddings, progress)
        _put(new, path)
    except DiskFullError:
        raise StoreError(
            f"There is not enough room for the graph in {path.parent}. "
            "Free some, or set RAG_CACHE to a folder on another disk."
        ) from None
    finally:
        remove_draft(new)
    _remove_old(path)
    return LadybugStore(path)


def is_built(profile: Profile, folder: Path | None = None) -> bool:
    """Tell whether the graph of a folder, as its files are now, is there and can be read."""
    if store := _kept(graph_path(profile, folder)):
        store.close()
    return store is not None


def _kept(path: Path) -> LadybugStore | None:
    """Open a graph of the cache; None if there is none, or it cannot be read."""
    from retriever_tools.checksums import is_intact
    from retriever_tools.ladybug_file import UnreadableError
    from retriever_tools.ladybug_store import LadybugStore

    try:
        return LadybugStore(path) if is_intact(path) else None
    except UnreadableError:  # of another version of the engine
        return None


def _put(new: Path, path: Path) -> None:
    """Give a graph its place, unless another process was quicker: the same graph is there then."""
    from retriever_tools.checksums import record
    from retriever_tools.graph_writer import file_error, write_lock

    try:
        with write_lock(new) as file:
            record(file, path)
            try:
                os.link(new, path)
                return
            except OSError:  # it is there, or this file system has no links
                pass
        if store := _kept(path):
            store.close()
        else:
            os.replace(new, path)
    except OSError as error:
        raise file_error(path, error) from None


def _remove_old(path: Path) -> None:
    """Remove the graphs of the same folder and model that are out of date, with their indexes.

    Kept are those of the last days, and those that hold tools somebody has added.
    """
    from retriever_tools.checksums import checksum_file, is_intact
    from retriever_tools.embedded_indexes import EmbeddedIndexes
    from retriever_tools.ladybug_store import LadybugStore
    from retriever_tools.store import StoreError

    for old in path.parent.glob(f"{path.name.rpartition('-')[0]}-*.lbug"):
        try:
            if old == path or time.time() - old.stat().st_mtime < KEPT:
                continue
            if is_intact(old):
                with closing(LadybugStore(old)) as store:
                    if store.tools():
                        continue
            indexes = old.with_name(f"{old.name}.indexes")
            EmbeddedIndexes(indexes, old.name).drop()
            with suppress(OSError):  # there is none, or somebody keeps something else there
                indexes.rmdir()
            old.unlink()
            checksum_file(old).unlink(missing_ok=True)
        except (OSError, StoreError) as error:  # in use; the next build tries again
            logger.info("%s is not removed: %s", old.name, error)


def _chunks(graph: KnowledgeGraph) -> NodeTable:
    rows = [
        {
            "id": str(chunk.id),
            "content": chunk.page_content,
            "source": chunk.metadata["source"],
            "partition_id": chunk.metadata["source"],
        }
        for chunk in graph.chunks
    ]
    fields = dict.fromkeys(("id", "content", "source", "partition_id"), "STRING")
    return NodeTable("Chunks", fields, rows, [chunk.page_content for chunk in graph.chunks])


def _entities(graph: KnowledgeGraph) -> NodeTable:
    names = ("id", "entity_name", "kind", "aliases", "description")
    fields = dict.fromkeys(names, "STRING") | {"mentions": "INT64"}
    rows = [vars(entity) for entity in graph.entities]
    return NodeTable("Entities", fields, rows, [node.embedding_text for node in graph.entities])


def _communities(graph: KnowledgeGraph) -> NodeTable:
    fields = dict.fromkeys(("id", "title", "content"), "STRING") | {"size": "INT64"}
    rows = [{name: getattr(group, name) for name in fields} for group in graph.communities]
    return NodeTable("Communities", fields, rows, [group.content for group in graph.communities])


def _links(name: str, target: str, edges: list[Edge]) -> EdgeTable:
    rows = [{"from": edge.source, "to": edge.target, "weight": edge.weight} for edge in edges]
    return EdgeTable(name, "Entities", target, {"weight": "DOUBLE"}, rows)


def _airports(folder: Path) -> NodeTable:
    strings = ("id", "name", "city", "island", "region", "content")
    numbers = ("elevation_m", "runway_m", "opened")
    rows = [
        {name: row[name] for name in (*strings, *numbers)}
        for row in _lines(folder / "airports.jsonl")
    ]
    fields = dict.fromkeys(strings, "STRING") | dict.fromkeys(numbers, "INT64")
    return NodeTable("Airports", fields, rows)


def _flights(folder: Path) -> EdgeTable:
    strings, numbers = ("flight", "carrier"), ("distance_km", "minutes", "weekly")
    rows = [
        {"from": row["origin"], "to": row["destination"]}
        | {name: row[name] for name in (*strings, *numbers)}
        for row in _lines(folder / "flights.jsonl")
    ]
    fields = dict.fromkeys(strings, "STRING") | dict.fromkeys(numbers, "INT64")
    return EdgeTable("FLIGHT", "Airports", "Airports", fields, rows)


def _tickets(folder: Path) -> NodeTable:
    names = ("id", "title", "content", "product", "partition_id", "team", "status", "updated")
    rows = [
        {
            "id": row["doc_id"],
            "content": f"{row['title']}\n{row['text']}",
            "partition_id": row["product"],
            **{name: row[name] for name in ("title", "product", "team", "status", "updated")},
        }
        for row in _lines(folder / "tickets.jsonl")
    ]
    fields = dict.fromkeys(names, "STRING")
    return NodeTable("Tickets", fields, rows, [str(row["content"]) for row in rows])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _read(path).decode().splitlines() if line.strip()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(
            f"{path} cannot be read: {error.strerror or error}. The book's example needs the whole "
            "data folder of the repository; for a graph of your own texts, name their folder."
        ) from error

"""Which tools, and over which database: the options that `rag tools` and `rag serve` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ragbook.console import ProfileName, busy, err, path_option, usable_profile

if TYPE_CHECKING:
    from retriever_tools.arango_store import ArangoStore
    from retriever_tools.library import Library
    from retriever_tools.store import GraphStore


class ToolsError(RuntimeError):
    """A command on tools cannot do what was asked; the message says why and what to do."""


class Place(StrEnum):
    """Where tools are kept."""

    folder = "folder"
    database = "database"


ToolsOption = Annotated[
    Path | None,
    typer.Option(
        "--tools",
        envvar="RAG_TOOLS",
        parser=path_option,
        metavar="FOLDER",
        help="The folder of tool documents. Default: tools in the data folder.",
    ),
]
PlaceOption = Annotated[
    Place,
    typer.Option("--store", help="Where tools are kept: in that folder, or in the database."),
]
GraphDataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        parser=path_option,
        metavar="FOLDER",
        help="A folder of .txt and .md files, of which a graph is made. Default: the example.",
    ),
]
ArangoUrlOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Use this ArangoDB. ARANGO_USERNAME and ARANGO_PASSWORD come from the environment.",
    ),
]
ArangoDatabaseOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The database in ArangoDB.")
]


@dataclass(frozen=True)
class Database:
    """Which database tools run over.

    Args:
        data: A folder of text, of which a graph is made; None: the book's example.
        arango_url: The address of an ArangoDB to use instead.
        arango_database: The name of its database.
        profile: Whose embeddings a graph is built with.
    """

    data: Path | None = None
    arango_url: str | None = None
    arango_database: str | None = None
    profile: ProfileName | None = None

    def __post_init__(self) -> None:
        if self.arango_database is not None and self.arango_url is None:
            raise typer.BadParameter("--arango-database needs --arango-url.")
        if self.arango_url is not None and self.data is not None:
            raise typer.BadParameter(
                "Choose one of --data and --arango-url: the data of ArangoDB are there already."
            )

    @property
    def language(self) -> Literal["cypher", "aql"]:
        """Return the language of its graph queries."""
        return "cypher" if self.arango_url is None else "aql"

    @contextmanager
    def open(self) -> Iterator[GraphStore]:
        """Open the database, built first where that has to be, and close it at the end."""
        store: GraphStore
        if self.arango_url is not None:
            store = arango_store(self.arango_url, self.arango_database)
        else:
            store = self._graph()
        try:
            yield store
        finally:
            store.close()

    def is_built(self) -> bool:
        """Tell whether the database is there, without building it."""
        from ragbook.graph_data import is_built

        return self.arango_url is not None or is_built(usable_profile(self.profile), self.data)

    def _graph(self) -> GraphStore:
        with busy("Starting"):
            from ragbook.graph_data import example_store, folder_store

            profile = usable_profile(self.profile)
        progress = building("Building the graph; it is kept for the next time.")
        if self.data is None:
            return example_store(profile, progress)
        return folder_store(profile, self.data, progress)


def building(headline: str) -> Callable[[str], None]:
    """Return what prints on stderr, below a headline, how far the building of a graph is."""
    told: list[str] = []

    def progress(text: str) -> None:
        for line in [*([] if told else [headline]), f"  {text}"]:
            err.print(line, markup=False, soft_wrap=True)
        told.append(text)

    return progress


def arango_store(url: str, database: str | None) -> ArangoStore:
    """Open an ArangoDB; the user, the password and what is not given are from the environment."""
    from retriever_tools.arango_store import ArangoStore

    given = {"url": url, "database": database}
    return ArangoStore.from_environment(
        **{name: value for name, value in given.items() if value is not None}
    )


def tools_folder(tools: Path | None, data: Path | None = None) -> Path:
    """Return the folder of tools: the one named, else the first `tools` there is in a data folder.

    Looked at are the data folder that was named, that of the current folder, and the book's.

    Args:
        tools: The one named.
        data: The data folder that was named.
    """
    from ragbook.corpus import default_data_folder

    if tools is not None:
        return tools
    book = Path(__file__).resolve().parents[2] / "data"
    folders = [*([data] if data is not None else []), default_data_folder(), book]
    found = [folder / "tools" for folder in folders]
    return next((folder for folder in found if folder.is_dir()), found[0])


@contextmanager
def open_library(place: Place, tools: Path | None, database: Database) -> Iterator[Library]:
    """Open the tools of a folder or of a database.

    Args:
        place: Which of the two.
        tools: The folder named.
        database: The database, opened only where the tools are there.
    """
    if place is Place.folder:
        yield library_of(None, tools, database)
        return
    with database.open() as store:
        yield library_of(store, tools, database)


def library_of(store: GraphStore | None, tools: Path | None, database: Database) -> Library:
    """Return the tools of an open database, or without one those of the folder."""
    from retriever_tools.library import FolderLibrary, StoreLibrary

    if store is not None:
        return StoreLibrary(store)
    return FolderLibrary(tools_folder(tools, database.data))

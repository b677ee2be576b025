"""What a table was begun with: the settings and the files of each source, in a table beside it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from retrievers.lance_filter import arrow
from retrievers.lance_table import ask, explained, table_exists

from .sources import IngestError, listed

Files = Sequence[Sequence[Any]]
"""Name, size and last change of each file."""

Known = dict[str, tuple[dict[str, Any], Files]]
"""Settings and files of each source."""


def opened(database: Any, uri: str, name: str) -> Any:
    """Open a table of a database; None if there is none of that name.

    Raises:
        LanceError: If it is damaged, or cannot be called so.
    """
    with explained(f"The table {name!r} in {uri}"):
        return database.open_table(name) if table_exists(database, name) else None


class SettingsTable:
    """The table `<name>_ingest`: a row for each source that was begun."""

    def __init__(self, database: Any, uri: str, name: str, source: str) -> None:
        self._database, self._uri = database, uri
        self._name, self._source = name, source
        self._begun: tuple[dict[str, Any], Files] | None = None  # not written yet

    def begin(self, known: Known, settings: Mapping[str, Any], files: Files) -> None:
        """Check them, and if they are the first of this source, keep them for `write`.

        Args:
            known: What `read` returned.
            settings: What the rows depend on, as JSON has it.
            files: The files of the corpus.

        Raises:
            IngestError: If they are not what they were; the message says what differs.
        """
        self._check(known, settings, files)
        self._begun = None if self._source in known else (dict(settings), files)

    def read(self, needed: bool = False) -> Known:
        """Return settings and files of each source, as they were written.

        Raises:
            IngestError: If they are none of ours, or not there and `needed`.
        """
        table = opened(self._database, self._uri, f"{self._name}_ingest")
        if table is None:
            if needed:
                raise IngestError(
                    f"The settings of the table {self._name!r} are not there: the table "
                    f"'{self._name}_ingest' is missing. Restore it, or choose another name: "
                    "--table."
                )
            return {}
        found = {}
        for row in ask(table, lambda: table.search().to_list()):
            try:
                files = json.loads(zlib.decompress(row["files"]))
                found[row["source"]] = (json.loads(row["settings"]), files)
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                raise IngestError(
                    f"The table '{self._name}_ingest' in {self._uri} was not made by ingest, which "
                    "keeps its settings there. Choose another name: --table."
                ) from error
        return found

    def write(self) -> None:
        """Write what `begin` kept, once, unless another process just did.

        Raises:
            IngestError: If that one began otherwise.
        """
        if self._begun is None:
            return
        known = self.read()
        settings, files = self._begun
        self._check(known, settings, files)
        if self._source not in known:
            row = {
                "source": [self._source],
                "settings": [json.dumps(settings)],
                "files": [zlib.compress(json.dumps(files).encode())],
            }
            rows = arrow().table(row)
            name = f"{self._name}_ingest"
            table = opened(self._database, self._uri, name)
            with explained(f"The table {name!r}"):
                if table is None:
                    self._database.create_table(name, rows)
                else:
                    table.add(rows)
        self._begun = None

    def delete(self) -> None:
        """Delete what was written for this source."""
        table = opened(self._database, self._uri, f"{self._name}_ingest")
        if table is not None:
            ask(table, lambda: table.delete(f"source = '{self._source}'"))

    def check_others(
        self, others: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
    ) -> None:
        """Refuse settings that rows which stay in the table do not share.

        Raises:
            IngestError: If there are such; the message says which.
        """
        for other, theirs in others.items():
            # Vectors of two models in one column could not be compared.
            for name in ("model", "filter_columns"):
                if theirs.get(name) != settings.get(name):
                    raise IngestError(
                        f"The table {self._name!r} holds {other!r} with {name} "
                        f"{theirs.get(name)!r}, and now it is {settings.get(name)!r}. Give the "
                        "same, or choose another table (--table)."
                    )

    def _check(self, known: Known, settings: Mapping[str, Any], files: Files) -> None:
        """Refuse what differs from the settings of this source, or of another in the table."""
        others = {name: theirs for name, (theirs, _) in known.items() if name != self._source}
        self.check_others(others, settings)
        if self._source not in known:
            return
        settings_before, files_before = known[self._source]
        changes = [
            f"{name} was {settings_before.get(name)!r} and is {settings.get(name)!r}"
            for name in {**settings_before, **settings}
            if settings_before.get(name) != settings.get(name)
        ]
        if changes := changes or _file_changes(files_before, files):
            raise IngestError(
                f"{self._source!r} in the table {self._name!r} was begun otherwise: "
                f"{'; '.join(changes)}. Restore that to go on, choose another table (--table) or "
                "--source-name, or start anew (--fresh)."
            )


def _file_changes(before: Files, now: Files) -> list[str]:
    old = {name: rest for name, *rest in before}
    new = {name: rest for name, *rest in now}
    changes = {
        "changed": [name for name in old if name in new and old[name] != new[name]],
        "missing": [name for name in old if name not in new],
        "new": [name for name in new if name not in old],
    }
    return [
        f"{len(names)} file{'s' * (len(names) > 1)} {what}: {listed(names)}"
        for what, names in changes.items()
        if names
    ]

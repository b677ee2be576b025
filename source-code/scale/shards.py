"""The table as its own checkpoint: a shard is there with all its rows, or it is not there.

Only the process that drives an ingest writes. A worker that was given up for lost and still runs
can therefore not write anything a second time. Each shard is one commit of LanceDB, which happens
or does not, and its name is in a column of its rows. Two drivers at the same time are noticed by
the table's version, which grows by one a commit, and what they may have written twice is taken out.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from retrievers.lance_table import (
    LanceError,
    ask,
    check_dimension,
    connected,
    explained,
    read_schema,
)

from .reading import SHARD_COLUMN
from .settings import SettingsTable, opened
from .sources import Corpus, IngestError

ATTEMPTS = 5
HASHES_AT_ONCE = 20_000_000


class ShardTable:
    """A LanceDB table that is written shard by shard, and the settings that it was made with.

    Args:
        uri: The folder or address of the database; a folder is made.
        name: The table. Its settings are beside it, in the table `<name>_ingest`.
        source: The name of the corpus among those that the table holds.
        storage_options: Keys and region of an object store, as LanceDB takes them.
    """

    def __init__(
        self, uri: str, name: str, source: str, storage_options: dict[str, str] | None = None
    ) -> None:
        self.uri, self.name, self.source = uri, name, source
        self._database = connected(uri, storage_options, make=True)
        self._table: Any = opened(self._database, uri, name)
        self._version = self._newest()
        self._known: set[str] = set()
        self._settings = SettingsTable(self._database, uri, name, source)
        if self._table is not None and SHARD_COLUMN not in read_schema(self._table).names:
            raise IngestError(
                f"The table {name!r} in {uri} was not made by ingest, which keeps a column "
                f"{SHARD_COLUMN!r}. Choose another name: --table."
            )

    @property
    def table(self) -> Any:
        """The `lancedb.Table`; None as long as nothing was written."""
        return self._table

    def begin(self, settings: Mapping[str, Any], corpus: Corpus, fresh: bool = False) -> None:
        """Check that corpus and settings are as they were; if there are none yet, keep them.

        They are written down just before the first row: a run that fails before, as its model
        cannot be loaded, leaves nothing that the next would have to be like.

        Args:
            settings: What the rows depend on, as JSON has it.
            corpus: The corpus, whose files must stay as they are until all is written.
            fresh: Delete what is there of this source, and start anew.

        Raises:
            IngestError: If something is different; the message says what, and what to do.
        """
        known = self._settings.read(needed=self._table is not None)
        if fresh:
            before = known.pop(self.source, None)
            own = self._table is not None and self._rows(f"{SHARD_COLUMN} IS NULL") > 0
            kept = {name: theirs for name, (theirs, _) in known.items()}
            if own and before is not None:
                kept["rows of your own"] = before[0]
            self._settings.check_others(kept, settings)
            self._delete_source(whole=not (known or own))
        self._settings.begin(known, settings, corpus.manifest())

    def written(self) -> dict[int, dict[int, bool]]:
        """Return the shards in the table: by unit, their numbers, and whether each is its last.

        What two drivers wrote twice is taken out first, so that it is written once more.
        """
        found: dict[int, dict[int, bool]] = {}
        self._known.clear()
        for name, count in self._counts().items():
            unit, block, last, rows = _parsed(name)
            if count > rows:
                self._delete(name)
                continue
            found.setdefault(unit, {})[block] = last
            self._known.add(name)
        return found

    def write(self, shard: str, rows: Any) -> bool:
        """Add the rows of a shard in one commit; return whether they were not there yet.

        Raises:
            IngestError: If another process ingests the same corpus at the same time.
            LanceError: If the table cannot be written.
        """
        self._settings.write()
        for attempt in range(1, ATTEMPTS + 1):
            if self._has(shard):
                self._known.add(shard)
                return False
            try:
                self._add(rows)
            except LanceError as error:
                if attempt == ATTEMPTS or not re.search(r"(?i)conflict|already exists", str(error)):
                    raise
                time.sleep(0.05 * attempt)  # another writer, of an index or of another source
                continue
            if self._newest() > self._version + 1:
                self._check_once(shard, rows.num_rows)
            self._version = self._newest()
            self._known.add(shard)
            return True
        return False

    def count(self) -> int:
        """Return the number of rows in the table, those of other sources too."""
        return 0 if self._table is None else int(ask(self._table, self._table.count_rows))

    def twice(self) -> tuple[int, list[str]]:
        """Return how many document ids there are more than once, and five of them.

        The ids are read again and again, a part of their hashes kept each time, so that memory has
        a bound whatever the size of the table.
        """
        import numpy as np

        if self._table is None:
            return 0, []
        parts = 1 + self.count() // HASHES_AT_ONCE
        number = 0
        examples: set[int] = set()
        for part in range(parts):
            kept = [
                hashes[hashes % parts == part]
                for hashes in (
                    np.fromiter(map(hash, batch), np.int64, len(batch)) for batch in self._first()
                )
            ]
            values, counts = np.unique(np.concatenate(kept or [[]]), return_counts=True)
            number += int((counts > 1).sum())
            examples.update(values[counts > 1][: 5 - len(examples)].tolist())
        if not examples:
            return 0, []
        ids = {id for batch in self._first() for id in batch if hash(id) in examples}
        return number, sorted(id.removesuffix("#1") for id in ids)

    def _first(self) -> Any:
        """Yield the ids of the first chunks of documents, in batches."""
        with explained(f"The table {self.name!r}"):
            query = self._table.search().where("id LIKE '%#1'").select(["id"])
            for batch in query.to_batches():
                yield batch["id"].to_pylist()

    def _newest(self) -> int:
        return 0 if self._table is None else int(ask(self._table, lambda: self._table.version))

    def _counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        if self._table is None:
            self._table = opened(self._database, self.uri, self.name)
        if self._table is None:
            return counts
        self._version = self._newest()
        with explained(f"The table {self.name!r}"):
            for batch in self._table.search().select([SHARD_COLUMN]).to_batches():
                for pair in batch[SHARD_COLUMN].value_counts().to_pylist():
                    name = pair["values"]
                    if name is not None and name.startswith(f"{self.source}/"):
                        counts[name] += pair["counts"]
        return counts

    def _has(self, shard: str) -> bool:
        if shard in self._known:  # Ray ran a task twice
            return True
        if self._table is None or self._newest() == self._version:
            return False
        self._version = self._newest()
        return self._rows(_is(shard)) > 0

    def _rows(self, condition: str) -> int:
        return int(ask(self._table, lambda: self._table.count_rows(condition)))

    def _add(self, rows: Any) -> None:
        with explained(f"The table {self.name!r}"):
            if self._table is not None:
                dimension = rows.schema.field("vector").type.list_size
                check_dimension(dimension, self._table.schema, "vector")
                self._table.add(rows)
                return
            try:
                self._table = self._database.create_table(self.name, rows)
            except ValueError as error:
                if "already exists" in str(error):  # made by another process just now
                    self._table = self._database.open_table(self.name)
                raise

    def _check_once(self, shard: str, rows: int) -> None:
        if self._rows(_is(shard)) > rows:
            self._delete(shard)
            raise IngestError(
                f"Another process ingests {self.source!r} into the table {self.name!r}. Let one "
                "of them finish; then run it again to write what is missing."
            )

    def _delete(self, shard: str) -> None:
        with explained(f"The table {self.name!r}"):
            self._table.delete(_is(shard))
        self._version = self._newest()

    def _delete_source(self, whole: bool) -> None:
        """Delete the rows of this source, or the table, if it holds nothing else."""
        with explained(f"The table {self.name!r}"):
            if self._table is not None and whole:
                self._database.drop_table(self.name)
                self._table = None
            elif self._table is not None:
                self._table.delete(f"starts_with({SHARD_COLUMN}, '{self.source}/')")
        self._settings.delete()
        self._version = self._newest()


def check_source(name: str) -> None:
    """Refuse a name of a source that could not be told from the rest of a shard's name.

    Raises:
        IngestError: If it is one.
    """
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise IngestError(f"A source's name is letters, digits, '_', '.' and '-', got {name!r}.")


def _is(shard: str) -> str:
    return f"{SHARD_COLUMN} = '{shard}'"


def _parsed(name: str) -> tuple[int, int, bool, int]:
    _, place, end, rows = name.rsplit("/", 3)
    unit, block = place.split(".")
    return int(unit), int(block), end == "last", int(rows)

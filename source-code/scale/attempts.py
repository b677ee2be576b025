"""How often workers began with a shard; a file of its own, so that its process starts fast."""

from __future__ import annotations

from collections import Counter


class Attempts:
    """Counts, in a process of its own, how often workers began with a shard."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def begin(self, shard: str) -> int:
        """Count one more, and return how many there are."""
        self._counts[shard] += 1
        return self._counts[shard]

"""A table of durable state that can be frozen at any size without a pause.

The keys are spread over many small dicts. Freezing hands out these dicts and marks them as shared; a later change
copies the one small dict it touches first. So a frozen table costs the loop nothing at once and little later, and no
growing dict of a million keys is ever moved as a whole.

Invariant: a dict that was handed out never changes again. Thread rule: loop thread; what `freeze` returns may go
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

SHARDS = 256
Entry = tuple[bytes, int]
Shards = tuple[dict[bytes, Entry], ...]


class SharedTable:
    """Keys of one kind with (value, position)."""

    __slots__ = ("_shards", "_shared", "count")

    def __init__(self) -> None:
        self._shards: list[dict[bytes, Entry]] = [{} for _ in range(SHARDS)]
        self._shared = bytearray(SHARDS)
        self.count = 0

    def get(self, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        return self._shards[hash(key) % SHARDS].get(key)

    def put(self, key: bytes, entry: Entry) -> None:
        """Set a key in its shard, copied first where a snapshot shares it."""
        shard = self._own(hash(key) % SHARDS)
        before = len(shard)
        shard[key] = entry
        self.count += len(shard) - before

    def discard(self, key: bytes) -> None:
        """Forget a key, if it is there."""
        at = hash(key) % SHARDS
        if key in self._shards[at]:
            del self._own(at)[key]
            self.count -= 1

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)), in no order; nothing may change meanwhile."""
        for shard in self._shards:
            yield from shard.items()

    def shard(self, at: int) -> dict[bytes, Entry]:
        """Return one of the `SHARDS` small dicts; it must not be changed."""
        return self._shards[at]

    def freeze(self) -> Shards:
        """Return all entries as they are now."""
        self._shared[:] = b"\1" * SHARDS
        return tuple(self._shards)

    def _own(self, at: int) -> dict[bytes, Entry]:
        if self._shared[at]:
            self._shards[at] = self._shards[at].copy()
            self._shared[at] = 0
        return self._shards[at]

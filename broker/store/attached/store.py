"""Read a data directory while another process writes it: no lock, nothing created, nothing changed.

    tail (counts, confirmed ends, newest entries) -> runs (MANIFEST) -> segments: all mapped read-only

Every read looks at the writer's counts, takes what it needs, and looks again; what moved meanwhile is looked for anew,
at most `ATTEMPTS_MAX` times. A writer that starts again makes another tail file: the old one is believed (what is
confirmed stays) until the new one is ready. Invariant: nothing at or above the confirm position is ever returned, and
nothing that fails its checks; a failure is an exception, never wrong bytes. Checksums are the reader's, as in
`reader.Reader.read_range`. Thread rule: one thread; results are copies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from broker.store.attached.index_view import IndexView
from broker.store.attached.log_view import LogView
from broker.store.attached.tail_view import Moved, TailView
from broker.store.errors import CorruptIndex, CorruptLog, Unsettled
from broker.store.index.queue_index import TAIL_NAME
from broker.store.index.reader import Reader
from broker.store.read_result import NO_SUCH_QUEUE, RangeResult

ATTEMPTS_MAX = 16
"""Looks at an index that moves each time. One look takes a fraction of a millisecond, moves are tens of them apart."""

T = TypeVar("T")


class AttachedStore:
    """The read side of a store whose writer is another process."""

    def __init__(self, directory: Path) -> None:
        """Attach. Raises Unsettled when no writer has ever made the directory's index ready, or it is recovering."""
        self.directory = directory
        self.retries = 0
        """Looks that were taken again."""
        self.attachments = 0
        """Lives of writers that were followed."""
        self._tail_path = directory / "index" / TAIL_NAME
        self._log = LogView(directory / "log")
        self._index: IndexView | None = None
        self._steadily(lambda _: None)

    @property
    def confirm_position(self) -> int:
        """Everything below it may be shown."""
        return self._steadily(lambda _: self._attached().tail.confirm_position)

    @property
    def epoch(self) -> int:
        """Epoch of the writer that is followed."""
        return self._steadily(lambda _: self._attached().tail.epoch)

    def has_queue(self, queue: int) -> bool:
        """Whether the index has a row for this queue id; names are not known here."""
        return self._steadily(lambda _: self._attached().tail.confirmed_end(queue) is not None)

    def confirmed_end(self, queue: int) -> int:
        """Return the offset behind the queue's last confirmed message; the cheapest question there is."""
        return self._steadily(lambda _: self._attached().confirmed_end(queue))

    def bounds(self, queue: int) -> tuple[int, int]:
        """Return (oldest offset, confirmed end) of a queue; (0, 0) when there is none. Raises Unsettled."""
        return self._steadily(lambda reader: reader.bounds(queue))

    def read_range(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int) -> RangeResult:
        """Return many confirmed records of `queue` in one piece, checksums unread.

        Raises Unsettled, CorruptLog (no record of the size and position that the index names), CorruptIndex.
        """
        if not self.has_queue(queue):
            return RangeResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._steadily(lambda reader: reader.read_range(queue, offset, max_count, max_bytes, end_offset))

    def let_go(self) -> None:
        """Unmap what the writer has deleted, so that its space comes back; call it now and then."""
        self._steadily(lambda _: self._attached().move_begin(self._log.begin()))
        self._log.let_go()

    def close(self) -> None:
        """Give the descriptors back."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _attached(self) -> IndexView:
        assert self._index is not None, "the store is closed"
        return self._index

    def _steadily(self, look: Callable[[Reader], T]) -> T:
        """Look until the writer lets it be; the last failure is raised."""
        for left in reversed(range(ATTEMPTS_MAX)):
            try:
                return look(self._current())
            except (Moved, CorruptLog, CorruptIndex) as error:
                if self._index is not None:
                    self._index.move_begin(self._log.begin())  # it may just have expired
                if not left:
                    if isinstance(error, Moved):
                        raise Unsettled(f"{self.directory}: {error}") from error
                    raise
            self.retries += 1
        raise AssertionError("not reached")

    def _current(self) -> Reader:
        """Return a reader of the writer's present life, or of its former one while it recovers. Raises Moved."""
        try:
            inode = self._tail_path.stat().st_ino
        except OSError:
            inode = 0
        if self._index is None or (inode and inode != self._index.tail.inode):
            self._attach()
        return self._reader

    def _attach(self) -> None:
        try:
            tail = TailView(self._tail_path)
        except (Moved, OSError) as error:
            if self._index is not None:
                return
            raise Moved(f"no writer has made the index ready: {error}") from error
        former, self._index = self._index, IndexView(self._tail_path.parent, tail)
        self._reader = Reader(self._log, self._index, self._index, check=False)
        self.attachments += 1
        if former is not None:
            former.close()

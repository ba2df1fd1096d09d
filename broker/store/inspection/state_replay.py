"""Durable state as the log tells it, for checks and counts.

Invariant: changes of a group are taken in when its last record was seen, so an unfinished group at the tail leaves no
trace, as in recovery. Thread rule: one thread.
"""

from __future__ import annotations

from broker.store.inspection.log_files import Header, LogFile
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange, decode_changes
from broker.store.state.state_tables import StateTables
from remoting.protocol.records.record import (
    CONTROL,
    FLAG_GROUP_OPEN,
    FLAG_MQTT,
    FLAG_RETAIN,
    FLAG_STAGED,
    HEADER,
    RecordView,
)

_RETAINED = FLAG_MQTT | FLAG_RETAIN


class StateReplay:
    """Feeds records to `tables`, those at or behind `start`."""

    def __init__(self, tables: StateTables, start: int) -> None:
        self.tables = tables
        self.start = start
        self._group: list[tuple[StateChange, int]] = []

    def take(self, file: LogFile, at: int, head: Header) -> None:
        """Take in one record of a walk over all of them. Raises CorruptRecord when it contradicts itself."""
        self.note(file, at, head)
        if not head[9] & FLAG_GROUP_OPEN:
            self.end_group()

    def note(self, file: LogFile, at: int, head: Header) -> None:
        """Note what one record changes; it counts once its group has ended."""
        position = file.base + at
        if position < self.start:
            return
        if head[1] == CONTROL:
            body = file.view[at + head[8] : at + head[8] + head[7]]
            self._group += [(change, position) for change in decode_changes(body)]
        elif head[9] & (_RETAINED | FLAG_STAGED) == _RETAINED:
            topic = RecordView(file.view, at).mqtt_topic
            if topic is not None:
                self._group.append((StateChange(state_kinds.RETAINED, topic, b"" if head[7] else None), position))

    def note_marked(self, file: LogFile, marks: list[int]) -> None:
        """Note the records at these positions. Raises CorruptRecord."""
        for position in marks:
            at = position - file.base
            self.note(file, at, HEADER.unpack_from(file.view, at))

    def end_group(self, below: int | None = None) -> None:
        """Let count what was noted, with `below` only what was said below that position."""
        for change, said in self._group:
            if below is None or said < below:
                self.tables.apply(change, said)
        self._group.clear()

"""Records of the log as plain values, for people and scripts.

Invariant: what is yielded has passed every check; a damaged stretch below the durable position is one item of its own,
behind that position the log simply ends. Bytes that are not UTF-8 are given in base64 under a name that says so.
Thread rule: one thread.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from broker.store.inspection.directory import open_directory
from broker.store.inspection.log_files import Walk
from broker.store.inspection.summary import state_of
from broker.store.state.state_kinds import NAMES, QUEUE
from broker.store.state.state_log import decode_changes
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.record import CONTROL, RecordView, dispatch_fields

_TYPES = {1: "message", 2: "batch", 3: "control"}


def records(path: Path, *, start: int = 0, queue: str = "", limit: int = 0) -> Iterator[dict[str, Any]]:
    """Yield records from log position `start` on, at most `limit` (0: all), only those of `queue` when it is given.

    Damaged stretches stand in their place. A queue is named by its id or its name. Raises NoDataDirectory, LocalMisuse
    (no such queue), OSError.
    """
    found = open_directory(path)
    queue_id = _queue_id(path, queue) if queue else None
    first = found.files.record_start(max(start, found.files.begin))
    walk = Walk(found.files, first, found.durable, found.quarantine)

    def chosen() -> Iterator[dict[str, Any]]:
        told = 0
        for file, at, head in walk:
            yield from map(_damaged, walk.damage[told:])
            told = len(walk.damage)
            if queue_id is None or any(qid == queue_id for qid, _ in dispatch_fields(file.view, at)):
                yield record(file.view, at, head[1])
        yield from map(_damaged, walk.damage[told:])

    return islice(chosen(), limit or None)


def _damaged(damage: tuple[int, int, str]) -> dict[str, Any]:
    """Return what stands in the place of records that cannot be read."""
    start, end, reason = damage
    return {"position": start, "size": end - start, "type": "damaged", "reason": reason}


def record(view: memoryview, at: int, magic_type: int) -> dict[str, Any]:
    """Return one checked record as plain values."""
    seen = RecordView(view, at)
    made: dict[str, Any] = {
        "position": seen.position,
        "size": seen.total,
        "type": _TYPES.get(seen.type, str(seen.type)),
        "epoch": seen.epoch,
        "store_ms": seen.store_ms,
        "flags": seen.flags,
    }
    if magic_type == CONTROL:
        made["changes"] = [
            {"kind": NAMES.get(change.kind, str(change.kind)), **text("key", change.key)}
            | ({"deleted": True} if change.value is None else text("value", change.value))
            for change in decode_changes(seen.body)
        ]
        return made
    made |= {"born_ms": seen.born_ms, "count": seen.count, "queues": [list(place) for place in seen.dispatch()]}
    for name, value in (("topic", seen.topic), ("keys", seen.keys), ("tags", seen.tags)):
        if value:
            made |= text(name, value)
    made["properties"] = [[_shown(key), _shown(value)] for key, value in seen.properties()]
    return made | text("body", bytes(seen.body))


def text(name: str, value: bytes) -> dict[str, str]:
    """Return {name: text}, or {name_base64: ...} for bytes that are no printable UTF-8."""
    try:
        decoded = value.decode()
    except UnicodeDecodeError:
        decoded = "\x00"
    if "\x00" in decoded:
        return {f"{name}_base64": base64.b64encode(value).decode()}
    return {name: decoded}


def _shown(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _queue_id(path: Path, queue: str) -> int:
    if queue.isdigit():
        return int(queue)
    found = state_of(open_directory(path))[0].get(QUEUE, queue.encode())
    if found is None:
        raise LocalMisuse(
            f"{path}: there is no queue named {queue!r}; give its id, or see: lightmq store stat --queues"
        )
    return int.from_bytes(found[0][:4], "little")

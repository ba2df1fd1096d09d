"""Opens the key index of a recovered log and takes in what its runs do not cover.

Every record taken in is checked, because a start need not have looked at this part of the log. Damage is passed over:
what is unreadable there cannot be found by its key. Invariant: an unreadable index, or one that covers more than the
log holds, is built anew from the log; when it returns, all keys of the log are known.
Thread rule: before the first append.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from broker.store import hot
from broker.store.commit_log import CommitLog
from broker.store.errors import CorruptIndex
from broker.store.hot.contracts import Progress
from broker.store.index_thread import IndexThread
from broker.store.key_index.key_flusher import KeyFlusher
from broker.store.key_index.key_index import KeyIndex
from broker.store.key_index.key_manifest import DIRECTORY
from broker.store.settings import StoreSettings
from runtime.faults import FaultPoints


def open_key_index(
    data: Path, settings: StoreSettings, log: CommitLog, thread: IndexThread, faults: FaultPoints, events: Any
) -> KeyIndex | None:
    """Return the key index in the data directory `data`; None, and its files gone, when it is switched off.

    Raises OSError, CorruptIndex (a run that was just written is unreadable).
    """
    if not settings.key_index:
        shutil.rmtree(data / DIRECTORY, ignore_errors=True)
        return None
    index = _open(data / DIRECTORY, settings, log, events)
    flusher = KeyFlusher(index, thread, lambda: 0, settings, faults, _raise)  # what was recovered is on the disk
    position = index.end_position
    while position < log.end and (segment := log.segment_at(position)) is not None:
        stop = min(segment.end, log.end)
        window = segment.view[: stop - segment.base]
        seen = hot.core.scan(window, segment.base, len(window), Progress(position, position, 0, 0, 0, group_open=False))
        index.take(window, segment.base, position, seen.position)
        if seen.reason:
            events.warning("keys_not_indexed", start=seen.position, end=stop, reason=seen.reason)
        position = index.end_position = stop
        flusher.flush_if_full()
        thread.drain()  # one author of the MANIFEST: this flusher is done before the store's own begins
    return index


def _raise(error: Exception) -> None:
    raise error


def _open(directory: Path, settings: StoreSettings, log: CommitLog, events: Any) -> KeyIndex:
    try:
        index = KeyIndex(directory, settings.key_index_entries, log.begin)
        if index.manifest.end_position <= log.end:
            return index
        reason = f"it covers the log to {index.manifest.end_position}, which ends at {log.end}"
    except CorruptIndex as error:
        reason = str(error)
    events.warning("key_index_rebuilt", reason=reason)
    shutil.rmtree(directory)
    return KeyIndex(directory, settings.key_index_entries, log.begin)

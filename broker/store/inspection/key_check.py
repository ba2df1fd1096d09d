"""The files of the key index as an inspection sees them, and their comparison with the log.

Sound means: each run holds exactly the keys of the records in its part of the log, with their positions, sizes and
times, and the runs cover the log to where the MANIFEST says. 20 bytes of memory per key of the log. Invariant: nothing
is changed. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store import hot
from broker.store.errors import CorruptIndex
from broker.store.keys.key_manifest import KeyManifest, load_key_manifest
from broker.store.keys.key_run import Columns, KeyRun, key_run_path, sort_keys

CHUNK_ENTRIES = 1 << 18
DIFFERENCES_MAX = 20
"""Differences named per run; the first ones tell what happened."""
OPEN_ATTEMPTS_MAX = 5
"""How often runs are opened anew when a live broker has merged them meanwhile."""


@dataclass(slots=True)
class KeyFiles:
    """What the MANIFEST names; without a key index, nothing."""

    directory: Path
    manifest: KeyManifest = field(default_factory=KeyManifest)
    runs: list[KeyRun] = field(default_factory=list)


def open_key_files(directory: Path, unreadable: list[CorruptIndex]) -> KeyFiles:
    """Open what is in `directory`; what fails its checks goes to `unreadable`."""
    for attempt in range(OPEN_ATTEMPTS_MAX):
        try:
            manifest = load_key_manifest(directory) or KeyManifest()
            return KeyFiles(directory, manifest, [KeyRun(key_run_path(directory, number)) for number in manifest.runs])
        except (CorruptIndex, FileNotFoundError) as error:
            if attempt == OPEN_ATTEMPTS_MAX - 1:
                unreadable.append(error if isinstance(error, CorruptIndex) else CorruptIndex(directory, str(error)))
    return KeyFiles(directory)


class LogKeys:
    """Every key of the log, taken in stretch by stretch in log order."""

    def __init__(self, files: KeyFiles) -> None:
        self._wanted = files.manifest.end_position > 0
        self._chunks = [hot.core.make_key_chunk(CHUNK_ENTRIES if self._wanted else 64)]
        self._joined: Columns | None = None

    def add(self, view: memoryview, base: int, first: int, end: int) -> None:
        """Take in the sound records in [first, end) log positions of `view`, which begins at `base`."""
        self._joined = None
        while self._wanted and (first := self._chunks[-1].take(view, base, first, end)) < end:
            self._chunks.append(hot.core.make_key_chunk(CHUNK_ENTRIES))

    def part(self, start: int, end: int) -> Columns:
        """Return the entries of the records in [start, end), as a run holds them."""
        if self._joined is None:
            parts = [chunk.columns() for chunk in self._chunks]
            self._joined = _each(lambda at: np.concatenate([part[at] for part in parts]))
        joined = self._joined
        first, behind = joined[1].searchsorted(start), joined[1].searchsorted(end)
        return sort_keys([_each(lambda at: joined[at][first:behind])])


def _each(make: Callable[[int], npt.NDArray[Any]]) -> Columns:
    return make(0), make(1), make(2), make(3)


def check_keys(
    files: KeyFiles, keys: LogKeys, begin: int, gaps: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[Path, str]]:
    """Yield (file, how it differs from the log), which begins at `begin` and is damaged in `gaps`."""
    at = begin
    for run in files.runs:
        if missing := _missing(keys, at, run.first_position, gaps):
            yield run.path, f"{missing} keys between {at} and {run.first_position}, where {run.path.name} begins"
        at = max(at, run.end_position)
        try:
            for text in _check_run(run, keys, begin, gaps):
                yield run.path, text
        except CorruptIndex as error:
            yield error.path, error.reason
    end = max(files.manifest.end_position, begin)
    if at > end:
        yield files.directory, f"the runs end at {at}, the manifest says {end}"
    if missing := _missing(keys, at, end, gaps):
        yield files.directory, f"{missing} keys between {at} and {end}, where the manifest says that the runs end"


def _missing(keys: LogKeys, start: int, end: int, gaps: Sequence[tuple[int, int]]) -> int:
    """Return how many keys the log has where no run is: none, because a stretch without keys needs no run."""
    return len(_sound(keys.part(start, end), start, gaps)[0]) if start < end else 0


def _sound(columns: Columns, begin: int, gaps: Sequence[tuple[int, int]]) -> Columns:
    """Return the entries of the log from `begin` on (older ones have expired) that are not in damage."""
    kept: npt.NDArray[np.bool_] = columns[1] >= begin
    for start, end in gaps:
        kept &= (columns[1] < start) | (columns[1] >= end)
    return _each(lambda at: columns[at][kept])


def _check_run(run: KeyRun, keys: LogKeys, begin: int, gaps: Sequence[tuple[int, int]]) -> Iterator[str]:
    said = run.columns()
    meant = keys.part(max(run.first_position, begin), run.end_position)
    shown, meant = (_sound(columns, begin, gaps) for columns in (said, meant))
    if len(shown[0]) != len(meant[0]):
        yield f"{run.path.name}: {len(shown[0])} keys where the log has {len(meant[0])}"
        return
    wrong = np.flatnonzero(np.logical_or.reduce([a != b for a, b in zip(shown, meant, strict=True)]))
    for at in wrong[:DIFFERENCES_MAX].tolist():
        names = ("number", "position", "size", "second")
        pairs = [f"{name} {int(a[at])}/{int(b[at])}" for name, a, b in zip(names, shown, meant, strict=True)]
        yield f"{run.path.name}: index/log say {', '.join(pairs)}"

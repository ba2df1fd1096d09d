"""Where every queue goes on, as the files of the index say it.

The offsets file says it as of the moment it was written, each younger run for the queues in it. Invariant: whatever was
in a run is below the queue's number here. Thread rule: plain values; reading blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.index.manifest import Manifest, load_offsets, offsets_path
from broker.store.index.run import Run

Floors = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Queue ids and the offsets they go on at."""


def next_offsets_of(
    directory: Path, manifest: Manifest, runs: Sequence[Run], floors: Sequence[Floors] = ()
) -> npt.NDArray[np.int64]:
    """Return the next offset of every queue id up to the highest one known. Raises CorruptIndex."""
    found = load_offsets(offsets_path(directory, manifest.offsets_id)) if manifest.offsets_id else _NONE
    # A merged run is younger than the file and still may say what is older: the larger number is the right one.
    young = [(run.queues, run.next_offsets) for run in runs if run.file_id > manifest.offsets_id and run.entry_count]
    said = [*young, *floors]
    count = max([len(found), *(int(queues.max()) + 1 for queues, _ in said)])
    found = np.concatenate((found, np.zeros(count - len(found), np.int64)))
    for queues, next_offsets in said:
        found[queues] = np.maximum(found[queues], next_offsets)
    return found


_NONE = np.empty(0, np.int64)

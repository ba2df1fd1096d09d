"""The index's runs as another process sees them: the MANIFEST read again whenever the writer says that it changed.

A MANIFEST is whole at every moment, and a run it names is deleted only after another MANIFEST took its place, so a run
that is missing means: read again. Invariant: the runs of `load(generation)` hold everything that the writer had taken
out of the tail when it published that generation. Thread rule: one thread.
"""

from __future__ import annotations

from pathlib import Path

from broker.store import hot
from broker.store.attached.tail_view import Moved
from broker.store.index.manifest import load_manifest
from broker.store.index.run import Run, run_path


class RunSet:
    """The runs of one life of a writer; file ids are not used twice within it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: list[Run] = []
        """Oldest first."""
        self.table = hot.core.make_run_table(self.runs)
        """The look-up over all of them."""
        self.generation = -1

    def load(self, generation: int) -> None:
        """Have the runs of this generation at least; nothing to do when they are here. Raises Moved, CorruptIndex."""
        if generation == self.generation:
            return
        manifest = load_manifest(self.directory)
        known = {run.file_id: run for run in self.runs}
        try:
            self.runs = [
                known.get(file_id) or Run(run_path(self.directory, file_id))
                for file_id in (manifest.runs if manifest is not None else ())
            ]
        except FileNotFoundError as error:
            raise Moved(f"{error.filename} has been merged or dropped") from error
        self.table = hot.core.make_run_table(self.runs)
        self.generation = generation

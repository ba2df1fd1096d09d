"""Polls every broker of a group for the state of its log, for the judge of visibility.

Thread rule: one thread; samples are looked at when it has stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.chaos.cluster import Cluster, Node
from tests.chaos.visibility import Sample, sample_of

PAUSE_S = 0.2


class StatusWatch:
    """The samples of a run, of each broker in turn."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self.samples: list[Sample] = []
        self._cluster, self._now = cluster, now
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(node,), name=f"status-{node.name}", daemon=True)
            for node in cluster.of("broker")
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, node: Node) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                found = sample_of(self._now(), node.name, self._cluster.status(node))
            except (OSError, ValueError):
                continue
            if found is not None:
                self.samples.append(found)

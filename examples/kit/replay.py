"""Devices whose messages are known beforehand: a table, disturbed as in the field, published when each row is due.

A message is a row: `due_s` (seconds of the story), `device`, `topic`, and the columns that make its JSON body.
Everything is computed in columns beforehand from one seed, so the same seed gives the same messages.

    Disturbances   late            single messages arrive long after they were measured
                   duplicates      a device sends the same message again
                   out_of_order    two neighbours of a device change places
                   offline         a device is cut off for a while, then sends what it has kept, in order

Invariant: messages of a device are published in the order of their `due_s`. Thread rule: one thread publishes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from kit.devices import Gateways, Reporting
from kit.later import pd
from kit.stage import Stage

import numpy as np

from runtime.clock import SystemClock

TICK_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbances:
    """Shares of messages (of devices for `offline`) that are disturbed, and by how many seconds of the story."""

    late: float = 0.0
    late_by_s: float = 600.0
    duplicates: float = 0.0
    out_of_order: float = 0.0
    offline: float = 0.0
    offline_for_s: float = 600.0

    @classmethod
    def chosen(cls, stage: Stage, *, late_by_s: float, offline_for_s: float) -> Self:
        """Take the shares that the command line chose, with the delays that suit the story."""
        return cls(**stage.options, late_by_s=late_by_s, offline_for_s=offline_for_s)

    def apply(self, messages: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
        """Return the messages in the order in which they are sent, marked by columns `is_late`, `is_duplicate`, ..."""
        sent = messages.copy()
        sent["is_late"] = rng.random(len(sent)) < self.late
        sent["is_out_of_order"] = rng.random(len(sent)) < self.out_of_order
        sent["is_offline"] = False
        sent["is_duplicate"] = False
        sent.loc[sent["is_late"], "due_s"] += rng.uniform(0.2, 1.0, int(sent["is_late"].sum())) * self.late_by_s
        self._cut_off(sent, rng)
        if self.out_of_order:
            later = sent.groupby("device", sort=False)["due_s"].shift(-1)
            moved = sent["is_out_of_order"] & later.notna() & ~sent["is_late"] & ~sent["is_offline"]
            sent["is_out_of_order"] = moved
            sent.loc[moved, "due_s"] = later[moved] + 1e-3
        again = sent[rng.random(len(sent)) < self.duplicates].copy()
        again["is_duplicate"] = True
        again["due_s"] += 1e-3
        return pd.concat([sent, again], ignore_index=True).sort_values("due_s", kind="stable", ignore_index=True)

    def _cut_off(self, sent: pd.DataFrame, rng: np.random.Generator) -> None:
        devices = sent["device"].unique()
        cut = devices[rng.random(len(devices)) < self.offline]
        last_s = float(sent["due_s"].max()) if len(sent) else 0.0
        begins = dict(zip(cut, rng.uniform(0.1, 0.7, len(cut)) * last_s, strict=True))
        begin_s = sent["device"].map(begins)
        gone = (sent["due_s"] >= begin_s) & (sent["due_s"] < begin_s + self.offline_for_s)
        sent["is_offline"] = gone
        kept_s = begin_s[gone] + self.offline_for_s
        # All at once when the connection is back, still in the order in which they were measured.
        sent.loc[gone, "due_s"] = kept_s + (sent.loc[gone, "due_s"] - begin_s[gone]) * 1e-6


def bodies(messages: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return one JSON object per row, of these columns."""
    text: str = messages[list(columns)].to_json(orient="records", lines=True, double_precision=6)
    return text.splitlines()


class Replay(Reporting):
    """A `Simulation` of messages known beforehand: publishes each row when the story has come to its `due_s`."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        messages: pd.DataFrame,
        columns: Sequence[str] = (),
        *,
        connections: int = 4,
        figures: Callable[[float], Mapping[str, str]] | None = None,
    ) -> None:
        """`messages` in sending order; `columns` make the body, or a column `body` is it; `retain` may be one more.

        `figures` makes lines of the live view from the second of the story that is reached.
        """
        super().__init__(Gateways(stage, name, connections))
        self.messages = messages
        self._stage = stage
        self._figures = figures
        self._due_s = messages["due_s"].to_numpy()
        self._device = pd.factorize(messages["device"])[0]
        self._topics = messages["topic"].tolist()
        self._bodies = bodies(messages, columns) if columns else messages["body"].tolist()
        self._retain = messages["retain"].tolist() if "retain" in messages else [False] * len(messages)
        self._clock = SystemClock()
        self._begun_ns = 0
        self._stopped, self._finished = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._publish_all, name="devices", daemon=True)

    def start(self) -> None:
        """Connect and begin to publish."""
        self._gateways.connect()
        self._begun_ns = self._clock.monotonic_ns()
        self._thread.start()

    @property
    def story_s(self) -> float:
        """How far the story is, in its own seconds."""
        if not self._begun_ns:
            return 0.0
        told_s = (self._clock.monotonic_ns() - self._begun_ns) / 1e9 * self._stage.speed
        return min(told_s, float(self._due_s[-1]) + TICK_S)

    def _publish_all(self) -> None:
        done = 0
        while done < len(self._due_s) and not self._stopped.wait(TICK_S):
            due = int(np.searchsorted(self._due_s, self.story_s, side="right"))
            for row in range(done, due):
                self._gateways.publish(
                    int(self._device[row]), self._topics[row], self._bodies[row].encode(), retain=self._retain[row]
                )
            done = max(done, due)
        self._finished.set()

    def stop(self) -> None:
        """Publish nothing more; `published` then has what was sent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def published(self) -> pd.DataFrame:
        """The messages that were sent: all of them unless the run was interrupted."""
        return self.messages.iloc[: self.sent]

    def finished(self) -> bool:
        """Whether every message was sent."""
        return self._finished.is_set()

    def figures(self) -> Mapping[str, str]:
        """What the example shows of its story."""
        return self._figures(self.story_s) if self._figures else {}

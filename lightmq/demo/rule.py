"""The anomaly rule: how far a reading lies from its sensor's own recent past. Pure.

Invariant: the verdict depends on the sensor and its readings in their order alone, so the same log gives the same
commands, whatever the batches were; the accounting recomputes them and compares. A spread has a floor, relative to the
mean and absolute by the sensor: one that stands still has no variance, and its first stir is no anomaly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMOOTHING = 0.02
WARM_UP_READINGS = 20
THRESHOLD_DEVIATIONS = 3.0
"""Set on one labelled series of a real machine: an alarm in each of its four failure windows, but 24 of 28 outside."""
QUIET_READINGS = 40
"""After an alarm a sensor stays quiet for so many readings: one event, one command."""
RELATIVE_FLOOR = 0.01
"""Least spread of a sensor, as a share of its mean."""
RESOLUTIONS = (
    ("cpu", 5.0),  # percent: the kernel counts in ticks of 10 ms, and there are some 25 between two samples
    ("memory_percent", 0.5), ("swap_percent", 0.5), ("disk_percent", 0.5), ("memory_available_mb", 50.0),
    ("disk_", 1e6), ("network_", 1e5),  # bytes a second: what a machine does that has nothing to do
    ("context_switches", 500.0), ("processes", 2.0), ("load_", 0.1), ("temperature_", 1.0),
    ("wakeup_late_ms", 1.0), ("round_trip_ms", 50.0),
)  # fmt: skip
"""Least spread of a sensor, in its own unit, by the beginning of its name; the first that fits."""
RESOLUTION_OTHERS = 0.01
"""Of sensors that are not in the table, as those of a recorded series."""


@dataclass(frozen=True, slots=True)
class SensorState:
    """What the rule remembers of a sensor: readings seen, running mean and variance, readings since the last alarm."""

    readings: int = 0
    mean: float = 0.0
    variance: float = 0.0
    since_alarm: int = QUIET_READINGS


def resolution(sensor: str) -> float:
    """The least spread that a sensor is taken to have, in its own unit."""
    return next((least for beginning, least in RESOLUTIONS if sensor.startswith(beginning)), RESOLUTION_OTHERS)


def step(state: SensorState, sensor: str, value: float) -> tuple[SensorState, float | None]:
    """Judge one reading; return the next state and, if it is an anomaly, how many times its spread it lies off.

    The spread is the sensor's standard deviation, or its floor if that is more.
    """
    if state.readings == 0:
        return SensorState(1, value, 0.0, state.since_alarm), None
    difference = value - state.mean
    floor = max(abs(state.mean) * RELATIVE_FLOOR, resolution(sensor))
    deviation = abs(difference) / max(math.sqrt(state.variance), floor)
    settled = state.readings >= WARM_UP_READINGS and state.since_alarm >= QUIET_READINGS
    alarm = deviation if settled and deviation >= THRESHOLD_DEVIATIONS else None
    step_by = SMOOTHING * difference
    following = SensorState(
        state.readings + 1,
        state.mean + step_by,
        (1.0 - SMOOTHING) * (state.variance + difference * step_by),
        0 if alarm is not None else state.since_alarm + 1,
    )
    return following, alarm

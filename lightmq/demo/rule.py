"""The anomaly rule: how far a reading lies from its sensor's own recent past. Pure.

Invariant: the verdict depends on the sensor's readings in their order alone, so the same log gives the same commands,
whatever the batches were; the accounting recomputes them and compares.
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


@dataclass(frozen=True, slots=True)
class SensorState:
    """What the rule remembers of a sensor: readings seen, running mean and variance, readings since the last alarm."""

    readings: int = 0
    mean: float = 0.0
    variance: float = 0.0
    since_alarm: int = QUIET_READINGS


def step(state: SensorState, value: float) -> tuple[SensorState, float | None]:
    """Judge one reading; return the next state and the deviation (in standard deviations) if it is an anomaly."""
    if state.readings == 0:
        return SensorState(1, value, 0.0, state.since_alarm), None
    difference = value - state.mean
    floor = max(abs(state.mean) * 0.01, 1e-6)
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

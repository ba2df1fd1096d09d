"""Where readings come from: a thread that samples the sensors, or one that replays a file.

Invariant: after `stop()` returns no further reading is published by the feed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

from lightmq.demo.device import Device
from lightmq.demo.replay import BadSeries, read_series
from lightmq.demo.sensors import MachineSensors
from runtime.clock import Clock

READINGS_PER_S = 60.0
"""A little above the fifty that the demo promises."""
UNACKNOWLEDGED_MAX = 5000
"""A replay waits for acknowledgements beyond this many, so that the device's memory stays small."""


LATENESS_SENSOR = "wakeup_late_ms"
"""How late the sampling thread woke up: what a busy machine does to its processes, and never quite the same."""


class Feed(Protocol):
    """A source of readings for the demo."""

    description: str

    def start(self) -> None:
        """Begin to publish."""

    def stop(self) -> None:
        """Publish no more."""

    def finished(self) -> bool:
        """Whether everything there is has been published."""


class SensorFeed:
    """Samples this machine so often that READINGS_PER_S are published."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._sensors = MachineSensors(lambda: clock.monotonic_ns() / 1e9)
        self.sensor_count = len(self._sensors.names) + 1
        self._interval_s = self.sensor_count / READINGS_PER_S
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.description = (
            f"{self.sensor_count} sensors of this machine, {READINGS_PER_S:.0f} readings/s over MQTT, QoS 1"
        )

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def _sample(self) -> None:
        due_s = self._clock.monotonic_ns() / 1e9
        while not self._stopped.is_set():
            now_ms = self._clock.now_ms()
            lateness_ms = (self._clock.monotonic_ns() / 1e9 - due_s) * 1000
            for name, value in (self._sensors.sample() | {LATENESS_SENSOR: lateness_ms}).items():
                self._device.publish(name, value, now_ms)
            due_s += self._interval_s
            self._stopped.wait(max(0.0, due_s - self._clock.monotonic_ns() / 1e9))

    def stop(self) -> None:
        """End the sampling thread."""
        self._stopped.set()
        self._thread.join()

    def finished(self) -> bool:
        """Sensors never run dry."""
        return False


class CsvFeed:
    """Publishes a recorded series as fast as the proxy acknowledges it."""

    def __init__(self, device: Device, path: Path) -> None:
        self._device = device
        self._sensor = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in path.stem)
        self._series = list(read_series(path))
        if not self._series:
            raise BadSeries(f"{path}: no readings below its first line")
        self._stopped = threading.Event()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._replay, daemon=True)
        self.description = (
            f"{len(self._series):,} recorded readings of {path.name}, as fast as they are acknowledged, QoS 1"
        )

    def start(self) -> None:
        """Begin to replay."""
        self._thread.start()

    def _replay(self) -> None:
        for time_ms, value in self._series:
            while self._device.unanswered > UNACKNOWLEDGED_MAX and not self._stopped.wait(0.005):
                continue
            if self._stopped.is_set():
                return
            self._device.publish(self._sensor, value, time_ms)
        self._finished.set()

    def stop(self) -> None:
        """End the replay where it is."""
        self._stopped.set()
        self._thread.join()

    def finished(self) -> bool:
        """Whether the whole file was published."""
        return self._finished.is_set()

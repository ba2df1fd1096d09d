"""Where readings come from: a thread that samples the sensors, or one that replays a file.

Invariant: after `stop()` returns no further reading is published by the feed.

`MachineSensors` reads this machine through psutil, without any set-up: the set of sensors is fixed when the object is
made, so topics do not come and go; a sensor that fails once is read again at the next turn. Rates (disk, network) are
per second since the last sample.

`read_series` reads a CSV file with a time and a value in each line: every line of the file becomes one reading or a
named error; nothing is skipped silently.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import psutil

from lightmq.demo.device import Device
from runtime.clock import Clock

Sample = dict[str, float]


class MachineSensors:
    """Samples per-core CPU, memory, disk, network, load and temperatures."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._last_counters: dict[str, float] = {}
        self._last_time_s = monotonic_s()
        psutil.cpu_percent(percpu=True)
        self.names = sorted(self.sample())

    def sample(self) -> Sample:
        """Read every sensor once: name -> value."""
        readings: Sample = {f"cpu{core}_percent": used for core, used in enumerate(psutil.cpu_percent(percpu=True))}
        memory = psutil.virtual_memory()
        readings["memory_percent"] = memory.percent
        readings["memory_available_mb"] = memory.available / 1e6
        readings["swap_percent"] = psutil.swap_memory().percent
        readings["disk_percent"] = psutil.disk_usage("/").percent
        readings["processes"] = float(len(psutil.pids()))
        for minutes, load in zip((1, 5, 15), psutil.getloadavg(), strict=True):
            readings[f"load_{minutes}min"] = load
        readings |= self._rates()
        readings |= temperatures()
        return readings

    def _rates(self) -> Sample:
        counters: dict[str, float] = {}
        disk = psutil.disk_io_counters()
        if disk is not None:
            counters |= {"disk_read_bytes": disk.read_bytes, "disk_write_bytes": disk.write_bytes}
        network = psutil.net_io_counters()
        counters |= {"network_sent_bytes": network.bytes_sent, "network_received_bytes": network.bytes_recv}
        statistics = psutil.cpu_stats()
        counters["context_switches"] = statistics.ctx_switches
        now_s = self._monotonic_s()
        elapsed_s = max(now_s - self._last_time_s, 1e-3)
        rates = {
            f"{name}_per_s": (count - self._last_counters.get(name, count)) / elapsed_s
            for name, count in counters.items()
        }
        self._last_counters, self._last_time_s = counters, now_s
        return rates


def temperatures() -> Sample:
    """Temperatures in degrees Celsius, where the machine has sensors for them."""
    read = getattr(psutil, "sensors_temperatures", None)
    if read is None:
        return {}
    return {
        f"temperature_{chip}_{number}": entry.current
        for chip, entries in read().items()
        for number, entry in enumerate(entries)
        if entry.current is not None
    }


class BadSeries(ValueError):
    """The file is not a series of (time, value); the text names the line."""


def read_series(path: Path) -> Iterator[tuple[int, float]]:
    """Yield (time in ms since 1970 UTC, value) for each line after the header."""
    with path.open(newline="") as lines:
        rows = csv.reader(lines)
        header = next(rows, None)
        if header is None or len(header) < 2:
            raise BadSeries(f"{path}: the first line must name two columns: timestamp,value")
        for number, row in enumerate(rows, start=2):
            try:
                moment = datetime.fromisoformat(row[0])
                value = float(row[1])
            except (IndexError, ValueError) as reason:
                raise BadSeries(f"{path}, line {number}: {reason}") from reason
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            yield int(moment.timestamp() * 1000), value


READINGS_PER_S = 60.0
"""A little above the fifty that the demo promises."""
UNACKNOWLEDGED_MAX = 5000
"""A replay waits for acknowledgements beyond this many, so that the device's memory stays small."""


LATENESS_SENSOR = "wakeup_late_ms"
"""How late the sampling thread woke up: what a busy machine does to its processes, and never quite the same."""


class ReadingSource(Protocol):
    """A source of readings for the demo."""

    description: str

    def start(self) -> None:
        """Begin to publish."""

    def stop(self) -> None:
        """End the thread; no reading is published after the return."""

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
        """Start the thread that publishes readings."""
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
        """Start the thread that publishes readings."""
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

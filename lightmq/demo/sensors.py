"""This machine's own sensors through psutil: what a laptop can say about itself without any set-up.

Invariant: the set of sensors is fixed when the object is made, so topics do not come and go; a sensor that fails once
is read again at the next turn. Rates (disk, network) are per second since the last sample.
"""

from __future__ import annotations

from collections.abc import Callable

import psutil

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

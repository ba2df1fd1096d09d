"""This machine's sensors answer with numbers under stable names."""

from __future__ import annotations

import itertools

from lightmq.demo.feed import MachineSensors


def test_sensors_of_this_machine() -> None:
    """Cores, memory, disk, network and load are there; names do not change between samples; rates are per second."""
    seconds = itertools.count()
    sensors = MachineSensors(lambda: float(next(seconds)))
    sample = sensors.sample()
    assert sorted(sample) == sensors.names
    for name in ("cpu0_percent", "memory_percent", "disk_percent", "network_sent_bytes_per_s", "load_1min"):
        assert isinstance(sample[name], float)
        assert sample[name] >= 0
    assert not [name for name in sensors.names if "/" in name]

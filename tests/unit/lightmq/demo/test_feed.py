"""Feeds publish what they announce and stop on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.demo.feed import BadSeries, CsvFeed, Device, SensorFeed
from lightmq.demo.stack import Ports
from runtime.clock import SystemClock

pytestmark = pytest.mark.processes


@pytest.fixture
def device(ports: Ports) -> Device:
    """A connected device."""
    subject = Device("feed-test", SystemClock())
    subject.connect("127.0.0.1", ports.mqtt)
    return subject


def test_a_series_is_published_whole(device: Device, tmp_path: Path) -> None:
    """Each line once, then the feed is finished."""
    path = tmp_path / "my series.csv"
    path.write_text("timestamp,value\n" + "".join(f"2024-01-01 00:{minute:02d}:00,{minute}\n" for minute in range(50)))
    feed = CsvFeed(device, path)
    feed.start()
    feed._thread.join(20)
    assert feed.finished()
    assert device.wait_acknowledged(20)
    assert device.acknowledged == 50
    feed.stop()
    device.close()


def test_an_empty_series_is_refused(device: Device, tmp_path: Path) -> None:
    """A file with only a header would show nothing."""
    path = tmp_path / "empty.csv"
    path.write_text("timestamp,value\n")
    with pytest.raises(BadSeries, match="no readings"):
        CsvFeed(device, path)
    device.close()


def test_sensors_publish_until_stopped(device: Device) -> None:
    """At least one full sample arrives and nothing comes after the stop."""
    feed = SensorFeed(device, SystemClock())
    feed.start()
    feed.stop()
    assert device.wait_acknowledged(20)
    assert device.acknowledged % feed.sensor_count == 0
    assert not feed.finished()
    device.close()

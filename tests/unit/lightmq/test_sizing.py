"""Needs follow from the declared costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightmq.sizing import PUBLISH_US, Load, publish_us, size

LOAD = Load(devices=1_000, rate_per_s=1_000.0)


def test_a_message_costs_what_was_measured() -> None:
    for rate, us in PUBLISH_US:
        assert publish_us(rate) == pytest.approx(us)
    assert publish_us(1) == PUBLISH_US[0][1]
    assert publish_us(1e9) == PUBLISH_US[-1][1]
    rates = [2_000 * 1.1**step for step in range(50)]
    assert sorted(map(publish_us, rates), reverse=True) == [publish_us(rate) for rate in rates]


def test_disk_is_records_and_their_queue_entries() -> None:
    """As the benchmark of disks has it: 272 bytes and 32 for a body of 100, and 16 for each filter."""
    needs = size(replace(LOAD, subscribers=0))
    assert needs.message_bytes == 272 + 32
    assert size(replace(LOAD, subscribers=2)).message_bytes == needs.message_bytes + 32
    twice = size(replace(LOAD, subscribers=0, days=14.0)).disk_bytes - needs.disk_bytes
    assert twice == needs.message_bytes * 1_000 * 86_400 * 7


def test_more_of_anything_never_takes_less() -> None:
    base = size(LOAD)
    more = (
        {"rate_per_s": 2_000.0}, {"subscribers": 5}, {"queries": 9}, {"replicas": 2}, {"tls": True},
        {"devices": 9_999}, {"payload_bytes": 999}, {"days": 70.0},
    )  # fmt: skip
    for change in more:
        needs = size(replace(LOAD, **change))
        assert needs.cores_busy >= base.cores_busy, change
        assert needs.memory_bytes >= base.memory_bytes, change
        assert needs.disk_bytes >= base.disk_bytes, change
        assert needs != base, change


def test_what_is_near_a_limit_is_said() -> None:
    said = " ".join(size(Load(devices=50_000, rate_per_s=200_000.0, subscribers=3, tls=True)).notes)
    for words in ("3 proxies", "were not measured", "processes of their own", "TLS", "checks passwords"):
        assert words in said
    assert size(Load(devices=10, rate_per_s=10.0)).notes == ()

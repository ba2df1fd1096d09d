"""A Spark stream from a broker group into itself while masters die or freeze: each row once, offsets continue."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.spark_failover import SparkOnGroup
from tests.processes.broker_group import Broker
from tests.processes.rig import no_traceback
from tests.processes.test_range_readers import metric

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(400)]


@pytest.fixture
def parts(spark: Any, tmp_path: Path) -> Iterator[SparkOnGroup]:
    """Three brokers; at least two have every acknowledged message."""
    made = SparkOnGroup(spark, tmp_path)
    try:
        made.start()
        made.flowing()
        yield made
    finally:
        made.end()


def master(parts: SparkOnGroup) -> Broker:
    return parts.group.settle()


def test_the_master_is_killed_under_a_stream(parts: SparkOnGroup) -> None:
    """The query continues by itself at the same offsets; rows it had staged appear once."""
    master(parts).kill()
    parts.flowing(3)
    assert parts.account() > 0
    no_traceback(*parts.group.brokers)


@pytest.mark.slow
def test_masters_die_and_stand_still_and_the_query_is_started_again(parts: SparkOnGroup) -> None:
    """SIGKILL, SIGSTOP with SIGCONT later, and a driver that restarts from its checkpoint under a new master."""
    for turn in range(6):
        broker = master(parts)
        if turn % 2:
            assert broker.process is not None
            broker.process.send_signal(signal.SIGSTOP)
            parts.flowing(3)
            broker.process.send_signal(signal.SIGCONT)
        else:
            broker.kill()
            if turn == 2:
                parts.query.stop()
                parts.start_query()
            parts.flowing(3)
            broker.start()
    assert parts.account() > 0
    no_traceback(*parts.group.brokers)


def served(parts: SparkOnGroup) -> list[float]:
    """Requests for records that each running broker answered as a replica."""
    return [metric(broker, "rocketmq_replica_reads_total") for broker in parts.group.brokers if broker.running]


@pytest.mark.slow
def test_the_master_is_killed_under_a_stream_that_reads_from_replicas(spark: Any, tmp_path: Path) -> None:
    """One of those that served reads becomes the master; batch reads compare every row at the end."""
    parts = SparkOnGroup(spark, tmp_path, read_from="replica")
    try:
        parts.start()
        parts.flowing()
        killed = master(parts)
        assert metric(killed, "rocketmq_replica_reads_total") == 0
        before = sum(served(parts))
        assert before > 0
        killed.kill()
        parts.flowing(3)
        killed.start()
        master(parts)
        parts.flowing(3)
        now = metric(killed, "rocketmq_replica_reads_total")
        assert parts.account() > 0
        assert metric(killed, "rocketmq_replica_reads_total") > now, "it serves reads as the replica that it is now"
        no_traceback(*parts.group.brokers)
    finally:
        parts.end()

"""What is logged about the durability of an acknowledgement, and when."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.config import BrokerConfig, ReplicationConfig
from broker.replication.promises import promise
from broker.roles.durability import DurabilityLog, log_promise, rule_of
from broker.store.settings import StoreSettings
from remoting.transport.failures import ConnectionLost
from tests.unit.broker.replication.streams import until


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def info(self, _event: str, *, promise: str) -> None:
        self.lines.append(("info", promise))

    def warning(self, _event: str, *, warning: str) -> None:
        self.lines.append(("warning", warning))

    def debug(self, event: str, **_fields: Any) -> None:
        self.lines.append(("debug", event))


def config(**replication: Any) -> BrokerConfig:
    return BrokerConfig(replication=ReplicationConfig(enabled=True, **replication))


def test_the_rule_is_that_of_the_configuration() -> None:
    alone = BrokerConfig(store=StoreSettings(flush="async"))
    assert (rule_of(alone).in_group, rule_of(alone).flush) == (False, "async")
    rule = rule_of(config(acknowledge="count", in_sync_replicas=3, in_sync_min=1))
    assert (rule.in_group, rule.acknowledge, rule.count, rule.in_sync_min) == (True, "count", 3, 1)


def test_a_warning_follows_the_sentence() -> None:
    log = Log()
    log_promise(config(in_sync_min=2), log, 2)
    found = promise(rule_of(config(in_sync_min=2)), 2)
    assert log.lines == [("info", found.text), ("warning", found.warning)]


async def test_a_master_logs_it_with_the_size_of_its_group_as_that_changes() -> None:
    log, sizes, asked = Log(), [3, 3, 2], []

    async def group_size() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionLost("no leading controller is known")
        return sizes[len(asked) - 2]

    one = DurabilityLog(config(in_sync_min=2), group_size, log, settle_s=0.001)
    rule = rule_of(config(in_sync_min=2))
    one.start()
    assert log.lines == [("info", promise(rule).text)]
    await until(lambda: len(log.lines) == 3)
    assert log.lines[1:] == [("debug", "group_size_unknown"), ("info", promise(rule, 3).text)]
    one.group_changed()
    await until(lambda: len(asked) == 3)
    await asyncio.sleep(0)
    assert len(log.lines) == 3, "the same sentence again"
    one.group_changed()
    await until(lambda: len(log.lines) == 5)
    assert log.lines[3:] == [("info", promise(rule, 2).text), ("warning", promise(rule, 2).warning)]
    await one.stop()
    one.group_changed()
    await asyncio.sleep(0.01)
    assert len(asked) == 4

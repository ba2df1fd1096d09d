"""The overview: `console.rates`, `console.lags`, `console.alarms`, `console.roles`, `console.figures`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.alarms import CRITICAL, WARNING, Alarms, rules
from console.cluster import Asked, BrokerGroupsView
from console.figures import OverviewFigures
from console.lags import lag_of, rows
from console.rates import CounterRates, refusals
from console.roles import RoleHistory
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from tests.support.clock import ManualClock


def counters(messages: int = 0, **metrics: float) -> dict[str, Any]:
    status = {"store": {"messages_total": messages, "bytes_total": messages * 100}}
    return {"started_ms": 1, "status": status, "metrics": metrics}


def take(rates: CounterRates, found: dict[str, Any], now_s: float) -> None:
    rates.take("a", found["started_ms"], found["metrics"], found["status"], now_s)


def test_rates_are_differences_between_samples() -> None:
    rates = CounterRates()
    take(rates, counters(10), 1.0)
    assert rates.total("messages_in") is None
    take(rates, counters(30), 3.0)
    assert (rates.total("messages_in"), rates.total("bytes_in")) == (10.0, 1000.0)


def test_a_look_right_after_another_makes_no_rate() -> None:
    """Neither one of its own nor a hole: the next look counts from the one before both."""
    rates = CounterRates()
    take(rates, counters(0), 1.0)
    take(rates, counters(1), 1.01)
    assert rates.total("messages_in") is None
    take(rates, counters(50), 2.0)
    take(rates, counters(50), 2.02)
    assert rates.total("messages_in") == 50.0


def test_a_process_that_was_started_again_begins_anew() -> None:
    rates = CounterRates()
    take(rates, counters(1_000), 1.0)
    take(rates, {**counters(5), "started_ms": 2}, 2.0)
    assert rates.total("messages_in") is None
    take(rates, {**counters(6), "started_ms": 2}, 3.0)
    assert rates.total("messages_in") == 1.0


def test_refusals_are_the_counters_of_what_was_refused() -> None:
    rates = CounterRates()
    before, after = (
        {"rocketmq_mqtt_denials_total{acl}": value, "rocketmq_messages_in_total": 9.0} for value in (1.0, 5.0)
    )
    take(rates, counters(**before), 0.0)
    take(rates, counters(**after), 2.0)
    granted = {
        "rocketmq_mqtt_authentications_total{accepted,password}": 7.0,
        "rocketmq_mqtt_authentications_total{anonymous,none}": 9.0, "rocketmq_console_streams": 3.0,
        "rocketmq_console_live_dropped_total": 3.0,
    }  # fmt: skip
    assert refusals(rates, {"a": counters(**after, **granted)}) == {"rocketmq_mqtt_denials_total{acl}": (5.0, 2.0)}


QUEUE = '{"topic":"t","brokerName":"a","queueId":1}'


def stats(offset: int, end: int, waiting_ms: int = 0) -> dict[str, Any]:
    numbers = {"brokerOffset": end, "consumerOffset": offset, "minOffset": 0, "waitingMs": waiting_ms}
    return {"offsetTable": {QUEUE: numbers}}


def test_lag_by_queue_and_the_largest_of_any_group() -> None:
    (row,) = rows("a", [("g", stats(3, 10, 1_500))])
    assert (row["lag"], row["lag_s"], row["topic"], row["queue"]) == (7, 1.5, "t", 1)
    body = b'{"consumeStatsList":[{"g":[%s]},{"h":[%s]}]}'
    answer = Command(0, body=body % (json.dumps(stats(3, 10, 9_000)).encode(), json.dumps(stats(0, 99)).encode()))
    lag = lag_of(Asked({"a": answer}, {}))
    assert (lag.groups, lag.messages_max, lag.seconds_max, lag.worst) == (2, 99, 9.0, "g")
    with pytest.raises(RemoteViolation):
        list(rows("a", [("g", {"offsetTable": {"x": {}}})]))


OVERVIEW = {"lag_max_s": 0, "refusals_rate": 0}


def test_the_alarm_about_refusals_says_in_words_which_are_most() -> None:
    refused = {
        "rocketmq_mqtt_denials_total{will,no_rule}": (500.0, 1.0),
        "rocketmq_mqtt_violations_total{keep_alive_timeout}": (90.0, 8.0),
    }
    ((_, _, text, _, _),) = rules({}, {}, {"lag_max_s": 0, "refusals_rate": 9.0}, "", refused)
    assert text == (
        "9 refusals a second, most of them: MQTT connections closed, silent for one and a half times its keep-alive; "
        "see refusals by reason"
    )


def test_alarms_begin_once_and_the_worst_comes_first() -> None:
    alarms = Alarms()
    full = counters()
    full["status"]["store"]["disk_full"] = 1
    late = {**OVERVIEW, "lag_max_s": 1_000}
    assert alarms.judge(rules({}, {}, late, "g", {}), 1_000_005)
    assert not alarms.judge(rules({}, {}, late, "g", {}), 1_000_006)
    assert alarms.judge(rules({"a": full}, {"b": "gone"}, late, "g", {}), 1_000_007)
    assert [(item["severity"], item["since_ms"]) for item in alarms.items] == [
        (CRITICAL, 1_000_007),
        (CRITICAL, 1_000_007),
        (WARNING, 300_005),  # 700 s ago the group came to be later than the limit
    ]
    assert alarms.past == []
    assert alarms.judge(rules({}, {}, OVERVIEW, "", {}), 1_000_009)
    assert alarms.items == []
    assert {(item["id"], item["since_ms"], item["ended_ms"]) for item in alarms.past} == {
        ("lag:g", 300_005, 1_000_009), ("disk_full:a", 1_000_007, 1_000_009), ("missing:b", 1_000_007, 1_000_009),
    }  # fmt: skip


def test_role_changes_are_noted_once() -> None:
    row = {
        "name": "a", "state": "ok", "master": 1, "address": "x", "epoch": 1, "sync_state_set": [1, 2],
        "sync_state_set_epoch": 1,
    }  # fmt: skip
    history = RoleHistory()
    history.note([row], 1)
    history.note([row], 2)
    history.note([{**row, "master": 2, "epoch": 2}], 3)
    assert [(change["time_ms"], change["master"], change["epoch"]) for change in history.changes] == [
        (1, 1, 1),
        (3, 2, 2),
    ]


async def test_an_installation_that_does_not_answer_is_an_alarm() -> None:
    async def dial(address: str) -> Any:
        raise ConnectionLost(f"{address} is away")

    figures = OverviewFigures(
        BrokerGroupsView(dial, lambda: ("here:1",)), ManualClock(), mode="m", node="n", version="1", history_s=60
    )
    sample = await figures.fresh()
    assert sample.overview["clients"] == 0
    assert [alarm["severity"] for alarm in figures.alarms] == [CRITICAL]
    assert "here:1 is away" in figures.alarms[0]["text"]

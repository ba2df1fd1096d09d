"""Connected clients, and how much each group was given."""

from __future__ import annotations

from broker.groups.groups import Clients, GroupClient
from broker.groups.traffic import BUCKETS, DAY_MS, HOUR_MS, MINUTE_MS, GroupTraffic, TrafficCount


def make() -> tuple[Clients, list[str]]:
    changed: list[str] = []
    return Clients(expiry_ms=1_000, on_group_changed=changed.append), changed


def client(name: str, peer: object = "peer", now_ms: int = 0) -> GroupClient:
    return GroupClient(name, peer, "JAVA", 1, now_ms)


def test_members_are_sorted_and_joining_is_announced_once() -> None:
    clients, changed = make()
    assert clients.heartbeat(client("b"), (), {"g": {}})
    assert clients.heartbeat(client("a"), ("p",), {"g": {}})
    assert not clients.heartbeat(client("a"), (), {"g": {}})
    assert clients.members("g") == ["a", "b"]
    assert changed == ["g", "g"]
    assert [item.client_id for item in clients.producers_of("p")] == ["a"]


def test_leaving_by_request_by_connection_and_by_silence() -> None:
    clients, changed = make()
    clients.heartbeat(client("a"), (), {"g": {}})
    clients.heartbeat(client("b", "other"), (), {"g": {}})
    clients.heartbeat(client("c", "third", 5_000), (), {"g": {}})
    clients.unregister("a", None, "g")
    clients.peer_closed("other")
    assert clients.members("g") == ["c"]
    assert clients.expire(5_500) == 0
    assert clients.expire(6_001) == 1
    assert clients.members("g") == []
    assert len(changed) == 6
    assert len(clients) == 0


def test_a_groups_subscription_comes_from_its_heartbeats() -> None:
    clients, _changed = make()
    data = {"subscriptionDataSet": [{"topic": "t", "subString": "red || blue"}]}
    clients.heartbeat(client("a"), (), {"g": data})
    assert clients.subscription("g", "t")["subString"] == "red || blue"
    assert clients.subscription("g", "other") is None
    for name, version, tags in (("b", 7, "new"), ("c", 6, "older"), ("d", "x", "unusable")):
        data = {"subscriptionDataSet": [{"topic": "t", "subString": tags, "subVersion": version}]}
        clients.heartbeat(client(name), (), {"g": data})
    assert clients.subscription("g", "t")["subString"] == "new"


START_MS = 1_700_000_040_000


def test_each_span_has_what_was_given_within_it() -> None:
    traffic = GroupTraffic()
    assert traffic.totals("g", "t", START_MS) is None
    traffic.gave("g", "t", START_MS, 10, 1_000)
    traffic.gave("g", "t", START_MS + 1, 5, 500)
    traffic.gave("g", "other", START_MS, 1, 1)
    assert traffic.totals("g", "t", START_MS + 1) == (TrafficCount(15, 1_500, 2),) * 3
    later_ms = START_MS + MINUTE_MS
    traffic.gave("g", "t", later_ms, 1, 10)
    assert traffic.totals("g", "t", later_ms) == (
        TrafficCount(1, 10, 1),
        TrafficCount(16, 1_510, 3),
        TrafficCount(16, 1_510, 3),
    )
    hours_ms = START_MS + HOUR_MS + MINUTE_MS
    minute, hour, day = traffic.totals("g", "t", hours_ms) or ()
    assert (minute.messages, hour.messages, day.messages) == (0, 0, 16)


def test_a_rate_is_that_of_the_last_minute() -> None:
    traffic = GroupTraffic()
    assert traffic.per_second("g", "t", START_MS) == 0.0
    for second in range(60):
        traffic.gave("g", "t", START_MS + 1_000 * second, 2, 0)
    assert traffic.per_second("g", "t", START_MS + 59_000) == 2.0
    assert traffic.per_second("g", "t", START_MS + 200_000) == 0.0


def test_a_group_that_got_nothing_for_a_day_is_forgotten() -> None:
    traffic = GroupTraffic()
    traffic.gave("g", "t", START_MS, 1, 1)
    traffic.expire(START_MS + DAY_MS // 2)
    assert traffic.totals("g", "t", START_MS + DAY_MS // 2) is not None
    traffic.expire(START_MS + DAY_MS)
    assert traffic.totals("g", "t", START_MS + DAY_MS) is None


def test_memory_does_not_grow_with_answers_and_a_clock_set_back_loses_no_more_than_the_figures() -> None:
    traffic = GroupTraffic()
    for second in range(3_600):
        traffic.gave("g", "t", START_MS + 1_000 * second, 1, 1)
    assert all(len(window._buckets) <= BUCKETS + 1 for window in traffic._windows["g", "t"])
    traffic.gave("g", "t", START_MS - HOUR_MS, 1, 1)
    assert [one.messages for one in traffic.totals("g", "t", START_MS - HOUR_MS) or ()] == [1, 1, 1]

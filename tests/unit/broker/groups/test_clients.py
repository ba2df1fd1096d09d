"""Group membership is exact and every change is announced once."""

from __future__ import annotations

from broker.groups.clients import Clients, GroupClient


def make() -> tuple[Clients, list[str]]:
    heard: list[str] = []
    return Clients(expiry_ms=1_000, on_group_changed=heard.append), heard


def client(name: str, peer: object = "peer", now_ms: int = 0) -> GroupClient:
    return GroupClient(name, peer, "JAVA", 1, now_ms)


def test_members_are_sorted_and_joining_is_announced_once() -> None:
    clients, heard = make()
    assert clients.heartbeat(client("b"), (), {"g": {}})
    assert clients.heartbeat(client("a"), ("p",), {"g": {}})
    assert not clients.heartbeat(client("a"), (), {"g": {}})
    assert clients.members("g") == ["a", "b"]
    assert heard == ["g", "g"]
    assert [item.client_id for item in clients.producers_of("p")] == ["a"]


def test_leaving_by_word_by_connection_and_by_silence() -> None:
    clients, heard = make()
    clients.heartbeat(client("a"), (), {"g": {}})
    clients.heartbeat(client("b", "other"), (), {"g": {}})
    clients.heartbeat(client("c", "third", 5_000), (), {"g": {}})
    clients.unregister("a", None, "g")
    clients.peer_closed("other")
    assert clients.members("g") == ["c"]
    assert clients.expire(5_500) == 0
    assert clients.expire(6_001) == 1
    assert clients.members("g") == []
    assert len(heard) == 6
    assert len(clients) == 0


def test_a_groups_subscription_comes_from_its_heartbeats() -> None:
    clients, _heard = make()
    data = {"subscriptionDataSet": [{"topic": "t", "subString": "red || blue"}]}
    clients.heartbeat(client("a"), (), {"g": data})
    assert clients.subscription("g", "t")["subString"] == "red || blue"
    assert clients.subscription("g", "other") is None

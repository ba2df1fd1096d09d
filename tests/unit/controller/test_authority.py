"""The right that each request needs, and that nothing is answered before the check."""

from __future__ import annotations

import pytest

from controller.authority import guarded, judge_unserved, questions
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer

HELD = {("C", "h:1"): ("a", 0)}


def owner(cluster: str, address: str) -> tuple[str, int] | None:
    return HELD.get((cluster, address))


@pytest.mark.parametrize(
    ("code", "fields", "asked"),
    [
        (105, {"topic": "t"}, [("locate", "t")]),
        (105, {"topic": "TBW102"}, [("locate", "")]),
        (106, {}, [("locate", "")]),
        (901, {"brokerName": "a"}, [("inspect", "a")]),
        (103, {"brokerName": "a", "clusterName": "C", "brokerAddr": "h:1"}, [("register", "a")]),
        (103, {"brokerName": "b", "clusterName": "C", "brokerAddr": "h:1"}, [("register", "b"), ("register", "a")]),
        (904, {"brokerName": "b", "clusterName": "C", "brokerAddr": "h:1"}, [("register", "b"), ("register", "a")]),
        (103, {"brokerName": "b", "clusterName": "C", "brokerAddr": "h:2"}, [("register", "b")]),
        (103, {}, [("register", "")]),
        (1002, {"clusterName": "C", "brokerName": "a", "brokerId": "1"}, [("register", "a")]),
        (1002, {"clusterName": "C", "brokerName": "a"}, [("admin", "request 1002")]),
        (1002, {"clusterName": "C", "brokerName": "a", "brokerId": "-1"}, [("admin", "request 1002")]),
        (
            1002,
            {"clusterName": "C", "brokerName": "a", "brokerId": "1", "designateElect": "true"},
            [("admin", "request 1002")],
        ),
        (1002, {"clusterName": "C", "brokerName": "a", "brokerId": "1", "leaves": "true"}, [("register", "a")]),
        (205, {"brokerName": "a"}, [("admin", "request 205")]),
    ],
)
def test_the_right_of_each_request(code: int, fields: dict[str, str], asked: list[tuple[str, str]]) -> None:
    assert list(questions(Command(code, fields=fields), owner)) == asked


def test_a_refused_request_reaches_no_handler() -> None:
    class Stranger:
        def __init__(self) -> None:
            self.attributes: dict[str, object] = {}

    reached = []
    table = {205: lambda _peer, command: reached.append(command)}
    with pytest.raises(Refused, match="may not admin"):
        guarded(table, Authorizer(lambda *_: False), owner)[205](Stranger(), Command(205))
    assert reached == []
    guarded(table, Authorizer(), owner)[205](Stranger(), Command(205))
    assert len(reached) == 1


@pytest.mark.parametrize(
    ("code", "fields", "asked"),
    [
        (10, {"topic": "t"}, ("publish", "t")),
        (310, {"b": "t"}, ("publish", "t")),
        (320, {"b": "t"}, ("publish", "t")),
        (11, {"topic": "t"}, ("consume", "t/#")),
        (310, {}, None),
        (34, {}, None),
        (4711, {"topic": "t"}, None),
    ],
)
def test_requests_of_brokers_need_their_right(code: int, fields: dict[str, str], asked: tuple[str, str] | None) -> None:
    heard = []

    def policy(_identity: str, action: str, resource: str) -> bool:
        heard.append((action, resource))
        return len(heard) == 1

    class Somebody:
        def __init__(self) -> None:
            self.attributes: dict[str, object] = {}

    authorizer, command = Authorizer(policy), Command(code, fields=fields)
    judge_unserved(authorizer, Somebody(), command)
    assert heard == ([asked] if asked else [])
    if asked:
        with pytest.raises(Refused):
            judge_unserved(authorizer, Somebody(), command)


def test_a_code_without_a_right_is_not_served() -> None:
    with pytest.raises(LightMQError):
        guarded({4711: lambda _peer, _command: None}, Authorizer(), owner)

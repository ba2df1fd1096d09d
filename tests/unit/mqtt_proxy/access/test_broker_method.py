"""Users created at the broker log in by MQTT and have the rules they were given there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mqtt_proxy.access.auth import Waits
from mqtt_proxy.access.broker_method import BrokerMethod
from mqtt_proxy.access.gate import Gate
from mqtt_proxy.link import LinkDownError
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Action, Identity, Shown, Unproven
from remoting.access.users import CreatedUsersReply, User, UserTable, entry_of
from remoting.protocol.frames.codes import RequestCode
from runtime.clock import SystemClock
from runtime.metrics import Registry


class FakeLink:
    """A broker with one user, whose password is `right`."""

    def __init__(self) -> None:
        self.down = False
        self.version = "1"
        reading = entry_of("Topic:plant", ["Sub"], [], "Allow")
        entries = (reading, entry_of("Topic:cmd", ["Pub"], ["10.0.0.0/8"], "Allow"))
        self.table = UserTable({"ann": User(secret="")}, {"ann": entries})

    async def request(self, code: int, body: bytes) -> bytes:
        if self.down:
            raise LinkDownError("no connection")
        if code == RequestCode.CHECK_USER:
            return b"true" if msgspec.json.decode(body) == ["ann", "right"] else b"false"
        table = None if body == self.version.encode() else self.table
        return msgspec.json.encode(CreatedUsersReply(version=self.version, table=table))


def shown(username: str | None = "ann", password: bytes = b"right", address: str = "10.1.2.3") -> Shown:
    return Shown(client_id="c", username=username, password=password, address=address)


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def method(link: FakeLink) -> BrokerMethod:
    return BrokerMethod(link, last=True)  # type: ignore[arg-type]


async def test_a_right_password_is_the_user_and_everything_else_is_refused(link, method) -> None:
    await method.fetch()
    assert await method.check(shown()) == Identity("ann", anonymous=False, client_id="c", address="10.1.2.3")
    assert await method.check(shown(password=b"wrong")) is Unproven.DENIED
    assert await method.check(shown(password=b"\xff")) is Unproven.DENIED
    assert await method.check(shown("nobody")) is Unproven.DENIED
    assert await method.check(shown(None)) is None
    link.down = True
    assert await method.check(shown()) is Unproven.UNAVAILABLE


async def test_users_of_other_methods_are_left_to_them(link) -> None:
    method = BrokerMethod(link, last=False)
    await method.fetch()
    assert method.at_hand(shown()) is Waits.LATER
    assert await method.check(shown("bob")) is None


async def test_rules_are_those_of_the_list_and_of_the_broker(tmp_path: Path, link, method) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read public/#\nuser ann\ntopic deny plant/secret\n")
    gate = Gate((method,), acl, clock=SystemClock(), counters=AccessCounters(Registry()))
    near, far = (Identity("ann", anonymous=False, client_id="c", address=host) for host in ("10.1.2.3", "11.0.0.1"))
    assert not gate.authorize(near, Action.SUBSCRIBE, "plant/1")
    changes: list[str] = []
    gate.on_change(lambda: changes.append("rules"))
    await method.fetch()
    await method.fetch()
    assert changes == ["rules"], "the second table is the same"
    assert gate.authorize(near, Action.SUBSCRIBE, "plant/1")
    assert not gate.authorize(near, Action.SUBSCRIBE, "plant/secret")
    assert gate.authorize(near, Action.PUBLISH, "cmd/1")
    assert not gate.authorize(far, Action.PUBLISH, "cmd/1")
    assert gate.authorize(Identity("", anonymous=True), Action.SUBSCRIBE, "public/1")
    link.version, link.table = "2", UserTable()
    await method.fetch()
    assert not gate.authorize(near, Action.SUBSCRIBE, "plant/1")


async def test_while_the_list_was_never_valid_nothing_is_allowed(tmp_path: Path, method) -> None:
    acl = tmp_path / "acl"
    acl.write_text("nonsense\n")
    gate = Gate((method,), acl, clock=SystemClock(), counters=AccessCounters(Registry()))
    await method.fetch()
    assert not gate.authorize(Identity("ann", anonymous=False), Action.SUBSCRIBE, "plant/1")


async def test_the_table_is_kept_while_the_broker_is_away_and_watched_until_the_end(link, method) -> None:
    await method.fetch()
    link.down = True
    await method.fetch()
    assert sorted(method.table.users) == ["ann"]
    link.down = False
    method.start()
    await method.close()
    method.refresh()
    assert method.files() == ()

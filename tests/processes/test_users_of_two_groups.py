"""Users and rules of a cluster with two broker groups: both obey one request, also about the end of a user.

All processes have access lists; ann is made by a request to the master of one group. A group that is cut off from the
controllers keeps the users that it knows until it reaches them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from tests.chaos.fault_proxy import IN, OUT, FaultProxy
from tests.processes.broker_group import Broker, Controller, until
from tests.processes.test_cluster_users import ANN_SECRET, ROLES, SECRETS, ask, code_of, key_of, settings
from tests.support.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
USER = {"username": "ann", "password": ANN_SECRET, "userType": "Normal"}
RULES = {"policies": [{"entries": [{"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}]}]}
SEND = {"topic": "orders", "producerGroup": "g", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0"}
TOPIC = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}


class TwoGroups:
    """Controllers and two groups of one broker each; the second dials the controllers by addresses of its own."""

    def __init__(self, folder: Path, *, controllers: int) -> None:
        self.boss, self.ann = key_of(folder, "boss"), key_of(folder, "ann", ANN_SECRET)
        listed = folder / "rules"
        listed.write_text(ROLES.replace("role broker broker-a\n", "role broker broker-a\nrole broker broker-b\n"))
        keys = ",".join(f"{name}:{secret}" for name, secret in SECRETS.items())
        shared = {"access_keys": keys, "access_list": listed}
        ports = [(free_port(), free_port()) for _ in range(controllers)]
        peers = ",".join(f"n{at}@127.0.0.1:{port}@{raft}" for at, (port, raft) in enumerate(ports, 1))
        more = settings("controller", **shared, access_key_file=key_of(folder, "controllers"))
        self.controllers = [
            Controller(folder, at, port, peers if controllers > 1 else "", more)
            for at, (port, _) in enumerate(ports, 1)
        ]
        addresses = ",".join(f"127.0.0.1:{port}" for port, _raft in ports)
        self.network = FaultProxy()
        faces = [("127.0.0.1", free_port()) for _ in ports]
        for face, (port, _raft) in zip(faces, ports, strict=True):
            self.network.add(str(port), face, ("127.0.0.1", port))
        self.faces = [str(port) for port, _raft in ports]
        of_brokers = settings("broker", **shared, access_key_file=key_of(folder, "node"))
        of_brokers += settings("broker", replication__enabled="true", replication__port=0, replication__in_sync_min=1)
        self.first, self.second = (
            self._broker(folder, name, dialled, of_brokers)
            for name, dialled in (
                ("broker-a", addresses),
                ("broker-b", ",".join(f"{host}:{port}" for host, port in faces)),
            )
        )

    @staticmethod
    def _broker(folder: Path, name: str, controllers: str, more: list[str]) -> Broker:
        arguments = ["broker", "--data", str(folder / f"{name}-data"), "--controllers", controllers, *more]
        made = Broker(folder / name, [*arguments, *settings("broker", broker_name=name)], "remoting")
        made.admin_key = f"boss:{SECRETS['boss']}"
        return made

    def start(self) -> None:
        """Start everything; each group has its master and the topic `orders`."""
        for part in (*self.controllers, self.first, self.second):
            part.start()
        for each in (self.first, self.second):
            until(lambda each=each: self.asked(each, Code.UPDATE_AND_CREATE_TOPIC, None, **TOPIC) == 0, "no master")

    def asked(self, broker: Broker, code: int, body: object = None, **fields: str) -> int | str:
        """The code of the answer to the administrator."""
        return code_of(ask(broker.port, self.boss, code, body, **fields))

    def sent(self, broker: Broker) -> int | str:
        """The code of the answer to a message of ann's."""
        return code_of(ask(broker.port, self.ann, Code.SEND_MESSAGE, **SEND))

    def create_ann(self) -> None:
        """At the first group, which knows her at once, as the second does soon."""
        assert (self.sent(self.first), self.sent(self.second)) == (ResponseCode.NO_PERMISSION,) * 2
        until(lambda: self.asked(self.first, Code.AUTH_CREATE_USER, USER, username="ann") == 0, "no user")
        assert self.asked(self.first, Code.AUTH_CREATE_ACL, RULES, subject="User:ann") == 0
        assert self.sent(self.first) == 0
        until(lambda: self.sent(self.second) == 0, "the second group does not know ann")

    def end(self) -> None:
        """At the end of a test, whatever its outcome."""
        self.network.close()
        for part in (self.first, self.second, *self.controllers):
            part.kill_if_running()


@pytest.fixture
def groups(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TwoGroups]:
    """Everything started."""
    made = TwoGroups(tmp_path, controllers=request.param)
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("groups", [3], indirect=True)
def test_both_groups_obey_a_user_made_and_deleted_once(groups: TwoGroups) -> None:
    """Deleted at the other group than she was made at."""
    groups.create_ann()
    assert groups.asked(groups.second, Code.AUTH_DELETE_USER, username="ann") == 0
    assert groups.sent(groups.second) == ResponseCode.NO_PERMISSION
    until(lambda: groups.sent(groups.first) == ResponseCode.NO_PERMISSION, "the first group still knows ann")


def test_the_first_user_waits_for_a_controller_that_is_down(tmp_path: Path) -> None:
    """It may be of an earlier release, which would leave the user out; the refusal names it."""
    groups = TwoGroups(tmp_path, controllers=3)
    *started, last = groups.controllers
    try:
        for part in (*started, groups.first):
            part.start()
        until(lambda: groups.asked(groups.first, Code.UPDATE_AND_CREATE_TOPIC, None, **TOPIC) == 0, "no master")
        refused = ask(groups.first.port, groups.boss, Code.AUTH_CREATE_USER, USER, username="ann")
        assert code_of(refused) == ResponseCode.SYSTEM_BUSY, refused
        assert "the controllers n3 are down, or of a release" in str(getattr(refused, "remark", refused))
        last.start()
        until(lambda: groups.asked(groups.first, Code.AUTH_CREATE_USER, USER, username="ann") == 0, "still refused")
    finally:
        groups.end()


@pytest.mark.parametrize("groups", [1], indirect=True)
def test_a_group_without_controllers_learns_later(groups: TwoGroups) -> None:
    """It obeys the users that it knows, takes no change, and says so in its log."""
    groups.create_ann()
    for face in groups.faces:
        groups.network.set(face, cut=frozenset((IN, OUT)))
    assert groups.asked(groups.first, Code.AUTH_DELETE_USER, username="ann") == 0
    assert groups.sent(groups.first) == ResponseCode.NO_PERMISSION
    until(lambda: "access_not_followed" in groups.second.log.read_text(), "nothing is logged")
    assert groups.sent(groups.second) == 0
    assert groups.asked(groups.second, Code.AUTH_DELETE_USER, username="ann") != 0
    for face in groups.faces:
        groups.network.set(face)
    until(lambda: groups.sent(groups.second) == ResponseCode.NO_PERMISSION, "the second group still knows ann")

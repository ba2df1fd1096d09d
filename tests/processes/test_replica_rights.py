"""A broker group with an access list: a key without the right to the log gets no byte of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.replication import frames
from broker.replication.frames import Refusal
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.support.replication import Caller

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SECRETS = {name: f"secret-of-{name}" for name in ("node", "edge", "boss", "other", "impostor")}
ROLES = {
    "node": "role broker broker-a", "edge": "role proxy", "boss": "role admin", "other": "role broker broker-b",
}  # fmt: skip
IMPOSTOR_AT_CONTROLLERS = "role broker broker-a"
"""A key that may register: controllers and brokers may have lists of their own."""


def listed(file: Path, roles: dict[str, str]) -> Path:
    """An access list."""
    file.write_text("".join(f"user {name}\n{role}\n" for name, role in roles.items()))
    return file


def key_of(folder: Path, name: str) -> Path:
    """A key file."""
    file = folder / f"key-{name}"
    file.write_text(f"{name}:{SECRETS[name]}\n")
    file.chmod(0o600)
    return file


def settings(part: str, **values: object) -> list[str]:
    """Arguments that set keys of a part."""
    return [word for name, value in values.items() for word in ("--set", f"{part}.{name}={value}")]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerGroup]:
    """A master and a replica with the right key."""
    tmp_path = tmp_path_factory.mktemp("group")
    keys = ",".join(f"{name}:{secret}" for name, secret in SECRETS.items())
    controllers = listed(tmp_path / "controllers", {**ROLES, "impostor": IMPOSTOR_AT_CONTROLLERS})
    brokers = listed(tmp_path / "brokers", ROLES)
    made = BrokerGroup(
        tmp_path,
        brokers=2,
        arguments={
            "controller": settings("controller", access_keys=keys, access_list=controllers),
            "broker": settings(
                "broker", access_keys=keys, access_list=brokers, access_key_file=key_of(tmp_path, "node")
            ),
            "proxy": settings("proxy", access_key_file=key_of(tmp_path, "edge")),
        },
    )
    for each in made.brokers:
        each.admin_key = f"boss:{SECRETS['boss']}"
    try:
        made.start()
        yield made
    finally:
        made.end()


def refusals(master: Broker) -> int:
    """The number of refusals counted by the master."""
    found = re.search(rb"^rocketmq_replica_unproven_refusals_total (\d+)", master.page("/metrics"), re.MULTILINE)
    assert found
    return int(found[1])


def test_a_key_without_the_role_is_refused(group: BrokerGroup) -> None:
    """Authenticated or not shown at all, from this machine: no greeting, no log, and it is counted and logged."""
    master = group.settle()
    before = refusals(master)

    async def asked(name: str) -> frames.Frame | None:
        caller = await Caller.dial(master.ports["replication"])
        fields = {"cluster": "DefaultCluster", "group": "broker-a", "broker": 7, "access_key": name}
        return await caller.hello(SECRETS.get(name), **fields)

    for count, name in enumerate(("", "edge", "boss", "other"), 1):
        answer = asyncio.run(asked(name))
        assert isinstance(answer, Refusal), name
        assert (answer.reason, "has no role" in answer.remark) == (frames.NO_PROOF_GIVEN, True)
        assert refusals(master) == before + count
    told = [line for line in master.log.read_text().splitlines() if "replica_refused" in line]
    assert told
    assert "has no role" in told[0]
    assert len(group.settle().status()["in_sync"]) == 2


def test_a_whole_broker_with_the_wrong_key_never_follows(group: BrokerGroup, tmp_path: Path) -> None:
    """The controllers accept it as a member of the group, so it finds the master; the master sends it nothing."""
    master = group.settle()
    impostor = group._broker(3, 2)
    impostor.arguments += settings("broker", access_key_file=key_of(tmp_path, "impostor"))
    impostor.admin_key = f"boss:{SECRETS['boss']}"
    impostor.start()
    try:
        until(lambda: refusals(master) >= 2, "it never came to the master")
        until(lambda: "has no role for this log" in impostor.log.read_text(), "it did not get the reason")
        assert len(master.status()["in_sync"]) == 2
        assert impostor.status()["end"] == 0
    finally:
        impostor.kill_if_running()

"""Requests that a replica answers which stands in for its master: without the right, nothing gets into its journal.

Two of three controllers and the master are killed. What the replica takes then is kept beside the log in a journal that
the next master takes over without asking for rights again, so they count here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode, request_name
from remoting.protocol.frames.commands import Command
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.test_acting_locks import OPTIONS, acting
from tests.security.request_attempts import Target, attempts
from tests.security.test_rights_of_requests import KEYS, RULES, ask, key_file, options, target_at

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ANSWERED = (
    Code.UPDATE_CONSUMER_OFFSET, Code.END_TRANSACTION, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.AGREE_LOCKS,
    Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME, Code.POP_MESSAGE,
)  # fmt: skip
"""What a replica takes that stands in."""
MERGES = (
    Code.MERGE_OFFSETS,
    Code.MERGE_TRANSACTIONS,
    Code.MERGE_LOCKS,
    Code.MERGE_ESCAPED,
    Code.MERGE_POPS,
    Code.MERGE_GIVEN,
)
"""What only a master takes."""
NOT_MASTER = 9101


class Stood:
    """A replica that stands in, and its journal."""

    def __init__(self, replica: Broker, journal: Path, target: Target) -> None:
        self.replica, self.journal, self.target = replica, journal, target

    def lines(self) -> list[bytes]:
        """What is in the journal."""
        return self.journal.read_bytes().splitlines() if self.journal.exists() else []


@pytest.fixture(scope="module")
def stood(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stood]:
    """The replica of a group whose master is gone and cannot be replaced."""
    folder = tmp_path_factory.mktemp("stood")
    (folder / "rules").write_text(RULES)
    keys = {part: f"{part}.access_key_file={key_file(folder, key)}" for part, key in PARTS.items()}
    own = [f"broker.replication.{option}" for option in OPTIONS]
    arguments = {
        "controller": options("controller", folder, keys["controller"], "controller.broker_lost_grace_ms=2500"),
        "broker": options("broker", folder, keys["broker"], *own),
    }
    group = BrokerGroup(folder, controllers=3, brokers=2, in_sync_min=2, arguments=arguments)
    try:
        for each in group.brokers:
            each.admin_key = f"boss:{KEYS['boss']}"
        for part in (*group.controllers, *group.brokers):
            part.start()
        master = group.settle()
        target = target_at(group.controllers[0].port, master.port)
        group.wait_equal()
        for controller in group.controllers[1:]:
            controller.kill()
        master.kill()
        (replica,) = [each for each in group.brokers if each is not master]
        until(lambda: acting([replica]), "nobody stands in")
        yield Stood(replica, folder / f"{replica.data.name}-data" / "ACTING", target)
    finally:
        group.end()


PARTS = {"controller": "brain", "broker": "node"}


def claim(client_id: str) -> Command:
    """What a replica asks others to agree to."""
    queues = [{"topic": "secret", "queueId": 0, "token": 99}]
    body = {"consumerGroup": "g", "clientId": client_id, "mqSet": queues}
    return Command(Code.AGREE_LOCKS, body=msgspec.json.encode(body))


@pytest.mark.parametrize("key", ["etl", None])
@pytest.mark.parametrize("code", ANSWERED, ids=request_name)
def test_without_the_right_nothing_is_kept(stood: Stood, code: int, key: str | None) -> None:
    before = stood.lines()
    reply = ask(stood.replica.port, key, attempts(stood.target)[code])
    assert (reply.code, reply.body) == (ResponseCode.NO_PERMISSION, b""), reply.remark
    assert stood.lines() == before


@pytest.mark.parametrize("key", ["etl", "edge", "boss", "stranger", "brain", None])
def test_brokers_of_the_group_alone_agree_to_locks(stood: Stood, key: str | None) -> None:
    """Not an administrator, a proxy or a controller, and no broker of another group."""
    before = stood.lines()
    reply = ask(stood.replica.port, key, claim(f"of {key}"))
    assert (reply.code, reply.body) == (ResponseCode.NO_PERMISSION, b""), reply.remark
    assert stood.lines() == before


def test_a_broker_of_the_group_is_agreed_with(stood: Stood) -> None:
    before = stood.lines()
    reply = ask(stood.replica.port, "node", claim("c"))
    assert (reply.code, reply.body) == (0, b'[["secret",0]]'), reply.remark
    (line,) = stood.lines()[len(before) :]
    assert line.endswith(b'["lock","g","secret",0,99,"c"]')


@pytest.mark.parametrize("key", ["etl", "node", None])
@pytest.mark.parametrize("code", MERGES, ids=request_name)
def test_a_replica_takes_over_nothing(stood: Stood, code: int, key: str | None) -> None:
    """Whoever asks: what another replica kept is for the log, which has no master."""
    before = stood.lines()
    reply = ask(stood.replica.port, key, attempts(stood.target)[code])
    assert reply.code == (ResponseCode.NO_PERMISSION if key is None else NOT_MASTER), reply.remark
    assert stood.lines() == before

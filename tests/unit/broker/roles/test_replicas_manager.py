"""Talking to the controllers, and the file with a member's identity."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from broker.config import BrokerConfig, ReplicationConfig
from broker.roles import replicas_manager
from broker.roles.group_node import Action, EndRole, Event, FollowMaster, Lead, LogOpened, OpenLog, RoleEnded
from broker.roles.replicas_manager import FILE_NAME, IdentityFile, ReplicasManager, machine_boot
from broker.roles.steps import RoleChange
from controller.app import ControllerApp
from controller.config import ControllerConfig
from remoting.client.connection import dial
from remoting.protocol.bodies.controller_body import MasterHeader, to_fields
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from runtime.logs import get_logger

DEADLINE_S = 30.0


@dataclass
class Log:
    """The state of a log."""

    epoch: int = 0
    end: int = 0
    confirm: int = 0


class FakeMember:
    """A broker without a log: records the roles it is given."""

    def __init__(self, directory: Path, controllers: tuple[str, ...], port: int, **replication) -> None:
        self.config = BrokerConfig(
            data_directory=directory,
            controllers=controllers,
            replication=ReplicationConfig(
                enabled=True,
                heartbeat_interval_ms=50,
                heartbeat_timeout_ms=1_000,
                poll_interval_ms=100,
                **replication,
            ),
        )
        self.state = Log()
        self.roles: list[RoleChange] = []
        self.failures: list[Exception] = []
        self.error: Exception | None = None
        self.changed = asyncio.Event()
        self.manager = ReplicasManager(
            self.config,
            self,
            connect=dial,
            addresses=lambda: (f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"),
            failed=self.failures.append,
            log=get_logger("test"),
        )

    def log_state(self) -> Log:
        return self.state

    async def start(self) -> None:
        """Open the log and ask for a role, as a member does."""
        await self.manager.queue.start()
        self.manager.start()

    async def carry_out(self, action: Action) -> Event | None:
        if self.error is not None:
            raise self.error
        match action:
            case EndRole():
                return RoleEnded()
            case OpenLog(epoch):
                self.state.epoch = max(self.state.epoch, epoch or 0)
                return LogOpened()
            case Lead(view) | FollowMaster(view):
                self.roles.append(RoleChange(view, is_master=isinstance(action, Lead)))
                self.changed.set()
        return None

    async def until(self, condition) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                try:
                    await asyncio.wait_for(self.changed.wait(), 0.02)
                except TimeoutError:
                    continue


@asynccontextmanager
async def controller(directory: Path, port: int = 0) -> AsyncIterator[ControllerApp]:
    app = ControllerApp(ControllerConfig(data_directory=directory, port=port, liveness_scan_ms=50))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


async def test_the_first_is_master_the_next_follows_and_takes_over(tmp_path: Path) -> None:
    """Ids are given in turn and kept; when the master's process ends another one in sync is elected."""
    async with controller(tmp_path / "c") as app:
        address = (f"127.0.0.1:{app.port}",)
        one, two = FakeMember(tmp_path / "1", address, 1001), FakeMember(tmp_path / "2", address, 1003)
        with pytest.raises(ConnectionLost):
            await one.manager.group_size()
        await one.start()
        await one.until(lambda: bool(one.roles))
        await two.start()
        await two.until(lambda: bool(two.roles))
        assert await two.manager.group_size() == 2
        assert [(role.is_master, role.view.master) for role in (*one.roles, *two.roles)] == [(True, 1), (False, 1)]
        assert (two.roles[0].view.address, two.roles[0].view.ha_address) == ("127.0.0.1:1001", "127.0.0.1:1002")
        view = one.roles[0].view
        altered = (await one.manager.alter(view.epoch, frozenset({1, 2}), view.set_epoch)).view
        assert altered is not None
        assert (altered.members, altered.epoch) == (frozenset({1, 2}), view.epoch)
        assert altered.set_epoch > view.set_epoch
        refused = await two.manager.alter(view.epoch, frozenset({2}), altered.set_epoch)
        assert (refused.code, refused.view) == (ResponseCode.CONTROLLER_INVALID_MASTER, None)
        await two.until(lambda: two.manager.steps.view.set_epoch == altered.set_epoch)
        await one.manager.stop()
        await two.until(lambda: len(two.roles) > 1 and two.roles[-1].is_master)
        assert two.roles[-1].view.epoch > view.epoch
        assert two.manager.own.identity.epoch == two.roles[-1].view.epoch
        again = FakeMember(tmp_path / "1", address, 1001)
        assert (again.manager.steps.broker_id, again.manager.own.identity.clean) == (1, False)
        await again.start()
        await again.until(lambda: bool(again.roles))
        assert not again.roles[-1].is_master
        assert again.roles[-1].view.master == 2
        await again.manager.stop()
        await two.manager.stop()


async def test_a_broker_ends_that_cannot_write_down_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It would ask nothing any more, and look alive."""
    full = OSError(28, "No space left on device")

    def fails(_path: Path, _data: bytes) -> None:
        raise full

    async with controller(tmp_path / "c") as app:
        one = FakeMember(tmp_path / "1", (f"127.0.0.1:{app.port}",), 1001)
        await one.start()
        await one.until(lambda: bool(one.roles))
        with monkeypatch.context() as broken:
            broken.setattr(replicas_manager, "atomic_replace", fails)
            two = FakeMember(tmp_path / "2", (f"127.0.0.1:{app.port}",), 1003)
            await two.start()
            await two.until(lambda: bool(two.failures))
            assert two.failures == [full]
            header = MasterHeader(one.manager.steps.epoch + 1, 1, 2, "h:1", "h:2")
            with pytest.raises(OSError, match="No space"):
                one.manager.pushed(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields=to_fields(header)))
            assert one.failures == [full]
        await two.manager.stop()
        await one.manager.stop()


async def test_a_set_that_is_decided_after_a_loss_is_nobodys(tmp_path: Path) -> None:
    """A master found damage while its proposal was under way: it has no view any more that the set could be part of."""
    async with controller(tmp_path / "c") as app:
        one = FakeMember(tmp_path / "1", (f"127.0.0.1:{app.port}",), 1001)
        await one.start()
        await one.until(lambda: bool(one.roles))
        view = one.roles[0].view
        asked = asyncio.create_task(one.manager.alter(view.epoch, frozenset({1}), view.set_epoch))
        await asyncio.sleep(0)  # the request is on its way
        one.manager.lost_something()
        answer = await asked
        assert (answer.code, answer.view) == (None, None)
        assert "lost something" in answer.remark
        await one.until(lambda: len(one.roles) > 1)
        assert one.roles[-1].view.epoch > view.epoch
        await one.manager.stop()


async def test_a_master_that_restarts_is_elected_anew(tmp_path: Path) -> None:
    """A clean stop is remembered; the epoch is a new one."""
    async with controller(tmp_path / "c") as app:
        address = (f"127.0.0.1:{app.port}",)
        one = FakeMember(tmp_path / "1", address, 1001)
        await one.start()
        await one.until(lambda: bool(one.roles))
        await one.manager.stop()
        one.manager.stopped_clean()
        again = FakeMember(tmp_path / "1", address, 1001)
        assert again.manager.own.was_clean
        await again.start()
        await again.until(lambda: bool(again.roles) and again.roles[-1].is_master)
        assert again.roles[-1].view.epoch > one.roles[-1].view.epoch
        assert not again.manager.own.identity.clean
        await again.manager.stop()


async def test_without_controllers_the_role_stays_and_then_continues(tmp_path: Path) -> None:
    """The controller is away and returns with what it knew."""
    async with controller(tmp_path / "c") as app:
        port = app.port
        one = FakeMember(tmp_path / "1", (f"127.0.0.1:{port}",), 1001)
        await one.start()
        await one.until(lambda: bool(one.roles))
    await one.until(lambda: one.manager.controllers.reachable == 0)
    assert len(one.roles) == 1
    async with controller(tmp_path / "c", port):
        await one.until(lambda: one.manager.controllers.leader != "" and one.manager.steps.may_beat)
        await one.until(lambda: one.roles[-1].is_master)
        await one.manager.stop()


async def test_a_killed_process_lost_nothing_unless_the_machine_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the machine is recorded with the registration; so is how the log was flushed."""
    boots = iter(["m1", "m1", "m2", "m2", "m2"])
    monkeypatch.setattr(replicas_manager, "machine_boot", lambda: next(boots))
    async with controller(tmp_path / "c") as app:
        address, found = (f"127.0.0.1:{app.port}",), []
        for registers in (True, True, False, True, False):
            one = FakeMember(tmp_path / "1", address, 1001)
            found.append(
                (one.manager.own.was_clean, one.manager.own.identity.machine_boot, one.manager.own.identity.flush)
            )
            if registers:
                await one.start()
                await one.until(lambda one=one: bool(one.roles))
                await one.manager.stop()
    assert found == [
        (False, "", ""),
        (True, "m1", "sync"),
        (False, "m1", "sync"),
        (False, "m1", "sync"),
        (True, "m2", "sync"),
    ]


def test_what_a_process_flushed_is_judged_by_its_own_setting(tmp_path: Path) -> None:
    """Not by that of the next one."""
    one = FakeMember(tmp_path / "1", ("127.0.0.1:1",), 1001)
    assert one.manager.own.was_flushed
    one.manager.own.save(flush="async")
    assert not FakeMember(tmp_path / "1", ("127.0.0.1:1",), 1001).manager.own.was_flushed


async def test_a_push_over_any_connection_is_a_role(tmp_path: Path) -> None:
    """Of its own group; the newest one counts, and one that fails ends the broker."""
    one = FakeMember(tmp_path / "1", ("127.0.0.1:1",), 1001)
    one.manager.steps.broker_id, one.manager.steps.is_applied = 1, True
    await one.start()

    def push(epoch: int, master: int, group: str | None = None) -> None:
        header = MasterHeader(epoch, 1, master, "h:1", "h:2", broker_name=group)
        one.manager.pushed(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields=to_fields(header)))

    push(2, 1)
    assert one.manager.steps.view is None, "they do not know yet what its log has lost"
    one.manager.steps.registered(0)
    push(3, 2)
    push(4, 1)
    push(9, 2, "another")
    one.manager.pushed(Command(RequestCode.NOTIFY))
    await one.until(lambda: bool(one.roles) and one.roles[-1].is_master)
    assert one.roles[-1].view.epoch == 4
    one.error = LocalMisuse("the log cannot be opened")
    push(5, 2)
    await one.until(lambda: bool(one.failures))
    assert one.manager.own.identity.epoch == 5
    await one.manager.stop()


async def test_a_learner_never_asks_to_be_master(tmp_path: Path) -> None:
    """It waits for another broker to be elected."""
    async with controller(tmp_path / "c") as app:
        address = (f"127.0.0.1:{app.port}",)
        learner = FakeMember(tmp_path / "1", address, 1001, learner=True)
        await learner.start()
        await learner.until(lambda: learner.manager.steps.may_beat)
        one = FakeMember(tmp_path / "2", address, 1003)
        await one.start()
        await learner.until(lambda: bool(learner.roles))
        assert not learner.roles[0].is_master
        await learner.manager.stop()
        await one.manager.stop()


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """And a new one has a check code of its own."""
    file = IdentityFile(tmp_path / "data")
    new = file.load("C", "g")
    assert (new.broker_id, new.is_applied, new.epoch, new.clean, len(new.check_code)) == (None, False, 0, False, 32)
    assert file.load("C", "g").check_code != new.check_code
    known = msgspec.structs.replace(new, broker_id=7, is_applied=True, epoch=12, clean=True)
    file.save(known)
    assert file.load("C", "g") == known
    assert IdentityFile(tmp_path / "data").load("C", "g") == known


@pytest.mark.parametrize(("cluster", "group"), [("D", "g"), ("C", "h")])
def test_the_data_of_another_group_is_refused(tmp_path: Path, cluster: str, group: str) -> None:
    """The remark names its group."""
    file = IdentityFile(tmp_path)
    file.save(file.load("C", "g"))
    with pytest.raises(LocalMisuse, match="belongs to broker None of C/g"):
        file.load(cluster, group)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.95])
def test_a_damaged_file_is_refused(tmp_path: Path, at: float) -> None:
    """Whichever byte it is; nothing is guessed."""
    file = IdentityFile(tmp_path)
    file.save(msgspec.structs.replace(file.load("C", "g"), broker_id=1, is_applied=True))
    data = bytearray((tmp_path / FILE_NAME).read_bytes())
    data[int(len(data) * at)] ^= 1
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(LocalMisuse, match="GROUP"):
        file.load("C", "g")
    (tmp_path / FILE_NAME).write_bytes(b"")
    with pytest.raises(LocalMisuse, match="GROUP"):
        file.load("C", "g")


def test_the_boot_id_is_stable(tmp_path: Path) -> None:
    """Read twice; where the kernel has none it is empty."""
    source = tmp_path / "boot_id"
    assert machine_boot(source) == ""
    source.write_text("5c1a\n")
    assert machine_boot(source) == "5c1a"
    assert machine_boot() == machine_boot()

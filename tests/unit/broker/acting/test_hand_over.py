"""The way of what was kept to the next master: everything, to where the master is at that moment, and once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from broker.acting import hand_over as module
from broker.acting.hand_over import HandOver
from broker.acting.journal import FILE_NAME, ActingJournal
from broker.acting.kinds import OFFSETS
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from runtime.logs import get_logger
from tests.unit.broker.roles.cluster import until

KEY = ("g", "t", 0)


class Masters:
    """Where the master is, and what each broker answers; those without an answer cannot be reached."""

    def __init__(self) -> None:
        self.address = ""
        self.answers: dict[str, int] = {}
        self.asked: list[tuple[str, int, list[object]]] = []

    async def dial(self, address: str) -> Masters:
        if address not in self.answers:
            raise ConnectionRefusedError(address)
        return self

    async def request(self, command: Command, _timeout_ms: int) -> Command:
        self.asked.append((self.address, command.code, msgspec.json.decode(command.body)))
        return command.reply(self.answers[self.address], "")

    async def close(self) -> None:
        return


@pytest.fixture
def journal(tmp_path: Path) -> ActingJournal:
    return ActingJournal(tmp_path, get_logger("test"))


async def kept(journal: ActingJournal, offset: int) -> None:
    done = asyncio.Event()
    journal.add(OFFSETS, KEY, (offset,), lambda _error: done.set())
    await done.wait()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)


async def test_each_attempt_asks_where_the_master_is(journal: ActingJournal, tmp_path: Path) -> None:
    """It may have moved, in the same epoch too; what was not answered stays in the journal."""
    masters = Masters()
    handing = HandOver(journal, lambda: masters.address, masters.dial, get_logger("test"))
    handing.start()
    await kept(journal, 7)
    masters.address = "gone:1"
    await asyncio.sleep(0)
    masters.answers = {"other:2": ResponseCode.NOT_MASTER}
    masters.address = "other:2"
    await until(lambda: masters.asked)
    assert journal.of(OFFSETS) == {KEY: (7,)}
    masters.answers["new:3"] = ResponseCode.SUCCESS
    masters.address = "new:3"
    await until(lambda: not len(journal))
    assert masters.asked[-1] == ("new:3", RequestCode.MERGE_OFFSETS, [["g", "t", 0, 7]])
    assert not (tmp_path / FILE_NAME).exists()
    await kept(journal, 8)
    await until(lambda: not len(journal))
    assert masters.asked[-1][2] == [["g", "t", 0, 8]], "what comes later goes the same way"
    await handing.stop()


async def test_a_log_that_does_not_take_it_is_asked_again(journal: ActingJournal) -> None:
    """By this broker as the new master."""
    taken: list[bytes] = []

    class Log:
        def when_confirmed(self, position: int, done) -> None:
            assert position == 5
            done(None)

    def take(body: bytes) -> int:
        taken.append(body)
        if len(taken) < 2:
            raise Refused(ResponseCode.SYSTEM_BUSY, "not yet")
        return 5

    await kept(journal, 7)
    handing = HandOver(journal, lambda: "", Masters().dial, get_logger("test"))
    handing.merge_into(Log(), {RequestCode.MERGE_OFFSETS: take})
    await until(lambda: not len(journal))
    assert taken == [b'[["g","t",0,7]]'] * 2
    await handing.stop()

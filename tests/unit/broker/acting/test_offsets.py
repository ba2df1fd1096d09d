"""Offsets while a replica stands in: kept once, where there is room, and only what the next master will take over."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.acting import journal as journal_module
from broker.acting.given import GivenMessages
from broker.acting.journal import ActingJournal
from broker.acting.kinds import OFFSETS
from broker.acting.offsets import ActingOffsets
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from runtime.logs import get_logger
from tests.unit.broker.acting.test_locks import Peer
from tests.unit.broker.pop.client import GROUP, TOPIC, pop, send
from tests.unit.broker.roles.cluster import until

KEY = ("g", "t", 0)


async def test_an_offset_that_does_not_grow_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = ActingJournal(tmp_path, get_logger("test"))
    offsets = ActingOffsets(journal, GivenMessages(journal), lambda: None, Authorizer())
    assert offsets.keep(KEY, 7)
    await until(lambda: journal.of(OFFSETS) == {KEY: (7,)})
    size = (tmp_path / "ACTING").stat().st_size
    assert offsets.keep(KEY, 7)
    assert offsets.keep(KEY, 5)
    assert journal.get(OFFSETS, KEY) == (7,)
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 1)
    assert not offsets.keep(("g", "t", 1), 1), "the journal is full"
    assert (tmp_path / "ACTING").stat().st_size == size


async def test_what_the_next_master_would_not_take_is_refused(running, tmp_path: Path) -> None:
    """The offset of a group that pops is that of the next message to give: a commit would pass messages over."""
    await send(running.connect(), b"1", b"2", queue=0)
    assert len(await pop(running.connect(), maxMsgNums=1)) == 1
    journal, store = ActingJournal(tmp_path, get_logger("test")), running.store
    given, peer = GivenMessages(journal), Peer()
    offsets = ActingOffsets(journal, given, lambda: store, Authorizer())

    given.give(("began here", TOPIC, 0), [(0, 0)], (1, 1), front=1, passed=1)

    def commit(group: str, topic: str, index: int) -> None:
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(index), "commitOffset": "2"}
        offsets.commit(peer, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))

    for code, wanted in (
        (ResponseCode.ILLEGAL_OPERATION, (GROUP, TOPIC, 0)),
        (ResponseCode.ILLEGAL_OPERATION, ("began here", TOPIC, 1)),
        (ResponseCode.TOPIC_NOT_EXIST, ("puller", TOPIC, 99)),
        (ResponseCode.TOPIC_NOT_EXIST, ("puller", "none", 0)),
    ):
        with pytest.raises(Refused) as refused:
            commit(*wanted)
        assert refused.value.code == code
    commit("puller", TOPIC, 0)
    await until(lambda: peer.answers)
    assert journal.of(OFFSETS) == {("puller", TOPIC, 0): (2,)}
    store = None
    with pytest.raises(Refused) as refused:
        commit("puller", TOPIC, 0)
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE

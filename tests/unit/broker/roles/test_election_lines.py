"""Whom a member asks and answers; what they say is in the tests of the manager and of processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.config import BrokerConfig, ReplicationConfig
from broker.roles.election import ElectionCall
from broker.roles.election_lines import ElectionLines
from broker.roles.election_members import GroupMembers
from remoting.client.connection import dial
from remoting.protocol.bodies.election_body import QuestionKind, Reply
from runtime.logs import get_logger
from tests.support.ports import free_port


async def test_a_member_that_cannot_be_reached_is_not_asked(tmp_path: Path) -> None:
    members = ("n1@127.0.0.1:10911", f"n2@127.0.0.1:{free_port()}")
    config = BrokerConfig(
        data_directory=tmp_path, port=10_911,
        replication=ReplicationConfig(enabled=True, mode="dledger", members=members),
    )  # fmt: skip
    answers: list[Reply] = []
    lines = ElectionLines(
        config, GroupMembers.of(config), dial, get_logger("test"),
        answered=lambda _name, _kind, _call, reply: answers.append(reply), lost=lambda _name: None,
    )  # fmt: skip
    lines.start()
    lines.ask(QuestionKind.VOTE, ElectionCall(1), (0, 0), ("h:1", "h:2"))
    await asyncio.sleep(0)
    assert lines.reaches("n1")
    assert not lines.reaches("n2")
    await lines.close()
    assert answers == []

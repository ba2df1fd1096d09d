"""Outcomes taken elsewhere: carried out once, whatever the order, the repetition and the restarts between."""

from __future__ import annotations

import random

import msgspec
import pytest

from broker.requests import merged_items
from broker.transactions.merging import Item
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.transactions.test_feature import GROUP, ROLL_BACK, ending, prepare, stored


def item(sent: Command, outcome: str = "C", group: str = GROUP) -> Item:
    """What an acting replica kept of a producer's decision."""
    return int(sent.fields["queueOffset"]), int(sent.fields["msgId"][16:], 16), group, outcome


async def merge(running, *items: Item) -> Command:
    command = Command(RequestCode.MERGE_TRANSACTIONS, body=msgspec.json.encode(items))
    return await running.connect().request(command)


async def test_a_commit_makes_the_message_visible_once(running) -> None:
    connection = running.connect()
    sent = await prepare(connection)
    for _ in range(2):
        assert (await merge(running, item(sent))).code == ResponseCode.SUCCESS
        assert [message.body for message in await stored(connection)] == [b"paid"]
    assert running.store.confirm_position == running.store.end_position, "it is confirmed"
    assert (await connection.request(ending(sent, ROLL_BACK))).code == ResponseCode.TRANSACTION_FAILED


async def test_what_is_decided_in_the_log_stays(running) -> None:
    connection = running.connect()
    sent, other = await prepare(connection), await prepare(connection)
    assert (await connection.request(ending(sent, ROLL_BACK))).code == ResponseCode.SUCCESS
    assert (await merge(running, item(sent), item(other))).code == ResponseCode.SUCCESS
    assert len(await stored(connection)) == 1, "the other one is carried out all the same"
    assert running.broker.tools.metrics.dropped.child("outcome_not_merged").value == 1


async def test_what_names_nothing_that_is_pending_is_left_out(running) -> None:
    connection = running.connect()
    sent = await prepare(connection)
    offset, position, _group, _outcome = item(sent)
    strange = (offset, position + 8, GROUP, "C"), (offset + 7, position, GROUP, "C"), (-1, 0, GROUP, "R")
    assert (await merge(running, item(sent, group="thieves"), *strange)).code == ResponseCode.SUCCESS
    assert running.broker.tools.metrics.dropped.child("outcome_not_merged").value == 4
    assert running.broker.transactions.status() == {"transactions": 1}


async def test_a_master_that_does_not_know_all_yet_is_asked_again(running) -> None:
    connection = running.connect()
    sent = await prepare(connection)
    identity, started = running.broker.tools.identity, running.broker.tools.identity.started_position
    identity.started_position = running.store.end_position + 1
    assert (await merge(running, item(sent))).code == ResponseCode.SYSTEM_BUSY
    identity.started_position = started
    assert (await merge(running, item(sent))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_and_repetition_ends_alike(running, seed: int) -> None:
    """Also when a broker dies between two parts of it."""
    chance = random.Random(seed)
    connection = running.connect()
    kept = [item(await prepare(connection), chance.choice("CR")) for _ in range(8)]
    told = kept + chance.choices(kept, k=6)
    chance.shuffle(told)
    while told:
        part, told = told[:3], told[3:]
        assert (await merge(running, *part)).code == ResponseCode.SUCCESS
        if chance.random() < 0.4:
            await running.restart()
    committed = [outcome for *_names, outcome in kept].count("C")
    assert len(await stored(running.connect())) == committed
    assert running.broker.transactions.status() == {"transactions": 0}
    assert running.broker.tools.metrics.dropped.child("outcome_not_merged").value == 0


@pytest.mark.parametrize("body", [b"", b"{}", b'[[0,0,"g"]]', b'[[0,0,"g","X"]]', b'[["0",0,"g","C"]]'])
def test_malformed_bodies_are_named(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        merged_items(body, Item)

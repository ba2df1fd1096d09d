"""Lag and comparison: what is equal, what differs, what is missing."""

from __future__ import annotations

from typing import Any

from broker.migration.followers import FollowerReport, StandingQueue
from lightmq.migrate.migration import Migration
from lightmq.migrate.report import NOT_FOLLOWED, lags, verified
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.stored_message import encode_stored


async def test_the_lag_of_each_queue(sides: Any, migration: Migration) -> None:
    old, _new = sides
    await old.topic("orders", 2)
    await old.send("orders", 1, b"0", b"1")
    await migration.read()
    first = await lags(migration)
    assert [(row["source"], row["lag"], row["state"]) for row in first] == [
        ("old/0", 0, "up to date"), ("old/1", 2, "behind"),
    ]  # fmt: skip
    await migration.copy_to_the_end()
    await old.send("orders", 1, b"2")
    assert [(row["copied"], row["lag"]) for row in await lags(migration)] == [(0, 0), (2, 1)]


async def test_copies_are_compared_with_their_originals(sides: Any, migration: Migration) -> None:
    old, new = sides
    await old.topic("orders", 1)
    await old.send("orders", 0, *[b"%d" % number for number in range(70)])
    await migration.copy_to_the_end()
    (row,) = await verified(migration)
    assert (row["state"], row["compared"]) == ("equal", 70)
    await old.send("orders", 0, b"mine")
    changed = (await old.messages("orders", 0))[-1]
    changed.body = b"yours"
    await new.ask(
        RequestCode.COPY_MESSAGES, encode_stored(changed), topic="orders", queueId=0, source="rmq/old/0", expected=70
    )
    (changed_row,) = await verified(migration)
    assert changed_row["state"] == "source offset 70 differs here"
    assert changed_row["digest"] == row["digest"]


async def test_why_a_queue_stands_still_is_what_the_migration_told(sides: Any, migration: Migration) -> None:
    old, _new = sides
    await old.topic("orders", 2)
    await migration.read()
    assert {row["reason"] for row in await lags(migration)} == {NOT_FOLLOWED}
    await migration.target.tell(
        "new", "rmq", FollowerReport("no name server", [StandingQueue("orders", "rmq/old/1", "full", 5)])
    )
    assert [row["reason"] for row in await lags(migration)] == ["no name server", "full"]
    await migration.target.tell("new", "rmq", FollowerReport())
    assert {row["reason"] for row in await lags(migration)} == {""}

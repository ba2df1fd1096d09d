"""A migration that stands still says why, and goes on by itself: a full disk here, a message that is refused here.

`small_disk` is a real file system, filled to its last byte while the migration follows a source that is sent to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.processes.migrations import GROUP, QUEUES, TOPIC, Migrator, Producer, all_of, make_topic, send
from tests.processes.rig import Installation, no_traceback
from tests.processes.test_full_disk import A_FLOOR, MIB, NO_FLOOR

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

DEADLINE_S = 60
SMALL_LOG_FILES = f"--set=broker.store.segment_size_bytes={2 * MIB}"
"""Their room is taken in advance: one without a floor finds out when it needs the next file."""


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Installation]:
    """The source."""
    server = Installation(tmp_path / "old")
    try:
        server.start()
        make_topic(server.address)
        yield server
        no_traceback(server)
    finally:
        server.kill_if_running()


@pytest.fixture
def migrators() -> Iterator[list[Migrator]]:
    """What is to be killed at the end."""
    begun: list[Migrator] = []
    yield begun
    for one in begun:
        one.kill()


def rows_when(migrator: Migrator, what: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The rows of the topic in `status`, as soon as they are like this."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        rows = [row for row in migrator.run("status", "--json") if row.get("topic") == TOPIC]
        if what(rows):
            return rows
        assert time.monotonic() < deadline, rows


def fill(path: Path) -> None:
    """Take what is left of the file system."""
    with path.open("ab", buffering=0) as stream:
        for size in (MIB, 4096, 1):
            with suppress(OSError):
                while stream.write(bytes(size)):
                    pass


@pytest.mark.parametrize(
    "options", [A_FLOOR, pytest.param(NO_FLOOR, marks=pytest.mark.slow)], ids=["floor", "no-floor"]
)
def test_a_full_disk_here_is_named_and_nothing_is_lost(
    old: Installation, migrators: list[Migrator], small_disk: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    new = Installation(small_disk / "data", SMALL_LOG_FILES, *options)
    new.log = tmp_path / "new.log"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(30 * MIB))
    migrator = Migrator(old.address, "", tmp_path / "migrate.log")
    producer = Producer(old.address, per_second=300)
    try:
        new.start()
        migrator = Migrator(old.address, new.address, tmp_path / "migrate.log")
        migrators.append(migrator)
        assert {row["reason"] for row in rows_when(migrator, bool)} == {"no migration follows"}
        producer.start()
        migrator.start()
        producer.flowing()
        rows_when(migrator, lambda rows: {row["reason"] for row in rows} == {""})
        fill(filler)
        full = rows_when(migrator, lambda rows: bool(rows) and all("disk full" in row["reason"] for row in rows))
        producer.flowing()
        migrator.kill()  # one that begins beside a full disk says the same
        migrator.start()
        later = rows_when(migrator, lambda rows: bool(rows) and all("disk full" in row["reason"] for row in rows))
        assert sum(row["lag"] for row in later) > sum(row["lag"] for row in full)
        filler.unlink()
        producer.finish()
        migrator.until_copied()
        rows_when(migrator, lambda rows: {(row["state"], row["reason"]) for row in rows} == {("up to date", "")})
        assert {row["state"] for row in migrator.run("verify", "--json")} == {"equal"}
        for queue in range(QUEUES):
            assert all_of(new.address, queue) == all_of(old.address, queue)
            assert set(all_of(old.address, queue)) >= {one for one in producer.answered if one % QUEUES == queue}
        migrator.until_offsets_agree()
        no_traceback(new)
    finally:
        producer.stopped.set()
        migrator.kill()
        new.kill_if_running()


def test_a_message_that_is_refused_here_is_named_and_other_queues_get_on(
    old: Installation, migrators: list[Migrator], tmp_path: Path
) -> None:
    new = Installation(tmp_path / "new", "--set=broker.limits.message_size_bytes_max=2048")
    try:
        new.start()
        migrator = Migrator(old.address, new.address, tmp_path / "migrate.log")
        migrators.append(migrator)
        fields = {"b": TOPIC, "e": "1", "producerGroup": GROUP}
        with BlockingConnection.dial(old.address) as connection:
            large = Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=bytes(4096))
            checked(connection.request(large))
        for number in range(QUEUES):
            checked(send(old.address, number))
        migrator.start()
        wanted = [(0, False), (2, True), (0, False), (0, False)]
        rows_when(migrator, lambda rows: [(row["lag"], "4096 bytes" in row["reason"]) for row in rows] == wanted)
        migrator.kill()
        rows_when(migrator, lambda rows: {row["reason"] for row in rows} == {"no migration follows"})
        no_traceback(new)
    finally:
        new.kill_if_running()

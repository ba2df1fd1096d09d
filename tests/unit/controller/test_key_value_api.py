"""Codes 100, 101, 102 and 219."""

from __future__ import annotations

import asyncio
import threading

import pytest

from controller.api import number, text, truth
from remoting.protocol.bodies.controller_body import KeyValueTable, decode_body
from remoting.protocol.errors import Refused
from remoting.protocol.frames.commands import Command


async def test_entries_are_on_disk_when_they_are_acknowledged(world, another):
    assert (await world.ask(100, namespace="N", key="k", value="v")).code == 0
    assert another().name_server.metadata.key_values == {"N": {"k": "v"}}
    assert (await world.ask(101, namespace="N", key="k")).fields == {"value": "v"}
    table = decode_body((await world.ask(219, namespace="N")).body, KeyValueTable)
    assert table.table == {"k": "v"}
    assert (await world.ask(102, namespace="N", key="k")).code == 0
    assert another().name_server.metadata.key_values == {}


@pytest.mark.parametrize("is_deletion", [False, True])
async def test_nothing_is_shown_that_a_crash_could_undo(world, monkeypatch, is_deletion):
    assert (await world.ask(100, namespace="N", key="k", value="old")).code == 0
    written, save = threading.Event(), world.file.save
    monkeypatch.setattr(world.file, "save", lambda data: (written.wait(60), save(data)))
    change = {"namespace": "N", "key": "k"} | ({} if is_deletion else {"value": "new"})
    asked = [asyncio.create_task(world.ask(102 if is_deletion else 100, **change))]
    while world.name_server.metadata.key_values == {"N": {"k": "old"}}:
        await asyncio.sleep(0)
    asked += [asyncio.create_task(world.ask(101, namespace="N", key="k"))]
    asked += [asyncio.create_task(world.ask(219, namespace="N"))]
    for _ in range(100):  # far more turns of the loop than an answer takes
        await asyncio.sleep(0)
    told = [task.done() for task in asked]
    written.set()
    assert not any(told)
    _, entry, table = await asyncio.gather(*asked)
    if is_deletion:
        assert (entry.code, table.code) == (22, 22)
    else:
        assert entry.fields == {"value": "new"}
        assert decode_body(table.body, KeyValueTable).table == {"k": "new"}
    assert (await world.ask(101, namespace="N", key="k")).code == entry.code


async def test_what_is_absent_and_what_is_missing(world):
    absent = await world.ask(101, namespace="N", key="k")
    assert (absent.code, absent.remark) == (22, "No config item, Namespace: N Key: k")
    assert (await world.ask(219, namespace="N")).code == 22
    missing = await world.ask(100, namespace="N")
    assert (missing.code, "'key'" in missing.remark) == (29, True)


COMMAND = Command(
    103, fields={"a": "x", "n": "-12", "yes": "TRUE", "one": "1", "no": "false", "empty": "", "u": "\u0661"}
)


def test_values():
    assert text(COMMAND, "a") == "x"
    assert number(COMMAND, "n") == -12
    assert number(COMMAND, "missing", 7) == number(COMMAND, "empty", 7) == 7
    assert [truth(COMMAND, name) for name in ("yes", "one", "no", "missing")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("read", "name"), [(text, "missing"), (text, "empty"), (number, "missing"), (number, "a"), (number, "u")]
)
def test_refusals_name_the_field(read, name):
    with pytest.raises(Refused, match=name) as caught:
        read(COMMAND, name)
    assert caught.value.code == 29


def test_a_meaningless_number():
    with pytest.raises(Refused):
        number(Command(1, fields={"n": "9" * 5_000}), "n")

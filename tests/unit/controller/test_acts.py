"""What operators do at a controller is in its record, once, on the disk before it is answered, and for a time."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller import acts as module
from controller.app import ControllerApp
from controller.config import ControllerConfig
from remoting import inprocess
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import Router
from runtime.metrics import Registry
from tests.support.clock import ManualClock

DAY_MS = 86_400_000


class Site:
    """A controller that is started, stopped and started again over one directory."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.config = ControllerConfig(port=0, data_directory=directory, audit_retention_ms=DAY_MS)

    @property
    def file(self) -> Path:
        return self.config.data_directory / module.FILE

    async def start(self) -> None:
        self.registry = Registry()
        self.app = ControllerApp(self.config, clock=self.clock, registry=self.registry)
        await self.app.start()
        self.connection = inprocess.connect(Router(self.app.handlers))

    async def restart(self) -> None:
        await self.app.stop()
        await self.start()

    async def ask(self, code: int, **fields: str) -> Command:
        return await self.connection.request(Command(code, fields=fields), 5_000)

    async def put(self, *keys: str) -> None:
        for key in keys:
            assert (await self.ask(Code.PUT_KV_CONFIG, namespace="n", key=key, value="hunter2")).code == 0

    async def listed(self, **fields: str) -> list[dict[str, Any]]:
        """The records over all pages."""
        found: list[dict[str, Any]] = []
        while True:
            page = fastjson.loads((await self.ask(Code.AUDIT_LIST, **fields)).body)
            found += page["records"]
            if not page["next"]:
                return found
            fields["before"] = page["next"]

    async def keys(self, **fields: str) -> list[str]:
        return [record["target"].rpartition("key=")[2] for record in await self.listed(**fields)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path / "controller")
    await made.start()
    yield made
    await made.app.stop()


async def test_an_act_is_recorded_with_who_what_and_outcome(site: Site) -> None:
    refused = await site.ask(Code.CLEAN_BROKER_DATA, brokerName="g", brokerControllerIdsToClean="7", road="lightmq")
    assert refused.code
    await site.put("colour")
    done, clean = await site.listed()
    assert done == {
        "id": "1", "time_ms": site.clock.now_ms(), "who": "anonymous", "role": "", "address": "in-process",
        "act": "PUT_KV_CONFIG", "target": "namespace=n key=colour", "outcome": "done", "road": "remoting-python",
    }  # fmt: skip
    assert (clean["act"], clean["target"], clean["road"]) == (
        "CLEAN_BROKER_DATA", "brokerName=g brokerControllerIdsToClean=7", "lightmq",
    )  # fmt: skip
    assert clean["outcome"].startswith(f"refused: {refused.code}")
    assert "hunter2" not in site.file.read_text()
    assert site.registry.values()["rocketmq_audit_acts_total{done}"] == 1


async def test_an_election_is_an_act_where_an_operator_asks_for_it(site: Site) -> None:
    identity = {"clusterName": "C", "brokerName": "g"}
    await site.ask(Code.CONTROLLER_ELECT_MASTER, **identity, brokerId="1", designateElect="false")
    assert await site.listed() == []
    await site.ask(Code.CONTROLLER_ELECT_MASTER, **identity, brokerId="2", designateElect="true")
    await site.ask(Code.CONTROLLER_ELECT_MASTER, **identity)
    assert [record["target"] for record in await site.listed()] == [
        "brokerName=g clusterName=C", "brokerName=g brokerId=2 clusterName=C",
    ]  # fmt: skip


async def test_records_survive_a_restart_and_a_torn_line(site: Site) -> None:
    await site.put("a", "b")
    await site.app.stop()
    with site.file.open("ab") as file:
        file.write(b'{"time_ms":1,"who":"x')
    await site.start()
    await site.put("c")
    await site.restart()
    assert await site.keys(limit="2") == ["c", "b", "a"]
    assert [record["id"] for record in await site.listed()] == ["2", "1", "0"]


async def test_a_damaged_line_costs_its_act_alone(site: Site) -> None:
    await site.put("a", "b")
    await site.app.stop()
    first, second = site.file.read_bytes().splitlines(keepends=True)
    site.file.write_bytes(b"#" * (len(first) - 1) + b"\n" + second)
    await site.start()
    assert await site.keys() == ["b"]


async def test_a_span_of_time_and_the_retention(site: Site) -> None:
    times = []
    for key in "abc":
        site.clock.advance_ms(1_000)
        times.append(str(site.clock.now_ms()))
        await site.put(key)
    assert await site.keys(from_ms=times[1], until_ms=times[1]) == ["b"]
    site.clock.advance_ms(DAY_MS - 1_000)
    assert await site.keys() == ["c", "b"]


async def test_the_file_is_written_anew_when_it_has_grown(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_MAX", 3)
    await site.restart()
    await site.put(*"abcdefgh")
    assert len(site.file.read_bytes().splitlines()) <= 6
    await site.restart()
    assert await site.keys() == ["h", "g", "f"]
    await site.put("i")
    assert (await site.listed())[0]["id"] == "8"


async def test_a_full_disk_does_not_keep_an_act_from_its_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "_append", full)
    await site.put("a")
    assert site.registry.values()["rocketmq_audit_unrecorded_total{store}"] == 1


async def test_refused_acts_cannot_fill_the_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSED_PER_MINUTE_MAX", 2)
    await site.restart()
    for number in range(4):
        await site.ask(Code.CLEAN_BROKER_DATA, brokerName=f"g{number}")
    assert [record["target"] for record in await site.listed()] == ["brokerName=g1", "brokerName=g0"]
    assert site.registry.values()["rocketmq_audit_unrecorded_total{refused_too_often}"] == 2


async def test_a_page_has_a_size(site: Site) -> None:
    assert (await site.ask(Code.AUDIT_LIST, limit="0")).code == ResponseCode.INVALID_PARAMETER

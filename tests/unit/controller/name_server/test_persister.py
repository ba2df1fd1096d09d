"""Changes reach the disk soon, together, and who waits knows when."""

from __future__ import annotations

import asyncio
import json

import pytest

from controller.name_server.changes import PutKeyValue
from controller.name_server.metadata_file import MetadataFile, Persister
from controller.name_server.state import MetadataState
from remoting.protocol.errors import Refused


def stored(file):
    return json.loads(file.path.read_bytes())["metadata"]["key_values"]


async def test_durable_means_on_disk_and_changes_share_a_write(tmp_path):
    state, file = MetadataState(), MetadataFile(tmp_path)
    persister = Persister(state, file, 0)
    await persister.start()
    await persister.durable()
    assert not file.path.exists()
    for number in range(20):
        state.apply(PutKeyValue("n", f"k{number}", "v"))
        persister.changed()
    await asyncio.gather(*(persister.durable() for _ in range(3)))
    assert len(stored(file)["n"]) == 20
    assert persister.writes == 1
    await persister.stop()
    await persister.stop()


async def test_the_stop_writes_what_is_left(tmp_path):
    state, file = MetadataState(), MetadataFile(tmp_path)
    persister = Persister(state, file, 60_000)
    await persister.start()
    state.apply(PutKeyValue("n", "a", "1"))
    await persister.durable()
    state.apply(PutKeyValue("n", "b", "2"))
    persister.changed()
    await persister.stop()
    assert stored(file) == {"n": {"a": "1", "b": "2"}}


async def test_a_full_disk_is_told_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.name_server.metadata_file.RETRY_SECONDS", 0.01)
    state = MetadataState()
    folder = tmp_path / "later"
    persister = Persister(state, MetadataFile(folder), 0)
    await persister.start()
    state.apply(PutKeyValue("n", "a", "1"))
    with pytest.raises(Refused, match="not on disk yet"):
        await persister.durable()
    assert persister.failures >= 1
    folder.mkdir()
    while not persister.writes:
        await asyncio.sleep(0.005)
    await persister.durable()
    assert stored(MetadataFile(folder)) == {"n": {"a": "1"}}
    await persister.stop()

"""Whatever a server writes below its data directories is readable by its owner only, under any umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Client, Server


def loose(directory: Path) -> Iterator[str]:
    """Files that others than the owner may access."""
    for path in (directory, *directory.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077:
            yield f"{path.relative_to(directory.parent)} {mode:o}"


def test_everything_in_one_process(tmp_path: Path) -> None:
    previous = os.umask(0)
    server = Server(tmp_path / "data")
    try:
        server.start()
        client = Client(server, "device", clean=False)
        client.subscribe(("plant/#", 1))
        client.publish("plant/1", b"x", retain=True)
        client.close()
        assert (tmp_path / "data" / "controller" / "consensus").is_dir()
        assert list(loose(tmp_path / "data")) == []
    finally:
        os.umask(previous)
        server.kill_if_running()


def test_controllers_and_members_of_a_group(tmp_path: Path) -> None:
    previous = os.umask(0)
    group = BrokerGroup(tmp_path, controllers=3, brokers=2)
    try:
        for part in (*group.controllers, *group.brokers):
            part.start()
        group.settle()
        found = [line for each in sorted(tmp_path.glob("*-data")) for line in loose(each)]
        assert len(list(tmp_path.glob("*-data"))) == 5
        assert (found, list(loose(tmp_path / "raft.secret"))) == ([], [])
    finally:
        os.umask(previous)
        group.end()

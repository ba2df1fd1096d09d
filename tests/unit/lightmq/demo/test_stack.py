"""The stack starts as one process or as three, says its ports, and is gone after `stop`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightmq.demo.stack import Stack, StackFailed

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("processes", "children"), [(False, 1), (True, 3)])
def test_start_and_stop(tmp_path: Path, processes: bool, children: int) -> None:
    """Every port is real and every child ends."""
    stack = Stack(tmp_path / "data")
    ports = stack.start(processes=processes)
    assert len(stack.pids) == children
    assert ports.mqtt > 0
    assert ports.nameserver > 0
    assert all(ports.admin)
    stack.stop()
    for pid in stack.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's own words are in the message."""
    stack = Stack(tmp_path / "data")
    stack._folder.mkdir()
    monkeypatch.setenv("LIGHTMQ_NO_SUCH__KEY", "1")
    with pytest.raises(StackFailed, match=r"(?s)did not become ready.*NO_SUCH__KEY"):
        stack.start(processes=False)
    stack.stop()

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from remoting.protocol.errors import LocalMisuse
from runtime.faults import FaultPoints, parse_faults


def test_an_unarmed_point_does_nothing() -> None:
    faults = FaultPoints()
    faults.hit("log.fsync")
    assert faults.hits("log.fsync") == 0


def test_an_armed_point_lets_some_pass_then_fails_and_is_harmless_again() -> None:
    faults = FaultPoints()
    faults.arm("log.fsync", OSError(errno.EIO, "broken"), after=2, times=2)
    faults.hit("log.fsync")
    faults.hit("log.fsync")
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            faults.hit("log.fsync")
    faults.hit("log.fsync")
    assert faults.hits("log.fsync") == 4


def test_a_point_armed_for_ever_fails_until_disarmed() -> None:
    seen: list[int] = []
    faults = FaultPoints()
    faults.arm("x", lambda: seen.append(1), times=None)
    for _ in range(3):
        faults.hit("x")
    faults.disarm("x")
    faults.hit("x")
    assert len(seen) == 3


def test_faults_are_parsed_from_text() -> None:
    faults = parse_faults("log.fsync=EIO@1, log.write=ENOSPC*0")
    faults.hit("log.fsync")
    with pytest.raises(OSError) as raised:
        faults.hit("log.fsync")
    assert raised.value.errno == errno.EIO
    for _ in range(3):
        with pytest.raises(OSError):
            faults.hit("log.write")


@pytest.mark.parametrize("text", ["log.fsync", "a=NOSUCH", "a=EIO@x", "a=EIO*x"])
def test_faults_that_cannot_be_understood_are_refused(text: str) -> None:
    with pytest.raises(LocalMisuse, match="name=ERROR"):
        parse_faults(text)


def test_kill_ends_the_process_at_once() -> None:
    program = "from runtime.faults import parse_faults; parse_faults('a=kill').hit('a'); print('alive')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (137, b"")

"""Some seconds of invalid clients against a real server; the command runs for any time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mqtt_probe import Broken, Case, judge
from tests.processes.wire import packet

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = b"\x20\x03\x00\x00\x00"


@pytest.mark.processes
def test_whatever_clients_send() -> None:
    """A fixed seed, so that the same bytes are sent elsewhere; one round of each kind fits into the time."""
    command = [sys.executable, "-m", "tests.fuzz.mqtt_fuzz", "--seconds", "8", "--seed", "20"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-8000:]}"
    for kind in ("valid", "cut", "cut_connect", "dribble", "damage", "damage_connect", "crime", "websocket"):
        assert f" {kind}: " in done.stdout, done.stdout


@pytest.mark.parametrize(
    "said",
    [
        b"\xd0\x00",
        ACCEPTED + ACCEPTED,
        b"\x20\x03\x00\x87\x00\xd0\x00",
        ACCEPTED + b"\xe0\x00",
        ACCEPTED + b"\xe0\x01\x04",
        ACCEPTED + b"\xe0\x01\x82\xd0\x00",
        ACCEPTED + b"\xc0\x00",
        ACCEPTED + b"\x60\x02\x00\x01",
        ACCEPTED + packet(0x36, b"\0\1a\0\1\0"),
        ACCEPTED + b"\xd0",
    ],
)
def test_what_the_judge_rejects(said: bytes) -> None:
    """Answers that no server may give."""
    with pytest.raises(Broken):
        judge(Case("any", 5, b""), said, cut=False)


def test_what_the_judge_accepts() -> None:
    """A reason at the end, where the version has one."""
    said = ACCEPTED + b"\xd0\x00" + b"\xe0\x02\x82\x00"
    assert judge(Case("any", 5, b""), said, cut=False)[-1] == b"\xe0\x02\x82\x00"
    with pytest.raises(Broken):
        judge(Case("any", 4, b""), said, cut=False)

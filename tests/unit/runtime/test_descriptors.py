"""File descriptors: the limit is raised as far as possible, and no more is promised than there are."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import resource, sys
from runtime.process import room_for
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(room_for(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "room", "after"),
    [
        (256, 4_096, 2_000, 2_000, 2_512),
        (256, 4_096, 10_000, 3_584, 4_096),
        (4_096, 4_096, 100, 100, 4_096),
        (256, 256, 10_000, 128, 256),
    ],
)
def test_as_many_as_there_are(soft: int, hard: int, wanted: int, room: int, after: int) -> None:
    """In a process of its own: a hard limit cannot be raised again."""
    command = [sys.executable, "-c", PROBE, str(soft), str(hard), str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(room), str(after)]

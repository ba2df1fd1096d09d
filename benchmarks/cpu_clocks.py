"""CPU time of processes by the clocks Linux keeps for them, which count nanoseconds.

`/proc/<id>/stat` and `getrusage` count the same in hundredths of a second. Linux only: see clock_getcpuclockid(3) for
what a process gets there; the clock of a thread is for its own process alone, others find it in `schedstat`.
"""

from __future__ import annotations

import time
from pathlib import Path

_OF_PROCESS = 2


def process_cpu_s(process: int) -> float:
    """User and system time of all threads of a process. Raises OSError when there is none with that id."""
    return time.clock_gettime((~process << 3) | _OF_PROCESS)


def loop_cpu_s(process: int) -> float:
    """That of its first thread, where its event loop runs. Raises OSError when there is no such process."""
    return int(Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]) / 1e9

"""The C allocator's large buffers: fixed where possible, left alone elsewhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runtime import process

PROBE = """
import ctypes, sys
from pathlib import Path
from runtime.process import keep_large_buffers_apart
if sys.argv[1] == "fixed":
    assert keep_large_buffers_apart()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(20 << 20))  # glibc learns from this that twenty megabytes are nothing special
heap = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
end = int(heap.split()[0].split("-")[1], 16)
buffers = [libc.malloc(256 * 1024) for _ in range(100)]
heap = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
print(int(heap.split()[0].split("-")[1], 16) - end)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(("mode", "in_heap"), [("fixed", False), ("left", True)])
def test_large_buffers_stay_out_of_the_heap(mode: str, in_heap: bool) -> None:
    """Also after a larger one was freed, which raises glibc's own threshold."""
    done = subprocess.run([sys.executable, "-c", PROBE, mode], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 10 * 1024 * 1024) is in_heap


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the function nothing changes."""

    def none(_name: object) -> object:
        raise OSError("no such library")

    monkeypatch.setattr(process.ctypes, "CDLL", none)
    assert not process.keep_large_buffers_apart()

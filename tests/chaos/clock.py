"""Clocks that jump: a small library, preloaded by every server of a run, adds what a file says to the time of day.

Only the time of day jumps; monotonic clocks do not, as with a machine whose clock is set. Needs a C compiler; without
one there is no such fault. Layout of the file: one i64, nanoseconds, in the machine's byte order.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

FILE_VARIABLE = "LIGHTMQ_CHAOS_CLOCK"
LIBRARY = "shifted_clock.so"
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t nothing = 0;
static volatile int64_t *shift = &nothing;

__attribute__((constructor)) static void look(void) {
    const char *path = getenv("LIGHTMQ_CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) shift = page;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *answer) {
    int status = (int)syscall(SYS_clock_gettime, which, answer);
    if (status == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t now = (int64_t)answer->tv_sec * 1000000000 + answer->tv_nsec + *shift;
        answer->tv_sec = now / 1000000000;
        answer->tv_nsec = now % 1000000000;
    }
    return status;
}

int gettimeofday(struct timeval *restrict answer, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    answer->tv_sec = now.tv_sec;
    answer->tv_usec = now.tv_nsec / 1000;
    return status;
}

time_t time(time_t *answer) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (answer) *answer = now.tv_sec;
    return now.tv_sec;
}
"""


def build(folder: Path) -> Path | None:
    """The library, made in this folder; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = folder / "shifted_clock.c", folder / LIBRARY
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return None
    return library


def variables(library: Path, file: Path) -> dict[str, str]:
    """What a process needs to have its clock shifted by the file."""
    set_shift(file, 0.0)
    return {"LD_PRELOAD": str(library), FILE_VARIABLE: str(file)}


def set_shift(file: Path, seconds: float) -> None:
    """Let the clocks of the file's processes be off by so much from now on."""
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.write(struct.pack("=q", int(seconds * 1e9)))

"""Clocks that jump and disks that are slow: a small library, preloaded by every server of a run and set by a file.

The time of day is off by so much; monotonic clocks are not, as with a machine whose clock is set. Every fsync and
fdatasync takes longer by so much. Needs a C compiler; without one there are no such faults.
Layout of the file: two i64, nanoseconds, in the machine's byte order: shift of the clock, further time of an fsync.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

FILE_VARIABLE = "LIGHTMQ_CHAOS_CONDITIONS"
LIBRARY = "preloaded.so"
_LAYOUT = struct.Struct("=qq")
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

static volatile int64_t nothing[2] = {0, 0};
static volatile int64_t *conditions = nothing;

__attribute__((constructor)) static void look(void) {
    const char *path = getenv("LIGHTMQ_CHAOS_CONDITIONS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) conditions = page;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *answer) {
    int status = (int)syscall(SYS_clock_gettime, which, answer);
    if (status == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t now = (int64_t)answer->tv_sec * 1000000000 + answer->tv_nsec + conditions[0];
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

static void wait_for_disk(void) {
    int64_t more = conditions[1];
    struct timespec left = {more / 1000000000, more % 1000000000};
    if (more > 0) nanosleep(&left, NULL);
}

int fsync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fdatasync, file);
}
"""


def build(folder: Path) -> Path | None:
    """The library, compiled in this folder; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = folder / "preloaded.c", folder / LIBRARY
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return None
    return library


def variables(library: Path, file: Path) -> dict[str, str]:
    """The environment of a process that is to have the conditions in the file."""
    set_conditions(file)
    return {"LD_PRELOAD": str(library), FILE_VARIABLE: str(file)}


def set_conditions(file: Path, *, clock_s: float = 0.0, fsync_s: float = 0.0) -> None:
    """Set the offset of the clock and the delay of every fsync from now on; without arguments both are normal."""
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.write(_LAYOUT.pack(int(clock_s * 1e9), int(fsync_s * 1e9)))

"""Java's classes, loaded and verified once: an archive that one run of Spark leaves and the runs after it map.

Loading Spark's classes is nearly half of all the CPU that its Java needs until the first row (11.4 to 6.4 s). A run
without an archive lets Java write one at its end (class data sharing); it lies in the environment that Spark is
installed in, and goes with it. Java itself checks that an archive is of its own version and of the same jars, and loads
classes as ever where it is not.

Invariant: an archive is there whole or not at all, and there is one at most in an environment; a run is never refused
because of it. Thread rule: main thread of Spark's driver process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD_PER_CORE_MAX = 2.0
"""Writing an archive takes seven seconds of CPU in its run, which a machine busier than that does not have."""
FREE_BYTES_MIN = 2_000_000_000
"""An archive has 170 MB; where the disk is nearly full none is made."""
QUIET = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:cds*=off,class+path*=off"
END_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one environment: `path`, or `scratch` while this run's Java writes it; neither: there is none."""

    path: Path | None = None
    scratch: Path | None = None

    @property
    def options(self) -> str:
        """What Java is started with."""
        if self.scratch is not None:
            return f"{QUIET} -XX:ArchiveClassesAtExit={self.scratch}"
        return "" if self.path is None else f"{QUIET} -XX:SharedArchiveFile={self.path}"

    def stop(self, spark: SparkSession) -> None:
        """Stop the session; an archive that this run makes is in place afterwards."""
        gateway = spark.sparkContext._gateway  # noqa: SLF001 - nothing else knows Java's process
        spark.stop()
        if self.scratch is None or self.path is None or gateway is None:
            return
        java = gateway.proc
        with suppress(OSError, subprocess.TimeoutExpired):
            java.stdin.close()
            java.wait(END_TIMEOUT_S)
            for other in self.path.parent.glob("*.jsa"):
                other.unlink()
            self.scratch.replace(self.path)


def class_archive(java_home: str | None, folder: Path | None = None) -> ClassArchive:
    """Return the archive of this environment (or in `folder`), one to be made if there is none.

    None is made in a folder that cannot be written or has a blank in its path, on a disk that is nearly full, or while
    the machine is busy.
    """
    home = Path(java_home) if java_home else None
    chosen = Path(sys.prefix, "var", "lightmq") if folder is None else folder
    if home is None or " " in str(chosen):
        return ClassArchive()
    path = chosen / f"spark-{identity(home)}.jsa"
    if path.exists():
        return ClassArchive(path)
    if os.getloadavg()[0] > LOAD_PER_CORE_MAX * (os.cpu_count() or 1):
        return ClassArchive()
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(chosen).free < FREE_BYTES_MIN or not os.access(chosen, os.W_OK):
            return ClassArchive()
        for left in chosen.glob("*.part"):
            if not Path("/proc", left.stem).exists():
                left.unlink()  # of a run that was killed
    except OSError:
        return ClassArchive()
    return ClassArchive(path, chosen / f"{os.getpid()}.part")


def identity(java_home: Path) -> str:
    """Name a Java and a Spark: where each is, and when it was installed."""
    java = (java_home / "bin" / "java").resolve()
    spark = Path(pyspark.__file__).parent / "jars"
    parts = [f"{one} {one.stat().st_mtime_ns}" for one in (java, spark) if one.exists()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

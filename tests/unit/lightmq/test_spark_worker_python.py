"""The Python of Spark's processes: this one, without PySpark's zips in its path where PySpark is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest

from lightmq import spark_session
from lightmq.spark_session import worker_python as chosen

HOME = Path(pyspark.__file__).parent
PROBE = "import os, sys, pyspark, py4j; print(pyspark.__file__, py4j.__file__, os.environ['PYTHONPATH'], *sys.argv[1:])"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scripts of this test alone, and Spark's home as it is found by default."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)


@pytest.mark.parametrize("home", [HOME, HOME.resolve()])
def test_processes_import_pyspark_as_it_is_installed(home: Path) -> None:
    program = chosen({"SPARK_HOME": str(home)})
    assert program != sys.executable
    zips = [str(found) for found in (home / "python" / "lib").glob("*.zip")]
    assert len(zips) == 2
    kept = f"/x y/*{os.pathsep}/other/python/lib/pyspark.zip"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*zips, kept])}
    done = subprocess.run(
        [program, "-c", PROBE, "an argument"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{pyspark.__file__} {py4j.__file__} {kept} an argument"
    assert chosen({"SPARK_HOME": str(home)}) == program


def test_another_spark_or_another_place_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert chosen({"SPARK_HOME": str(tmp_path)}) == sys.executable
    assert chosen({}) != sys.executable
    monkeypatch.setattr(spark_session, "_installed", lambda name: HOME if name == "pyspark" else None)
    assert chosen({}) == sys.executable
    monkeypatch.undo()
    monkeypatch.setattr(spark_session.sysconfig, "get_path", lambda kind: str(tmp_path))
    assert chosen({}) == sys.executable

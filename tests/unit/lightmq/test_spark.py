"""The session's settings and environment, without starting a JVM (the scenarios of tests/interop start one)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lightmq import spark


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[2]", 2),
        ("local[4,3]", 4),
        ("local[*]", os.cpu_count()),
        ("spark://h:7077", None),
        ("yarn", None),
    ],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert spark.local_cores(master) == cores


def test_settings() -> None:
    small = spark.defaults("local[2]", 17)
    assert "UseSerialGC" in small["spark.driver.extraJavaOptions"]
    assert "sun-misc-unsafe" not in small["spark.driver.extraJavaOptions"]
    assert small["spark.sql.shuffle.partitions"] == "2"
    large = spark.defaults("local[8]", 25)
    assert "UseSerialGC" not in large["spark.driver.extraJavaOptions"]
    assert "sun-misc-unsafe" in large["spark.driver.extraJavaOptions"]
    cluster = spark.defaults("yarn", 21)
    assert not {"spark.driver.extraJavaOptions", "spark.sql.shuffle.partitions", "spark.ui.enabled"} & set(cluster)
    assert "RocksDB" in cluster["spark.sql.streaming.stateStore.providerClass"]


def test_environment_is_prepared_but_never_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "PYTHONPATH"):
        monkeypatch.setenv(name, "kept")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "mine")
    spark.prepare_environment("yarn")
    assert "SPARK_LOCAL_IP" not in os.environ
    spark.prepare_environment("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "mine"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    root = str(Path(spark.__file__).resolve().parent.parent)
    assert os.environ["PYTHONPATH"].split(os.pathsep).count(root) == 1


def test_without_pyspark_the_command_that_installs_it_is_named() -> None:
    with pytest.raises(spark.PySparkMissing, match=r"-m pip install 'lightmq\[spark\]'"):
        spark.require_pyspark("no_such_module")
    spark.require_pyspark("json")

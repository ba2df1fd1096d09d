"""The order of the demo without Spark: failures end it with a status and leave nothing running."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.demo import run as subject
from lightmq.demo.driver import SparkFailed
from lightmq.demo.run import Demo, parse, shorten
from lightmq.demo.stack import InstallationFailed

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Java, which the demo brings up beside the broker, has no part in these tests."""
    monkeypatch.setattr(Demo, "_prepare_spark", lambda *_: None)


def test_paths_are_shown_as_one_would_type_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Relative below the current folder, absolute elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert shorten(tmp_path / "demo-out" / "a.png") == "demo-out/a.png"
    assert shorten(Path("/somewhere/else")) == "/somewhere/else"


def test_a_failed_installation_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker was up and accepted readings; the error has the cause; the status is not 0; old output is removed."""

    def fail(_: object) -> None:
        raise InstallationFailed("no network")

    monkeypatch.setattr(subject.Installation, "wait", fail)
    (tmp_path / "out" / "ledger").mkdir(parents=True)
    assert Demo(parse(["--plain", "--out", str(tmp_path / "out")])).run() == 1
    printed = capsys.readouterr().out
    assert "broker is up" in printed
    assert "no network" in printed
    assert not (tmp_path / "out" / "ledger").exists()


def test_a_spark_that_gives_up_ends_with_the_accounting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, with what did arrive; the status is not 0."""

    def fail(_demo: object, _installation: object) -> None:
        raise SparkFailed("query commands: Python worker failed to connect back")

    monkeypatch.setattr(Demo, "_wait_for_spark", fail)
    assert Demo(parse(["--plain", "--out", str(tmp_path / "out")])).run() == 1
    printed = capsys.readouterr().out
    assert "Spark gave up: query commands: Python worker failed to connect back\n" in printed
    assert "accounting" in printed
    assert "readings: sent" in printed
    assert "Traceback" not in printed

"""The demo's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.demo.run import SECONDS_DEFAULT, host_label, parse


def test_defaults_run_on_any_machine() -> None:
    """No argument is required."""
    options = parse([])
    assert (options.seconds, options.csv, options.processes) == (SECONDS_DEFAULT, None, False)


def test_a_replay_runs_until_all_is_read(tmp_path: Path) -> None:
    """With a file there is no time limit unless one is given."""
    series = tmp_path / "series.csv"
    series.write_text("timestamp,value\n")
    assert parse(["--csv", str(series)]).seconds == 0
    assert parse(["--csv", str(series), "--seconds", "5"]).seconds == 5


@pytest.mark.parametrize("arguments", [["--csv", "no-such-file"], ["--seconds", "0"], ["--seconds", "x"], ["--nope"]])
def test_what_makes_no_sense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Bad arguments end with a message that names them."""
    with pytest.raises(SystemExit):
        parse(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_the_host_label_is_one_plain_topic_level() -> None:
    """No slash, no wildcard, never empty."""
    assert host_label()
    assert not set(host_label()) & set("/+#$ ")

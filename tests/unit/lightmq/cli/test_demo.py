"""`lightmq demo` passes its arguments on to the demo's own command line."""

from __future__ import annotations

import pytest

from lightmq.cli.application import run
from lightmq.cli.demo import check_modules
from lightmq.cli.outcome import CommandFailed


def test_the_demo_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own help, not the outer one."""
    with pytest.raises(SystemExit) as ended:
        run(["demo", "--help"])
    assert ended.value.code == 0
    assert "--processes" in capsys.readouterr().out


def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """With the demo's own text."""
    with pytest.raises(SystemExit) as ended:
        run(["demo", "--csv", "no-such-file"])
    assert ended.value.code == 2
    assert "no-such-file" in capsys.readouterr().err


def test_without_the_packages_the_command_is_named() -> None:
    """One line with the command, instead of a traceback."""
    with pytest.raises(CommandFailed, match=r"needs no_such_module; .* -m pip install .*matplotlib"):
        check_modules(("json", "no_such_module"))

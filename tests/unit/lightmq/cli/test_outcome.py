from __future__ import annotations

import errno
import io
import sys

import pytest

from lightmq.cli.outcome import CommandFailed, explain_oserror, guarded
from remoting.protocol.errors import LocalMisuse


def raising(error: BaseException) -> object:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (CommandFailed("no\n  way"), 1, "lightmq: no way\n"),
        (LocalMisuse("bad"), 1, "lightmq: bad\n"),
        (KeyboardInterrupt(), 130, ""),
        (OSError(errno.ENOSPC, "No space left", "f"), 1, "lightmq: f: No space left; free some space"),
    ],
)
def test_known_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, text: str
) -> None:
    assert guarded(lambda: raising(error)) == status
    said = capsys.readouterr().err
    assert said.startswith(text)
    assert said.count("\n") <= 1


def test_success_and_bugs() -> None:
    assert guarded(lambda: None) == 0
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0)


def test_a_reader_that_left_causes_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert guarded(lambda: raising(BrokenPipeError())) == 1


def test_errors_without_a_hint() -> None:
    assert explain_oserror(OSError(errno.EIO, "Input/output error")) == "Input/output error"
    assert explain_oserror(OSError("strange")) == "strange"

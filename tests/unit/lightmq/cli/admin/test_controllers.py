"""The steps of a change of the controllers: done, asked again, or ended with what is left."""

from __future__ import annotations

import time

import pytest

from lightmq.cli.admin import controllers
from lightmq.cli.outcome import CommandFailed
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


def test_a_step_is_asked_again_until_nothing_is_left():
    """A leader that is busy or gone is asked again."""
    left = [Refused(ResponseCode.SYSTEM_BUSY, "busy"), CommandFailed("no leader"), "it learns", ""]

    def act():
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    controllers._until(act, time.monotonic() + 60, "n4 does not vote yet")
    assert not left


def test_what_is_left_after_the_wait_is_said():
    """With how to go on; what is refused for good is not asked again."""
    with pytest.raises(CommandFailed, match="n4 does not vote yet: start it; run the same command again to go on"):
        controllers._until(lambda: "start it", 0.0, "n4 does not vote yet")

    def refused():
        raise Refused(ResponseCode.INVALID_PARAMETER, "n1 is a member already")

    with pytest.raises(Refused, match="n1 is a member already"):
        controllers._until(refused, time.monotonic() + 60, "")

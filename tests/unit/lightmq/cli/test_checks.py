from __future__ import annotations

import pytest

from lightmq.cli.checks import check_filter, check_qos, check_topic
from lightmq.cli.outcome import CommandFailed


def test_good_ones_pass() -> None:
    check_qos(2)
    check_topic("a/b")
    check_filter("a/+/#")


def test_bad_ones_are_named() -> None:
    with pytest.raises(CommandFailed, match="--qos must be 0, 1 or 2, not 3"):
        check_qos(3)
    with pytest.raises(CommandFailed, match="'a/#' cannot be published to"):
        check_topic("a/#")
    with pytest.raises(CommandFailed, match="'a/#/b' is not a topic filter"):
        check_filter("a/#/b")

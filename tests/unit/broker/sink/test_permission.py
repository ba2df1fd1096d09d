"""CHECK_PUBLISH: the same answer beforehand as the rows would get."""

from __future__ import annotations

import pytest

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

ALLOWED = {"out/x", "orders", "$sink/etl"}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"topic": "out/x", "sink": "etl"}, ""),
        ({"topic": "orders"}, ""),
        ({}, ""),
        ({"topic": "out/y", "sink": "etl"}, "'out/y'"),
        ({"topic": "out/x", "sink": "other"}, "'$sink/other'"),
        ({"sink": "a/b"}, "$sink/"),
    ],
)
async def test_what_the_rows_would_be_told(running, fields: dict[str, str], word: str) -> None:
    """Topic first, then sink; nothing asked is nothing refused; a name with a slash is one level."""
    running.judge_by(lambda _identity, action, what: action == "publish" and what in ALLOWED)
    reply = await running.connect().request(Command(RequestCode.CHECK_PUBLISH, fields=dict(fields)))
    assert reply.code == (ResponseCode.NO_PERMISSION if word else 0)
    assert word in (reply.remark or "")


async def test_without_a_list_everything_is_allowed(running) -> None:
    """And asking creates no topic."""
    reply = await running.connect().request(Command(RequestCode.CHECK_PUBLISH, fields={"topic": "brand-new"}))
    assert reply.code == 0
    assert running.broker.topics.table.get("brand-new") is None

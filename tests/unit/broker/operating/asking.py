"""Requests of an operator to a broker under test."""

from __future__ import annotations

from typing import Any

from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def asked(running: Any, code: int, body: bytes = b"", **fields: str) -> Any:
    """The JSON of an answer, None for an empty one, (code, remark) of a refusal."""
    reply = await running.connect().request(Command(code, fields=fields, body=body))
    if reply.code:
        return reply.code, reply.remark
    return fastjson.loads(reply.body) if reply.body else None


async def publish(running: Any, *topics: bytes, body: bytes = b"x", flags: int = 1) -> None:
    """One MQTT message of each topic."""
    images = running.publish(*topics, body=body, flags=flags)
    assert await asked_raw(running, RequestCode.APPEND_MANY, images) == 0


async def asked_raw(running: Any, code: int, body: bytes) -> int:
    """The code of an answer."""
    return (await running.connect().request(Command(code, body=body))).code

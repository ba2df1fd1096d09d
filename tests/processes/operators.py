"""Requests of an operator to a broker, for the tests of this folder."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from remoting.client.connection import dial
from remoting.protocol.frames.commands import Command


def ask(port: int, code: int, **fields: str) -> Any:
    """The JSON of an answer, or (code, remark) of a refusal."""

    async def asked() -> Command:
        connection = await dial(f"127.0.0.1:{port}")
        try:
            return await connection.request(Command(code, fields=fields))
        finally:
            await connection.close()

    answer = asyncio.run(asked())
    return (answer.code, answer.remark) if answer.code else json.loads(bytes(answer.body))

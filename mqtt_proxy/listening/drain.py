"""Sending clients away before the proxy stops, a few at a time, so that the next proxy does not get them all at once.

    doors closed -> every 20 ms a batch: MQTT 5 is told why and where to go, 3.1.1 is closed -> nobody is left

Invariants: from the beginning nobody new gets in; whoever waits for his turn is served as before, so that nothing is
refused meanwhile. A handful of clients goes at once. Loop rule: the listener's loop.
"""

from __future__ import annotations

import asyncio

from mqtt_proxy.listening.listener import Listener
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from runtime.logs import get_logger

STEP_MS = 20
BATCH_MIN = 50
"""Fewer at a time would only make a small proxy slow to stop."""


async def drain(listener: Listener, *, interval_ms: int, server_reference: str = "", moved: bool = False) -> None:
    """Send everybody away over `interval_ms`; `server_reference` is where to, `moved` that it is for good."""
    listener.close_doors()
    code = ReasonCode.SERVER_SHUTTING_DOWN
    if server_reference:
        code = ReasonCode.SERVER_MOVED if moved else ReasonCode.USE_ANOTHER_SERVER
    waiting = list(listener.connections)
    batch = max(BATCH_MIN, -(-len(waiting) * STEP_MS // max(interval_ms, STEP_MS)))
    if waiting:
        get_logger("mqtt_proxy.front").info("mqtt_draining", connections=len(waiting), interval_ms=interval_ms)
    for begin in range(0, len(waiting), batch):
        if begin:
            await asyncio.sleep(STEP_MS / 1_000)
        for connection in waiting[begin : begin + batch]:
            connection.send_away(code, server_reference)

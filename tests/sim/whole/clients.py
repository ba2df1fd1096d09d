"""Producers with the product's own client, each a process of its own: every message is sent once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from remoting.client.connection import dial
from remoting.client.uplink import Uplink
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from tests.sim.whole.loop import Host

if TYPE_CHECKING:
    from tests.sim.whole.group import Cluster

TIMEOUT_MS = 3_000
TOPICS = (b"plant/1", b"plant/2")


class Producer(Host):
    """Sends one message after the other; without an answer nobody knows what became of one."""

    def __init__(self, cluster: Cluster, number: int, acknowledged: Callable[[bytes], None]) -> None:
        super().__init__(cluster.world, f"p{number}", f"127.0.3.{number}")
        self._cluster, self._acknowledged = cluster, acknowledged
        self._pause_s = cluster.world.chance.choice((0.005, 0.03, 0.1))
        self.sent = self.refused = self.unknown = 0
        self.is_done = False
        self.start(self._run)

    async def _run(self) -> None:
        chance = self.world.chance
        uplink = Uplink.configured(dial, "", self._cluster.addresses, "", pause_ms_max=100)
        uplink.start()
        while not self.is_done:
            await asyncio.sleep(self._pause_s * (0.1 + chance.random()))
            self.sent += 1
            text = b"<%s-%06d>" % (self.name.encode(), self.sent)
            payload = text + bytes(chance.choice((0, 0, 40, 700, 3_000)))
            body = encode_mqtt_image(chance.choice(TOPICS), payload, 1, 1, b"device")
            try:
                answer = await uplink.connection.request(Command(RequestCode.APPEND_MANY, body=body), TIMEOUT_MS)
            except LightMQError:
                self.unknown += 1
                continue
            if answer.code == 0:
                self._acknowledged(text)
            else:
                self.refused += 1

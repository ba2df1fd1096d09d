"""A gRPC proxy on a real port, in front of a broker on a real store in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from grpc_proxy.app import GrpcProxyApp
from grpc_proxy.config import GrpcConfig
from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting import inprocess
from remoting.server.authorizer import TRUSTED_ATTRIBUTE
from remoting.transport.signature import date_signature
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench

ENDPOINTS = d.Endpoints(scheme=d.AddressScheme.IPv4, addresses=[d.Address(host="10.0.0.1", port=8081)])
TOPIC, GROUP = d.Resource(name="orders"), d.Resource(name="billing")
METADATA = (("x-mq-client-id", "client-1"), ("x-mq-language", "PYTHON"))


class ProxyBench:
    """The broker, the proxy and a channel to it."""

    def __init__(self, directory: Path, *, broker_options: Any = None, **options: Any) -> None:
        self.broker = BrokerBench(directory, ManualClock(), **(broker_options or {}))
        self.clock = self.broker.clock
        self.broker_connection = connection = inprocess.connect(self.broker.router)
        connection.peer.attributes[TRUSTED_ATTRIBUTE] = True
        config = GrpcConfig(**{"port": 0, "stop_deadline_ms": 10_000, **options})
        self.app = GrpcProxyApp(config, clock=self.clock, registry=self.broker.registry, connection=connection)
        self.channel: Any = None

    async def start(self) -> None:
        self.broker.broker.topics.table.ensure("orders", 4)
        port = await self.app.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    async def stop(self) -> None:
        await self.channel.close()
        await self.app.stop()
        self.broker.store.close()

    async def call(self, name: str, request: Any, metadata: Any = METADATA, timeout_s: float = 20) -> Any:
        """The answer to a call; `request` is a message or bytes."""
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        found = await self.channel.unary_unary(f"/{NAME}/{name}")(raw, metadata=metadata, timeout=timeout_s)
        return getattr(s, f"{name}Response").FromString(found)

    async def send(self, *messages: Any, metadata: Any = METADATA) -> Any:
        return await self.call("SendMessage", s.SendMessageRequest(messages=messages), metadata)

    async def receive(self, metadata: Any = METADATA, timeout_s: float | None = 20, **asked: Any) -> list[Any]:
        """All answers to a ReceiveMessage."""
        request = {"group": GROUP, "message_queue": {"topic": TOPIC, "id": -1}, "batch_size": 16,
                   "invisible_duration": {"seconds": 30}, "long_polling_timeout": {"seconds": 0}, **asked}  # fmt: skip
        raw = s.ReceiveMessageRequest(**request).SerializeToString()
        call = self.channel.unary_stream(f"/{NAME}/ReceiveMessage")(raw, metadata=metadata, timeout=timeout_s)
        return [s.ReceiveMessageResponse.FromString(one) async for one in call]

    async def messages(self, **asked: Any) -> list[Any]:
        """The messages of a ReceiveMessage that brings some."""
        answers = await self.receive(**asked)
        assert answers[0].status.code == d.Code.OK, answers[0]
        assert answers[-1].HasField("delivery_timestamp")
        return [one.message for one in answers[1:-1]]

    async def acknowledge(self, *handles: str, metadata: Any = METADATA) -> Any:
        entries = [{"message_id": "m", "receipt_handle": handle} for handle in handles]
        request = s.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
        return await self.call("AckMessage", request, metadata)

    async def revive(self, after_ms: int) -> None:
        """Let this time pass; what the broker does about it is confirmed."""
        self.clock.advance_ms(after_ms)
        self.broker.broker.maintain(self.clock.now_ms())
        await self.broker.settle()

    def counted(self, name: str) -> dict[str, int]:
        """The values of a counter by label."""
        found = {each.name: each for each in self.broker.registry.metrics()}[name]
        return {"/".join(labels): int(child.value) for labels, child in found.children.items()}


def by(key: str, secret: str, now: str = "20261124T040000Z", client_id: str = "client-1") -> Any:
    """The metadata of a client with a key."""
    signature = date_signature(now, secret)
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (("x-mq-client-id", client_id), METADATA[1], ("x-mq-date-time", now), ("authorization", text))


def message(body: bytes = b"hello", **system: Any) -> Any:
    """A message for `orders`."""
    given = {"message_id": "0102", "message_type": d.MessageType.NORMAL, "body_encoding": d.Encoding.IDENTITY, **system}
    return d.Message(topic=TOPIC, body=body, system_properties=given)


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[ProxyBench]:
    bench = ProxyBench(tmp_path / "data")
    await bench.start()
    yield bench
    await bench.stop()

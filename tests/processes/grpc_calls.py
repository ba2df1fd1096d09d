"""Calls of RocketMQ's gRPC service without a client library, and a judge that counts every message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc

from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from tests.processes.rig import ROOT

METADATA = (("x-mq-client-id", "judge"),)
CLIENT = Path(__file__).with_name("grpc_client.py")
CLIENT_TIMEOUT_S = 100
TIMEOUT_S = 20.0
DEADLINE_S = 60.0
Code, Type = d.Code, d.MessageType


def client(home: Path, scenario: str, *arguments: object) -> Any:
    """What a scenario of the real Python client printed."""
    variables = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(CLIENT), scenario, *map(str, arguments)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


class GrpcCalls:
    """A channel to a proxy."""

    def __init__(self, port: int, metadata: Sequence[tuple[str, str]] = METADATA, options: Sequence[Any] = ()) -> None:
        reconnect = ("grpc.max_reconnect_backoff_ms", 200)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[reconnect, *options])
        self.metadata = tuple(metadata)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, name: str, request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """The answer to a call; `request` is a message, its fields, or bytes."""
        raw = self.channel.unary_unary(f"/{NAME}/{name}")(
            _raw(name, request), metadata=self.metadata, timeout=timeout_s, wait_for_ready=True
        )
        return getattr(s, f"{name}Response").FromString(raw)

    def stream(self, name: str, request: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """All answers to a call with several."""
        found = self.channel.unary_stream(f"/{NAME}/{name}")(
            _raw(name, request), metadata=self.metadata, timeout=timeout_s, wait_for_ready=True
        )
        return [getattr(s, f"{name}Response").FromString(raw) for raw in found]

    def code(self, name: str, request: Any, timeout_s: float = TIMEOUT_S) -> str:
        """The name of the code of the answer."""
        if name in ("ReceiveMessage", "PullMessage"):
            found = self.stream(name, request, timeout_s)[0]
        else:
            found = self.call(name, request, timeout_s)
        return str(Code.Name(found.status.code))

    def send(self, *messages: Any) -> list[Any]:
        """The results of messages that are all stored."""
        found = self.call("SendMessage", {"messages": messages})
        assert found.status.code == Code.OK, found.status
        return list(found.entries)

    def receive(self, topic: str, group: str, *, wait_s: int = 2, **asked: Any) -> list[Any]:
        """The messages of one receive."""
        queue = {"topic": {"name": topic}, "id": -1, **asked.pop("message_queue", {})}
        times = {"invisible_duration": {"seconds": 30}, "long_polling_timeout": {"seconds": wait_s}}
        request = {"group": {"name": group}, "message_queue": queue, "batch_size": 32, **times, **asked}
        return [one.message for one in self.stream("ReceiveMessage", request) if one.HasField("message")]

    def acknowledge(self, topic: str, group: str, messages: Sequence[Any]) -> list[str]:
        """The code of each acknowledgement."""
        entries = [
            {
                "message_id": "m",
                "receipt_handle": one.system_properties.receipt_handle,
                "lite_topic": one.system_properties.lite_topic or None,
            }
            for one in messages
        ]
        found = self.call("AckMessage", {"group": {"name": group}, "topic": {"name": topic}, "entries": entries})
        return [str(Code.Name(one.status.code)) for one in found.entries]

    def take(self, topic: str, group: str, count: int, **asked: Any) -> list[Any]:
        """So many messages, each acknowledged."""
        found: list[Any] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
            came = self.receive(topic, group, **asked)
            if came:
                assert set(self.acknowledge(topic, group, came)) == {"OK"}
            found += came
        return found


def _raw(name: str, request: Any) -> bytes:
    if isinstance(request, bytes):
        return request
    made = getattr(s, f"{name}Request")(**request) if isinstance(request, dict) else request
    return bytes(made.SerializeToString())


def message(body: bytes | str, topic: str = "orders", **system: Any) -> Any:
    """A message; its id is made of its body."""
    raw = body.encode() if isinstance(body, str) else body
    given = {"message_id": raw.hex().upper()[:64] or "00", "message_type": Type.NORMAL, **system}
    return d.Message(topic={"name": topic}, body=raw, system_properties=given)


class Judge:
    """Sends, receives and acknowledges through a proxy while parts of the system come and go; counts every message."""

    def __init__(self, port: int, topic: str, count: int) -> None:
        self.calls = GrpcCalls(port)
        self.topic = topic
        self.count = count
        self.sent: set[bytes] = set()
        self.unsure: set[bytes] = set()
        """Messages with a send that was not answered with OK: they may be there twice."""
        self.acknowledged: set[bytes] = set()
        self.unanswered: set[bytes] = set()
        """Acknowledgements that may have been carried out, though not answered with OK."""
        self.repeated: list[bytes] = []
        self.slowest_send_s = 0.0
        """Longest time from a message's first attempt to OK."""
        self.half = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in self._threads), (len(self.sent), len(self.acknowledged))

    def _send(self) -> None:
        """Every message, each until it is answered with OK."""
        for number in range(self.count):
            body, begun = b"%d" % number, time.monotonic()
            one = message(body, self.topic, message_id=f"{number:032X}")
            while body not in self.sent:
                try:
                    answer = self.calls.call("SendMessage", {"messages": [one]}, timeout_s=10)
                except grpc.RpcError:
                    self.unsure.add(body)
                    continue
                if answer.status.code == Code.OK:
                    self.sent.add(body)
                else:
                    self.unsure.add(body)
            self.slowest_send_s = max(self.slowest_send_s, time.monotonic() - begun)
            if number == self.count // 2:
                self.half.set()

    def _consume(self) -> None:
        """Acknowledge one message after the other, until each was acknowledged or may have been."""
        while len(self.acknowledged | self.unanswered) < self.count:
            try:
                asked = {"batch_size": 8, "invisible_duration": {"seconds": 1}}
                for one in self.calls.receive(self.topic, "judges", **asked):
                    self._acknowledge(one)
            except grpc.RpcError:
                continue

    def _acknowledge(self, one: Any) -> None:
        if one.body in self.acknowledged:
            self.repeated.append(one.body)
        self.unanswered.add(one.body)
        (found,) = self.calls.acknowledge(self.topic, "judges", [one])
        if found == "OK":
            self.unanswered.discard(one.body)
            self.acknowledged.add(one.body)
        elif found == "INVALID_RECEIPT_HANDLE":
            self.unanswered.discard(one.body)  # it took too long, and comes again

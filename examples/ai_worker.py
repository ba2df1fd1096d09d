"""One inference worker of the example `ai`: takes requests from a shared subscription, answers on their reply topic.

    $share/inference/ai/requests   MQTT 5, one request in hand at a time (Receive Maximum), acknowledged once answered
    kb/index/+                     retained: the slices of every document with their vectors, the newest version

Killed in the middle of a request it has acknowledged nothing, so the server gives the request to another worker.
Invariant: a request is acknowledged after the server has accepted its answer. Thread rule: requests are worked on in
the network thread of their client, the index is replaced whole by that of the other; an entry is never changed.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import threading
from typing import Any

from kit import Stage

import numpy as np
from ai_models import load
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from runtime.clock import SystemClock

REQUESTS, INDEX = "$share/inference/ai/requests", "kb/index/+"
PASSAGES = 3


class Worker:
    """The index in memory, a model, and two connections: requests, and everything else."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._name = name
        self._model = load(stage.words["model"])
        self._think_s = float(stage.words["think"])
        self._index: dict[str, tuple[int, list[str], np.ndarray]] = {}
        self._thinking = threading.Event()
        self._others = self._client(f"{name}-answers")
        self._others.on_connect = lambda client, *_: client.subscribe(INDEX, qos=1)
        self._others.on_message = self._learn
        self._requests = self._client(name, manual_ack=True)
        self._requests.on_connect = lambda client, *_: client.subscribe(REQUESTS, qos=1)
        self._requests.on_message = self._work
        one_at_a_time = Properties(PacketTypes.CONNECT)
        one_at_a_time.ReceiveMaximum = 1
        self._others.connect(stage.mqtt_host, stage.mqtt_port, keepalive=60)
        self._others.loop_start()
        self._requests.connect(stage.mqtt_host, stage.mqtt_port, keepalive=60, properties=one_at_a_time)

    def _client(self, client_id: str, *, manual_ack: bool = False) -> Client:
        return Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=manual_ack
        )

    def run(self) -> None:
        """Work until killed."""
        self._requests.loop_forever()

    def _learn(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        """Take a document's slices in place of those of an earlier version."""
        found = json.loads(message.payload)
        if found["version"] >= self._index.get(found["name"], (0,))[0]:
            vectors = np.frombuffer(base64.b64decode(found["vectors"]), np.float32)
            shaped = vectors.reshape(len(found["slices"]), -1)
            self._index = self._index | {found["name"]: (found["version"], found["slices"], shaped)}

    def _work(self, client: Client, _userdata: object, message: MQTTMessage) -> None:
        request = json.loads(message.payload)
        say(event="began", id=request["id"], worker=self._name)
        vector = self._model.embed([request["question"]])[0]
        self._thinking.wait(self._think_s)  # what a large model would need
        ranked = self._ranked(vector)
        answer = self._model.answer(request["question"], [text for _, text, _, _ in ranked])
        best = ranked[0] if ranked else (0.0, "", "", 0)
        reply = {"id": request["id"], "answer": answer, "score": best[0], "document": best[2], "version": best[3],
                 "worker": self._name}  # fmt: skip
        asked: Any = message.properties  # paho keeps what was sent as attributes of these names
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = asked.CorrelationData
        sent = self._others.publish(asked.ResponseTopic, json.dumps(reply), qos=1, properties=properties)
        sent.wait_for_publish(30)
        client.ack(message.mid, message.qos)
        say(event="done", id=request["id"], worker=self._name)

    def _ranked(self, vector: np.ndarray) -> list[tuple[float, str, str, int]]:
        """The nearest slices: cosine, text, document, version."""
        found = [
            (float(cosine), text, name, version)
            for name, (version, slices, vectors) in self._index.items()
            for cosine, text in zip(vectors @ vector, slices, strict=True)
        ]
        return sorted(found, reverse=True)[:PASSAGES]


def say(**event: Any) -> None:
    """Tell the example one line, with the time."""
    print(json.dumps(event | {"at_ms": SystemClock().now_ms()}), flush=True)


def main() -> int:
    """Run one worker."""
    parser = argparse.ArgumentParser(prog="examples/ai_worker.py")
    parser.add_argument("--stage", required=True)
    parser.add_argument("--name", required=True)
    options = parser.parse_args()
    Worker(Stage.load(options.stage), options.name).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

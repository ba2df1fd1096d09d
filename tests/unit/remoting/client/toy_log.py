"""A broker for producers in memory: topics with queues, each a list of messages, which refuses on demand."""

from __future__ import annotations

import json
import threading

from remoting.batches import body
from remoting.protocol.bodies.append_body import encode_append_reply
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.records.image import image_views, wanted_queue
from remoting.protocol.records.record import body_codec, body_format


class ToyLog:
    """Stores what is appended; `refusals` are answered first, in order: a code, "close", or "store and close"."""

    def __init__(self, **topics: tuple[int, bool]) -> None:
        self.topics = topics
        self.queues: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}
        self.requests: list[tuple[str, int, int, int]] = []
        self.refusals: list[object] = []
        self.hold = False
        self.held: list[tuple[object, object]] = []
        self.was_held = threading.Event()
        self.asked = 0
        self.silent_questions = 0
        """So many questions for a topic are answered by hanging up."""

    def __call__(self, peer, command):
        if command.code == RequestCode.GET_TOPIC_CONFIG:
            if self.silent_questions:
                self.silent_questions -= 1
                self.asked += 1
                peer.close("gone")
                return None
            return self._config(command)
        assert command.code == RequestCode.APPEND_MANY
        if self.refusals:
            refusal = self.refusals.pop(0)
            if refusal == "store and close":
                self.store(command)
            if isinstance(refusal, str):
                peer.close("gone")
                return None
            raise Refused(refusal, "no")
        if self.hold:
            self.held.append((peer, command))
            self.was_held.set()
            return None
        return self.store(command)

    def release(self) -> None:
        """Answer the requests kept back, oldest first."""
        held, self.held = self.held, []
        for peer, command in held:
            peer.send(self.store(command))

    def _config(self, command):
        self.asked += 1
        name = command.fields["topic"]
        if name not in self.topics:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic [{name}] not exist")
        queues, batch = self.topics[name]
        attributes = {"queue.type": "BatchCQ"} if batch else {}
        return command.reply(body=json.dumps({"writeQueueNums": queues, "attributes": attributes}).encode())

    def store(self, command):
        entries = image_views(command.body)
        places = []
        for entry in entries:
            queue = self.queues.setdefault((entry.topic.decode(), wanted_queue(entry)), [])
            places.append((wanted_queue(entry), len(queue)))
            queue += self._messages(entry)
        first = entries[0]
        self.requests.append((first.topic.decode(), wanted_queue(first), len(entries), sum(e.count for e in entries)))
        return command.reply(body=encode_append_reply(99, places))

    @staticmethod
    def _messages(entry) -> list[tuple[bytes, bytes]]:
        if not body_format(entry.flags):
            return [(entry.keys, bytes(entry.body))]
        rows = body.to_rows(body.decode(entry.body, body_codec(entry.flags), entry.count), entry.born_ms)
        return [(row.key, row.body) for row in rows]

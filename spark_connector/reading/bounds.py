"""How far the queues of a selection reach: the driver's view, asked over one connection per broker.

Invariant: bounds are confirmed ends, so nothing that a failover could take back is ever planned. Thread rule: one
thread (the source's own process on the driver).
"""

from __future__ import annotations

import contextlib

from remoting.protocol.bodies.bounds_body import (
    QueueBoundsReply,
    QueueBoundsRequest,
    decode_bounds_reply,
    encode_bounds_request,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import split_address
from spark_connector.brokers.connections import Address
from spark_connector.brokers.masters import ask_master, find_brokers
from spark_connector.errors import BrokerUnreachable
from spark_connector.options.option_table import ConnectionOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.selection import Bounds, Selection


class BoundsWatch:
    """The bounds of a selection over all brokers, with a memory of what was last seen for long polls."""

    def __init__(self, options: ConnectionOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._brokers: list[Address] = []
        self._replies: dict[Address, dict[tuple[str | None, tuple[str, ...]], QueueBoundsReply]] = {}
        """What each broker last said to each question, the latest last."""
        self._keys: dict[Address, dict[int, QueueKey]] = {}
        self._last: dict[tuple[Address, str | None], tuple[bytes, QueueBoundsReply, dict[QueueKey, Bounds]]] = {}
        """The last answer to each question: one that says the same again costs nothing."""
        self.addresses: dict[str, Address] = {}
        """Broker group → address, for the tasks."""
        self.readers: dict[str, Address] = {}
        """Broker group → address of processes beside it that serve ranges too, where it has some."""
        self.present: set[str] = set()
        """Broker groups that answered the last question."""

    def read(self, *, at_ms: int | None = None) -> dict[QueueKey, Bounds]:
        """Ask everything now."""
        self.present.clear()
        found: dict[QueueKey, Bounds] = {}
        for address in self._find():
            for request in self._selection.requests(at_ms=at_ms):
                answered = self._ask(address, request)
                found = {**found, **answered} if found else answered
        return found

    def wait(self, wait_ms: int) -> dict[QueueKey, Bounds]:
        """Ask everything, after the brokers held the question up to `wait_ms` if nothing moved since the last answer.

        With several brokers the time is divided among them, because they are asked one after the other.
        """
        self.present.clear()
        brokers = self._find()
        for address in brokers:
            if address not in self._replies or wait_ms == 0:
                continue
            request = self._selection.waiting_request(self._known(address), wait_ms // len(brokers))
            answered = self._ask(address, request)
            if len(brokers) == 1 and self._selection.is_answered_by(request):
                return answered
        return self.read()

    def _find(self) -> list[Address]:
        if not self._brokers:
            self._brokers = list(find_brokers(self._options).values())
        return self._brokers

    def _ask(self, address: Address, request: QueueBoundsRequest) -> dict[QueueKey, Bounds]:
        """Ask one broker for the queues to read; after a failure the next question looks the brokers up again."""
        try:
            command = Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(request))
            answer = ask_master(address, command, self._options)
        except BrokerUnreachable:
            self._brokers = []
            raise
        question = (address, request.filter)
        last = self._last.get(question)
        if last is not None and last[0] == answer.body:
            _, reply, found = last
        else:
            reply = decode_bounds_reply(answer.body)
            found = self._selection.collect(request, reply, self._keys.setdefault(address, {}))
            self._last[question] = (answer.body, reply, found)
        replies, asked = self._replies.setdefault(address, {}), (request.filter, tuple(request.topics))
        replies.pop(asked, None)
        replies[asked] = reply
        self.addresses[reply.broker] = address
        self.present.add(reply.broker)
        self._note_readers(reply)
        return found

    def _known(self, address: Address) -> dict[str, dict[str, int]]:
        """The ends last seen of a broker, as it wants to be told them."""
        known: dict[str, dict[str, int]] = {}
        for reply in self._replies[address].values():
            for queue in reply.queues:
                known.setdefault(queue.topic, {})[str(queue.queue)] = queue.max
        return known

    def _note_readers(self, reply: QueueBoundsReply) -> None:
        """Remember where else ranges are served; an address that cannot be one is as good as none."""
        self.readers.pop(reply.broker, None)
        if reply.readers is not None:
            with contextlib.suppress(ValueError):
                self.readers[reply.broker] = split_address(reply.readers)

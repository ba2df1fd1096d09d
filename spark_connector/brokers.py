"""Which brokers there are and how far their queues reach: the driver's view, asked over one connection per broker.

Invariant: bounds are confirmed ends, so nothing that a failover could take back is ever planned. Thread rule: one
thread (the source's own process on the driver).
"""

from __future__ import annotations

import contextlib

from remoting.protocol.bounds_body import (
    QueueBoundsReply,
    QueueBoundsRequest,
    decode_bounds_reply,
    encode_bounds_request,
)
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.route_body import ClusterInfo, decode_body
from remoting.transport.failures import split_address
from spark_connector.connections import Address, ask, check, say_address
from spark_connector.errors import BrokerUnreachable
from spark_connector.offsets import QueueKey
from spark_connector.options import ConnectionOptions
from spark_connector.selection import Bounds, Selection

MASTER_ID = 0
"""RocketMQ's number for the master of a broker group."""


def find_brokers(options: ConnectionOptions) -> dict[str, Address]:
    """Broker group → address of its master, by the first name server that answers, ordered by name.

    A server that is no name server is taken to be the one broker itself, under the name "". Raises BrokerUnreachable
    naming every address that was tried.
    """
    failures = []
    for server in options.name_server:
        try:
            reply = ask(server, Command(RequestCode.GET_BROKER_CLUSTER_INFO), options, refusal_is_error=False)
        except BrokerUnreachable as failure:
            failures.append(str(failure))
            continue
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return {"": server}
        info = decode_body(check(reply, server).body, ClusterInfo)
        found = {
            name: split_address(data.broker_addrs[MASTER_ID])
            for name, data in sorted(info.broker_addr_table.items())
            if MASTER_ID in data.broker_addrs
        }
        if found:
            return found
        failures.append(f"the name server at {say_address(server)} knows no broker with a master: is one running?")
    raise BrokerUnreachable("; ".join(failures))


class BoundsWatch:
    """The bounds of a selection over all brokers, with a memory of what was last seen for long polls."""

    def __init__(self, options: ConnectionOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._brokers: list[Address] = []
        self._known: dict[Address, dict[str, dict[str, int]]] = {}
        self.addresses: dict[str, Address] = {}
        """Broker group → address, for the tasks."""
        self.readers: dict[str, Address] = {}
        """Broker group → address of processes beside it that serve ranges too, where it has some."""

    def read(self, *, at_ms: int | None = None) -> dict[QueueKey, Bounds]:
        """Ask everything now."""
        found: dict[QueueKey, Bounds] = {}
        for address in self._find():
            for request in self._selection.requests(at_ms=at_ms):
                found |= self._selection.collect(request, self._ask(address, request))
        return found

    def wait(self, wait_ms: int) -> dict[QueueKey, Bounds]:
        """Ask everything, after the brokers held the question up to `wait_ms` if nothing moved since the last answer.

        With several brokers the time is divided among them, because they are asked one after the other.
        """
        brokers = self._find()
        for address in brokers:
            known = self._known.get(address)
            if known is None or wait_ms == 0:
                continue
            request = self._selection.waiting_request(known, wait_ms // len(brokers))
            reply = self._ask(address, request)
            if len(brokers) == 1 and self._selection.is_answered_by(request):
                return self._selection.collect(request, reply)
        return self.read()

    def _find(self) -> list[Address]:
        if not self._brokers:
            self._brokers = list(find_brokers(self._options).values())
        return self._brokers

    def _ask(self, address: Address, request: QueueBoundsRequest) -> QueueBoundsReply:
        """Ask one broker; after a failure the next question looks the brokers up again, a master may have moved."""
        try:
            answer = ask(address, Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(request)), self._options)
        except BrokerUnreachable:
            self._brokers = []
            raise
        reply = decode_bounds_reply(answer.body)
        self.addresses[reply.broker] = address
        self._note_readers(reply)
        known = self._known.setdefault(address, {})
        for queue in reply.queues:
            known.setdefault(queue.topic, {})[str(queue.queue)] = queue.max
        return reply

    def _note_readers(self, reply: QueueBoundsReply) -> None:
        """Remember where else ranges are served; an address that cannot be one is as good as none."""
        self.readers.pop(reply.broker, None)
        if reply.readers is not None:
            with contextlib.suppress(ValueError):
                self.readers[reply.broker] = split_address(reply.readers)

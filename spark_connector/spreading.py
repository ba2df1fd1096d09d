"""Which broker group each row goes to, where there are several: those that have the row's topic, by the route.

    row of a RocketMQ topic    the groups that have queues of it to write to, a batch of rows each in turn
    row of an MQTT topic       one group, the first by name that has its parent topic: what is in one MQTT topic keeps
                               its order, and the proxies follow one group
    a topic that no group has  the sink's home, which makes it

Invariant: with one group nothing is asked and nothing is split. Thread rule: one task; routes are kept for that long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from remoting.protocol import names
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.route_body import PERM_WRITE, TopicRoute, decode_body
from spark_connector.connections import Address, ask, check
from spark_connector.errors import BrokerUnreachable
from spark_connector.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Mapping[str, "pa.Array"]


class Spreading:
    """The groups of one task's rows."""

    def __init__(self, brokers: Mapping[str, Address], home: str, turn: int, options: WriteOptions) -> None:
        self._brokers = brokers
        self._home = home
        self._turn = turn
        self._options = options
        self._known: dict[bytes, tuple[str, ...]] = {}

    def split(self, columns: Columns, rows: int) -> Iterator[tuple[str, Columns, int]]:
        """Yield (group, columns, rows) of the rows of one batch, in their order within each group."""
        if len(self._brokers) == 1:
            yield next(iter(self._brokers)), columns, rows
            return
        self._turn += 1
        groups = list(self._brokers)
        chosen = self._chosen(columns, rows, groups)
        present = np.unique(chosen).tolist()
        if len(present) == 1:
            yield groups[present[0]], columns, rows
            return
        import pyarrow as pa

        for index in present:
            mask = pa.array(chosen == index)
            yield groups[index], {name: column.filter(mask) for name, column in columns.items()}, int(mask.true_count)

    def _chosen(self, columns: Columns, rows: int, groups: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The index of each row's group; a row without a topic is the encoder's to refuse."""
        chosen = np.full(rows, groups.index(self._home))
        for name in ("topic", "mqttTopic"):  # a row that has both is an MQTT row
            if name not in columns:
                continue
            coded = columns[name].dictionary_encode()
            topics = [_bytes(topic) for topic in coded.dictionary.to_pylist()]
            to = np.array([groups.index(self._group(topic, name == "mqttTopic")) for topic in topics], np.int64)
            valid = coded.is_valid().to_numpy(zero_copy_only=False)
            if len(to):
                at = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
                chosen = np.where(valid, to[at], chosen)
        return chosen

    def _group(self, topic: bytes, is_mqtt: bool) -> str:
        if is_mqtt:
            return self._groups(names.parent_topic(topic))[0]
        groups = self._groups(topic)
        return groups[self._turn % len(groups)]

    def _groups(self, topic: bytes) -> tuple[str, ...]:
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = self._routed(topic.decode("utf-8", "replace")) or (self._home,)
        return known

    def _routed(self, topic: str) -> tuple[str, ...]:
        """The groups that can be written to, of those with queues of the topic, by name."""
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        failures = []
        for server in self._options.name_server:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields)
            try:
                reply = ask(server, command, self._options, refusal_is_error=False)
            except BrokerUnreachable as failure:
                failures.append(str(failure))
                continue
            if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                return ()
            route = decode_body(check(reply, server).body, TopicRoute)
            having = {one.broker_name: one.perm for one in route.queue_datas if one.broker_name in self._brokers}
            return tuple(sorted(name for name, perm in having.items() if perm & PERM_WRITE) or sorted(having))
        raise BrokerUnreachable("; ".join(failures))


def _bytes(topic: str | bytes) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic

"""Which broker group and queue each row goes to, by the route of the row's topic.

    row of a RocketMQ topic
      with a queue number      that queue, of the group in the column `broker` or counted through all groups
      with a key               the queue of the key's hash among those of all groups: a key keeps its order
      with neither             the groups that have queues of it to write to, a batch of rows each in turn
    row of an MQTT topic       the group that has MQTT, as the controllers hold it: the proxies follow no other. Where
                               that is not decided, the first by name that has its parent topic
    a topic that no group has  the sink's home, which makes it with as many queues as it gives new topics

Queues of several groups are counted by the group's name, then number, as RocketMQ's Java producer has them. A group
that has no master now keeps its queues: rows of its keys wait for it, and so does every row of a topic that only such
groups have. Invariants: with one group nothing is asked for rows without key and queue number; a queue number is
honoured or refused; no row goes to a group that its topic is not in. Thread rule: one task; routes are kept for that
long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from remoting.protocol.bodies.controller_body import PERM_WRITE, QueueData, TopicConfig
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.image import QUEUE_INDEX_ANY
from remoting.protocol.records.names import queue_of
from spark_connector.brokers import GroupMaster, KnownGroups, absence, find_groups, patiently, topic_queues
from spark_connector.errors import OptionError
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing.columns import NOT_FOR_MQTT

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Mapping[str, "pa.Array"]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
NO_NUMBER = np.iinfo(np.int64).min
"""Stands for a queue number that a row does not have."""


class Partitioner:
    """The groups of one task's rows."""

    def __init__(
        self,
        brokers: KnownGroups,
        home: str,
        turn: int,
        options: WriteOptions,
        *,
        queue_column: str = "queueId",
    ) -> None:
        self._brokers = brokers
        self.masters: dict[str, GroupMaster] = dict(brokers.masters)
        """The masters of the groups that have one, and of those that were waited for."""
        self._order = list(self.masters)
        """Their names in the order in which they were found; rows know their group by its place here."""
        self._home = home
        self._turn = turn
        self._options = options
        self._queue_column = queue_column
        self._known: dict[bytes, tuple[QueueData, ...]] = {}

    def split(self, columns: Columns, rows: int) -> Iterator[tuple[str, Columns, int]]:
        """Yield (group, columns, rows) of the rows of one batch, in their order within each group.

        Where rows have a key or a queue number, a column `queue` has the queue of each. Raises OptionError for a queue
        that does not exist.
        """
        groups = self._order
        chosen = np.zeros(rows, np.int64)
        if len(groups) > 1 or self._brokers.absent:
            self._turn += 1
            chosen = self._chosen(columns, rows)
        if "key" in columns or "queueId" in columns:
            columns = self._with_queues(columns, rows, chosen)
        present = np.unique(chosen).tolist()
        if len(present) == 1:
            yield groups[present[0]], columns, rows
            return
        from spark_connector.columns.layout import numbers

        for index in present:
            mask = numbers(chosen == index)
            yield groups[index], {name: column.filter(mask) for name, column in columns.items()}, int(mask.true_count)

    def _chosen(self, columns: Columns, rows: int) -> Numbers:
        """The index of each row's group; a row without a topic is the encoder's to refuse."""
        chosen = np.full(rows, self._order.index(self._home))
        for name in ("topic", "mqttTopic"):  # a row that has both is an MQTT row
            if name not in columns:
                continue
            coded = columns[name].dictionary_encode()
            topics = [_bytes(topic) for topic in coded.dictionary.to_pylist()]
            to = np.array([self._order.index(self._group(topic, name == "mqttTopic")) for topic in topics], np.int64)
            valid = coded.is_valid().to_numpy(zero_copy_only=False)
            if len(to):
                at = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
                chosen = np.where(valid, to[at], chosen)
        return chosen

    def _with_queues(self, columns: Columns, rows: int, chosen: Numbers) -> Columns:
        """The columns with `queue`; `chosen` gets the groups of rows with a key or a queue number."""
        from spark_connector.columns import layout

        numbers = _numbers(columns.get("queueId"), rows)
        keys = columns["key"].dictionary_encode() if "key" in columns else None
        has_key = np.zeros(rows, bool) if keys is None else _has_text(keys)
        is_mqtt = np.zeros(rows, bool)
        if "mqttTopic" in columns:
            is_mqtt = columns["mqttTopic"].is_valid().to_numpy(zero_copy_only=False)
        if (numbers[is_mqtt] != NO_NUMBER).any():
            raise OptionError(f"column {self._queue_column!r} {NOT_FOR_MQTT}")
        has_number = numbers != NO_NUMBER
        wanted = ~is_mqtt & (has_number | has_key)
        queues = np.full(rows, QUEUE_INDEX_ANY, np.int64)
        for topic, at in _by_topic(columns.get("topic"), wanted):
            pairs = self._queues_of(topic)
            numbered, keyed = at[has_number[at]], at[~has_number[at]]
            index = np.zeros(rows, np.int64)
            if len(numbered):
                index[numbered] = self._numbered(topic, pairs, numbers[numbered], columns.get("broker"), numbered)
            if keys is not None and len(keyed):
                index[keyed] = _keyed(keys, keyed, len(pairs))
            used = np.unique(index[at])
            group_of, queue_at = np.zeros(len(pairs), np.int64), np.array([queue for _, queue in pairs])
            for one in used.tolist():
                group_of[one] = self._order.index(self._present([pairs[one][0]], topic)[0])
            chosen[at], queues[at] = group_of[index[at]], queue_at[index[at]]
        return {**columns, "queue": layout.numbers(queues.astype(np.uint16))}

    def _numbered(
        self, topic: bytes, pairs: list[tuple[str, int]], numbers: Numbers, brokers: pa.Array | None, at: Numbers
    ) -> Numbers:
        """The index among `pairs` of rows that name their queue; raises OptionError for one that is not there."""
        known: dict[tuple[str | None, int], int] = {(None, number): number for number in range(len(pairs))}
        if brokers is not None and any(group for group, _ in pairs):
            known |= {pair: index for index, pair in enumerate(pairs)}
            named = [
                None if name is None else _bytes(name).decode("utf-8", "replace")
                for name in brokers.take(_rows(at)).to_pylist()
            ]
        else:
            named = [None] * len(at)
        found = [known.get((name, number), -1) for name, number in zip(named, numbers.tolist(), strict=True)]
        if -1 in found:
            name, number = named[found.index(-1)], int(numbers[found.index(-1)])
            own = len(pairs) if name is None else sum(group == name for group, _ in pairs)
            whose = "" if name is None else f" at the broker {name!r} of column 'broker'"
            there = f"it has the queues 0 to {own - 1}" if own else "it has no queues"
            raise OptionError(
                f"column {self._queue_column!r} holds {number}, which is no queue of the topic {topic.decode()!r}"
                f"{whose}: {there}."
            )
        return np.array(found, np.int64)

    def _present(self, wanted: Sequence[str], topic: bytes) -> list[str]:
        """Those of the groups that have a master; where none has, as soon as one does.

        Raises GroupAbsent with the groups' names when that takes too long.
        """

        def looked() -> list[str]:
            if not any(name in self.masters for name in wanted):
                for name, master in find_groups(self._options).masters.items():
                    if name not in self.masters:
                        self.masters[name] = master
                        self._order.append(name)
            found = [name for name in wanted if name in self.masters]
            if not found:
                raise absence(wanted, f"rows are for its topic {topic.decode('utf-8', 'replace')!r}")
            return found

        return patiently(looked, self._options)

    def _queues_of(self, topic: bytes) -> list[tuple[str, int]]:
        """(group, queue) of every queue of a topic that can be written to, by name and number."""
        described = self._described(topic)
        if not described:
            # The home creates it as its first row would: only the broker knows how many queues it gives, which has to
            # be known before a key chooses one.
            fields = {"topic": topic.decode("utf-8", "replace"), "forWrite": "true"}
            described = self._known[topic] = self._asked(self._home, fields)
        if not described:
            raise OptionError(
                f"no broker knows how many queues the topic {topic.decode()!r} has, which a key or a queue number "
                "needs: create the topic first."
            )
        writable = [one for one in described if one.perm & PERM_WRITE] or described
        ordered = sorted(writable, key=lambda one: one.broker_name)
        return [(one.broker_name, queue) for one in ordered for queue in range(one.write_queue_nums)]

    def _group(self, topic: bytes, is_mqtt: bool) -> str:
        if is_mqtt:
            return self._of_mqtt(topic)
        groups = self._groups(topic)
        return groups[self._turn % len(groups)]

    def _of_mqtt(self, topic: bytes) -> str:
        if self._brokers.mqtt:
            return self._present([self._brokers.mqtt], topic)[0]
        return self._groups(names.parent_topic(topic))[0]

    def _groups(self, topic: bytes) -> list[str]:
        """The groups that can be written to, of those with queues of the topic, by name; else the sink's home.

        Waits while none of them has a master.
        """
        having = {one.broker_name: one.perm for one in self._described(topic)}
        wanted = sorted(name for name, perm in having.items() if perm & PERM_WRITE) or sorted(having)
        return self._present(wanted or [self._home], topic)

    def _described(self, topic: bytes) -> tuple[QueueData, ...]:
        """The groups and their numbers of queues of a topic; empty when no group has it."""
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = self._routed(topic)
        return known

    def _routed(self, topic: bytes) -> tuple[QueueData, ...]:
        name = topic.decode("utf-8", "replace")
        if "" in self.masters:
            return self._asked("", {"topic": name})  # a broker that was addressed itself has no routes

        def looked() -> tuple[QueueData, ...]:
            found = topic_queues(name, self._options)
            unknown = sorted(self._brokers.topics_unknown - self.masters.keys())
            if not found and unknown and (unknown := sorted(find_groups(self._options).topics_unknown)):
                raise absence(unknown, f"may have the topic {name!r}")
            return found

        return patiently(looked, self._options)

    def _asked(self, group: str, fields: dict[str, str]) -> tuple[QueueData, ...]:
        """The queues of a topic by the answer of one group; empty if it has none."""
        master = self.masters[group]
        command = Command(RequestCode.GET_TOPIC_CONFIG, fields=fields)
        reply = master.ask(command, refusal_is_error=False)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return ()
        found = msgspec.json.decode(master.check(reply).body, type=TopicConfig)
        return (QueueData(group, found.read_queue_nums, found.write_queue_nums, found.perm),)


def _bytes(topic: str | bytes) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic


def _numbers(column: pa.Array | None, rows: int) -> Numbers:
    """Queue numbers as given; NO_NUMBER where there is none."""
    if column is None:
        return np.full(rows, NO_NUMBER)
    import pyarrow as pa

    found: Numbers = column.cast(pa.int64()).fill_null(NO_NUMBER).to_numpy(zero_copy_only=False)
    if column.null_count < int((found == NO_NUMBER).sum()):  # a row has this very number: it is no queue either
        given = column.is_valid().to_numpy(zero_copy_only=False) & (found == NO_NUMBER)
        found = np.where(given, NO_NUMBER + 1, found)
    return found


def _has_text(keys: pa.DictionaryArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows have a key; an empty one is none."""
    filled = np.array([bool(key) for key in keys.dictionary.to_pylist()] or [False])
    at = keys.indices.fill_null(0).to_numpy(zero_copy_only=False)
    found: np.ndarray[Any, np.dtype[np.bool_]] = filled[at] & keys.is_valid().to_numpy(zero_copy_only=False)
    return found


def _by_topic(column: pa.Array | None, wanted: np.ndarray[Any, Any]) -> Iterator[tuple[bytes, Numbers]]:
    """(topic, row numbers) of the wanted rows; a row without a topic is the encoder's to refuse."""
    if column is None or not wanted.any():
        return
    coded = column.dictionary_encode()
    valid = coded.is_valid().to_numpy(zero_copy_only=False) & wanted
    at = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    for number, topic in enumerate(coded.dictionary.to_pylist()):
        rows = np.flatnonzero(valid & (at == number))
        if len(rows):
            yield _bytes(topic), rows


def _keyed(keys: pa.DictionaryArray, at: Numbers, count: int) -> Numbers:
    """The queue of each row's key, each key hashed once."""
    codes = keys.indices.take(_rows(at)).to_numpy(zero_copy_only=False)
    distinct, back = np.unique(codes, return_inverse=True)
    texts = keys.dictionary.take(_rows(distinct)).to_pylist()
    return np.array([queue_of(_bytes(text), count) for text in texts], np.int64)[back]


def _rows(at: Numbers) -> pa.Array:
    from spark_connector.columns.layout import numbers

    return numbers(at)

"""Where a stream stands: positions per queue, and their one canonical JSON form in Spark's checkpoint.

    {"v":1,"q":{topic:{broker:{"0":123}}}}            an end: every position is exclusive
    {... ,"init":1}                                   the position a new query begins at, before batch 0
    {... ,"from":{topic:{broker:{"0":100}}}}          the end of batch 0, which carries where batch 0 began
    {... ,"waitMs":{topic:{broker:{"0":1500}}}}       only in reports, never in a checkpoint: see `lag`
    {... ,"lost":250}                                 only in reports: messages that had expired before they were read

With the option `schema` = kafka the form is that of Kafka's source, topic → partition → offset, for tools that read the
progress of queries or their checkpoints. Everything else has the same form under names that no topic
can have:

    {":v1":{},":at:broker-a:orders":{},"orders":{"0":123}}
    ":initial":{}   ":from:orders":{"0":100}   ":waitMs:orders":{"0":1500}   ":lost":{"0":250}

Spark compares offsets as strings, so equal positions must give equal text: keys are sorted, nothing else is in it.
Spark logs only the *end* of batch 0 and asks for a new beginning after a restart; without "from" a `latest` stream
whose batch 0 failed would replay it empty and lose rows. Invariant: the process that plans batch 0 takes its beginning
from "from". Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from spark_connector.errors import OptionError
from spark_connector.queues import QueueKey

VERSION = 1
MOVED_FEW = 0.25
"""Up to this share of moved queues an offset is written by changing the previous one instead of from scratch."""
MARK, INITIAL, LOST = ":v1", ":initial", ":lost"
AT, FROM, WAITING = ":at:", ":from:", ":waitMs:"
FORMS_REMEMBERED = 4
"""Offsets one query has at hand: where it was, where it goes, what is there, and the answers in between."""


Positions = Mapping[QueueKey, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A point of a stream; `origin` only on the end of batch 0, `initial` only on a point no batch ended at.

    `waiting_ms` and `lost` only in what is reported as the latest: how long messages have been waiting there, and how
    many had expired before this run of the query could read them.
    """

    positions: Positions
    origin: Positions | None = None
    initial: bool = False
    waiting_ms: Positions | None = None
    lost: int = 0


def to_json(offset: StreamOffset, nested: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the dictionary that Spark turns into text; `nested` is what stands for the positions, if known."""
    form: dict[str, Any] = {"v": VERSION, "q": _nest(offset.positions) if nested is None else nested}
    if offset.origin is not None:
        form["from"] = _nest(offset.origin)
    if offset.initial:
        form["init"] = 1
    if offset.waiting_ms:
        form["waitMs"] = _nest(offset.waiting_ms)
    if offset.lost:
        form["lost"] = offset.lost
    return form


def to_kafka_json(offset: StreamOffset) -> dict[str, Any]:
    """The same in Kafka's form, in which each topic has its queues at one broker group."""
    form: dict[str, dict[str, int]] = {MARK: {}}
    parts = (("", offset.positions), (FROM, offset.origin), (WAITING, offset.waiting_ms))
    for prefix, positions in parts:
        for key in sorted(positions or {}):
            form.setdefault(f"{AT}{key.broker}:{key.topic}", {})
            form.setdefault(prefix + key.topic, {})[str(key.queue)] = (positions or {})[key]
    if offset.initial:
        form[INITIAL] = {}
    if offset.lost:
        form[LOST] = {"0": offset.lost}
    if offset.origin is not None and not offset.origin:
        form[FROM] = {}
    return dict(sorted(form.items()))


def from_json(form: Mapping[str, Any]) -> StreamOffset:
    """Read what `to_json` or `to_kafka_json` wrote; raises OptionError for anything else: it is of a checkpoint."""
    if isinstance(form, dict) and MARK in form:
        return _from_kafka(form)
    version = form.get("v")
    if not isinstance(version, int) and form and all(isinstance(queues, dict) for queues in form.values()):
        raise OptionError(
            f"the checkpoint's offset is one of Kafka's source ({form}), and offsets of Kafka mean nothing in another "
            "log: start with a new checkpoint and 'startingOffsets'"
        )
    if version != VERSION:
        raise OptionError(
            f"the checkpoint's offset has version {version!r}, this connector reads {VERSION}: the checkpoint belongs "
            "to another source or a newer release"
        )
    try:
        origin = _unnest(form["from"]) if "from" in form else None
        waiting = _unnest(form["waitMs"]) if "waitMs" in form else None
        return StreamOffset(_unnest(form["q"]), origin, bool(form.get("init")), waiting, int(form.get("lost", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        raise OptionError(f"the checkpoint's offset is damaged ({failure!r}): {form}") from None


def _from_kafka(form: Mapping[str, Any]) -> StreamOffset:
    try:
        groups = [name.removeprefix(AT).rpartition(":") for name in form if name.startswith(AT)]
        brokers = {topic: broker for broker, _, topic in groups}

        def under(prefix: str) -> dict[QueueKey, int] | None:
            topics = [topic for topic in brokers if prefix + topic in form]
            if not topics and prefix not in form:
                return None
            return {
                QueueKey(topic, brokers[topic], int(queue)): int(position)
                for topic in topics
                for queue, position in form[prefix + topic].items()
            }

        lost = form.get(LOST, {"0": 0})["0"]
        return StreamOffset(under("") or {}, under(FROM), INITIAL in form, under(WAITING), int(lost))
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        raise OptionError(f"the checkpoint's offset is damaged ({failure!r}): {form}") from None


def _nest(positions: Positions) -> dict[str, dict[str, dict[str, int]]]:
    nested: dict[str, dict[str, dict[str, int]]] = {}
    last: tuple[str, str] | None = None
    queues: dict[str, int] = {}
    for key in sorted(positions):
        topic, broker, queue = key
        if (topic, broker) != last:
            last = (topic, broker)
            queues = nested.setdefault(topic, {}).setdefault(broker, {})
        queues[str(queue)] = positions[key]
    return nested


def _moved(nested: Mapping[str, Any], positions: Positions) -> Mapping[str, Any]:
    """What stands for positions of which only these differ from those of `nested`; their order is the same."""
    if not positions:
        return nested
    changed = dict(nested)
    for topic in {key.topic for key in positions}:
        changed[topic] = {broker: dict(queues) for broker, queues in nested[topic].items()}
    for key, position in positions.items():
        changed[key.topic][key.broker][str(key.queue)] = position
    return changed


def _unnest(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[QueueKey, int]:
    return {
        QueueKey(topic, broker, int(queue)): int(position)
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue, position in queues.items()
    }


class _Known(NamedTuple):
    form: Mapping[str, Any]
    offset: StreamOffset


class OffsetMemory:
    """The last offsets read or written, so that ten thousand queues are not read again out of each form Spark brings.

    One query's process sees the same few offsets several times a batch: as an end, as the next start, to be planned.
    """

    def __init__(self, *, kafka: bool = False) -> None:
        self._is_kafka = kafka
        self._known: deque[_Known] = deque(maxlen=FORMS_REMEMBERED)

    def to_json(self, offset: StreamOffset) -> dict[str, Any]:
        """As the function of this name, or in Kafka's form; positions written before are not written again."""
        form = to_kafka_json(offset) if self._is_kafka else to_json(offset, self._nested(offset.positions))
        self._known.append(_Known(form, offset))
        return form

    def _nested(self, positions: Positions) -> Mapping[str, Any] | None:
        """What stands for the positions, if it was written before or little has moved since; None otherwise."""
        for form, known in reversed(self._known):
            if MARK in form:  # of a checkpoint that was written in Kafka's form
                continue
            before = known.positions
            if before is positions:
                return cast("Mapping[str, Any]", form["q"])
            if before.keys() != positions.keys():
                continue
            moved = [key for key, position in positions.items() if before[key] != position]
            if len(moved) <= len(positions) * MOVED_FEW:
                return _moved(form["q"], {key: positions[key] for key in moved})
        return None

    def from_json(self, form: Mapping[str, Any]) -> StreamOffset:
        """As the function of this name."""
        found = next((one.offset for one in reversed(self._known) if one.form == form), None)
        if found is None:
            found = from_json(form)
            self._known.append(_Known(form, found))
        return found


def total_behind(start: Positions, end: Positions, keys: Iterable[QueueKey]) -> int:
    """Messages between two points over the given queues; a queue that `start` does not know counts from 0."""
    return sum(max(0, end.get(key, 0) - start.get(key, 0)) for key in keys)

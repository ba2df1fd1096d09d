"""Where a stream stands: positions per queue, and their one canonical JSON form in Spark's checkpoint.

    {"v":1,"q":{topic:{broker:{"0":123}}}}            an end: every position is exclusive
    {... ,"init":1}                                   the position a new query begins at, before batch 0
    {... ,"from":{topic:{broker:{"0":100}}}}          the end of batch 0, which carries where batch 0 began
    {... ,"logs":{broker:"9f0c"},"ids":{topic:{broker:17}}}   whose offsets these are, see `Lives`
    {... ,"wanted":{"filters":["plant/#"]}}           with which filters, see `filters`
    {... ,"waitMs":{topic:{broker:{"0":1500}}}}       only in reports, never in a checkpoint: see `lag`
    {... ,"lost":250}                                 only in reports: messages that had expired before they were read
    {... ,"anew":2}                                   only in reports: queues that were begun anew, see `Lives`

With the option `schema` = kafka the form is that of Kafka's source, topic → partition → offset, for tools that read the
progress of queries or their checkpoints. Everything else has the same form under names that no topic
can have:

    {":v1":{},":at:broker-a:orders":{},"orders":{"0":123}}
    ":initial":{}   ":from:orders":{"0":100}   ":waitMs:orders":{"0":1500}   ":lost":{"0":250}   ":anew":{"0":2}
    ":wanted:{\"tags\":[\"a\"]}":{}
    ":log:broker-a:9f0c":{}   ":id:orders":{"0":17}

Spark compares offsets as strings, so equal positions must give equal text: keys are sorted, nothing else is in it.
Spark logs only the *end* of batch 0 and asks for a new beginning after a restart; without "from" a `latest` stream
whose batch 0 failed would replay it empty and lose rows. Invariant: the process that plans batch 0 takes its beginning
from "from".

An offset is a number within one life of a topic in one log. A topic that was deleted and made again, or another data
directory, counts from 0: with at least as many rows as were read, its first ones would be passed over as read. So every
offset says which logs and lives it is of; a checkpoint of an earlier release says nothing, and gets it with its next
batch. Pure.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from spark_connector.errors import OptionError
from spark_connector.queues import QueueKey
from spark_connector.reading.filters import EVERYTHING, Wanted, wanted_in

VERSION = 1
MOVED_FEW = 0.25
"""Up to this share of moved queues an offset is written by changing the previous one instead of from scratch."""
MARK, INITIAL, LOST, ANEW = ":v1", ":initial", ":lost", ":anew"
AT, FROM, WAITING, LOG, ID, WANTED = ":at:", ":from:", ":waitMs:", ":log:", ":id:", ":wanted:"
FORMS_REMEMBERED = 4
"""Offsets one query has at hand: where it was, where it goes, what is there, and the answers in between."""


Positions = Mapping[QueueKey, int]


@dataclass(frozen=True, slots=True)
class Lives:
    """Whose offsets some positions are: broker → its log, topic → broker → id of the topic's first queue there.

    Ids are those of a log, in which none is used twice. What is not in it is not known.
    """

    logs: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.logs or self.ids)

    def change(self, topic: str, broker: str, now: Lives) -> str:
        """What has become another one since, as the rest of a sentence; empty where nothing is known to have."""
        log, other = self.logs.get(broker), now.logs.get(broker)
        if log and other and log != other:
            return f"the log of {broker} is another one than before (its data directory was replaced)"
        life, later = self.ids.get(topic, {}).get(broker), now.ids.get(topic, {}).get(broker)
        if life is not None and later is not None and life != later:
            return f"the topic {topic!r} was deleted at {broker} and made again"
        return ""

    def then(self, now: Lives) -> Lives:
        """What is known now, and for the rest what was known before."""
        if not self or self == now:
            return now
        ids = {topic: {**self.ids.get(topic, {}), **now.ids.get(topic, {})} for topic in {**self.ids, **now.ids}}
        return Lives({**self.logs, **now.logs}, ids)


NOT_KNOWN = Lives()


def begun_anew(positions: Positions, before: Lives, now: Lives) -> dict[QueueKey, str]:
    """The queues of `positions` that are others now than these positions are of, each with the reason."""
    if not before or before == now:
        return {}
    changes: dict[tuple[str, str], str] = {}
    found = {}
    for key in positions:
        if (key.topic, key.broker) not in changes:
            changes[key.topic, key.broker] = before.change(key.topic, key.broker, now)
        if reason := changes[key.topic, key.broker]:
            found[key] = reason
    return found


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A point of a stream; `origin` only on the end of batch 0, `initial` only on a point no batch ended at.

    `waiting_ms`, `lost` and `anew` only in what is reported as the latest: how long messages have been waiting there,
    how many had expired before this run of the query could read them, and how many queues it began anew.
    """

    positions: Positions
    origin: Positions | None = None
    initial: bool = False
    waiting_ms: Positions | None = None
    lost: int = 0
    lives: Lives = NOT_KNOWN
    wanted: Wanted = EVERYTHING
    anew: int = 0


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
    if offset.anew:
        form["anew"] = offset.anew
    if offset.lives:
        form["logs"] = dict(sorted(offset.lives.logs.items()))
        form["ids"] = {topic: dict(sorted(ids.items())) for topic, ids in sorted(offset.lives.ids.items())}
    if offset.wanted:
        form["wanted"] = offset.wanted.to_json()
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
    if offset.anew:
        form[ANEW] = {"0": offset.anew}
    if offset.wanted:
        form[WANTED + json.dumps(offset.wanted.to_json(), separators=(",", ":"))] = {}
    form |= {f"{LOG}{broker}:{log}": {} for broker, log in offset.lives.logs.items()}
    for topic, ids in offset.lives.ids.items():
        form[ID + topic] = {"0": next(iter(ids.values()))}
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
        lives = Lives(_texts(form.get("logs", {})), _lives(form.get("ids", {})))
        lost, anew, wanted = int(form.get("lost", 0)), int(form.get("anew", 0)), wanted_in(form.get("wanted", {}))
        return StreamOffset(_unnest(form["q"]), origin, bool(form.get("init")), waiting, lost, lives, wanted, anew)
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

        lost, anew = (int(form.get(name, {"0": 0})["0"]) for name in (LOST, ANEW))
        logs = dict(name.removeprefix(LOG).rsplit(":", 1) for name in form if name.startswith(LOG))
        ids = {topic: {broker: int(form[ID + topic]["0"])} for topic, broker in brokers.items() if ID + topic in form}
        text = next((name.removeprefix(WANTED) for name in form if name.startswith(WANTED)), "{}")
        lives, wanted = Lives(logs, ids), wanted_in(json.loads(text))
        return StreamOffset(under("") or {}, under(FROM), INITIAL in form, under(WAITING), lost, lives, wanted, anew)
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


def _texts(given: Mapping[str, str]) -> dict[str, str]:
    return {str(name): str(text) for name, text in given.items()}


def _lives(given: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    return {topic: {broker: int(life) for broker, life in ids.items()} for topic, ids in given.items()}


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

"""A request for messages by POP, and its answer, as they are on the wire: of a master, and of a replica in its place.

The queues of a topic take turns: each pop begins with the next one. The group's retry topic comes first in every fifth
pop, else last, so that neither starves the other. By priority the highest queue comes first, each with the queue of
the retry topic that has its messages.

Invariant: what is asked for and cannot be given is Refused before anything is taken. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.groups.feature import TAG, Selection, selection
from broker.groups.groups import PRIORITY_FACTOR_MAX, GroupConfig
from broker.pop.check_points import INVISIBLE_MS_MAX, Owned
from broker.pop.handles import offset_info, order_info
from broker.pop.ordered import ATTEMPT_BYTES_MAX, OrderedBatch
from broker.requests import flag, number
from broker.rocketmq.stored_message import ipv4_host, origin_of
from broker.topics.topics import TopicSettings, is_light
from remoting.native import core as native
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names

RETRY, DEAD, GONE, DAMAGED = "retry", "dead", "gone", "damaged"
"""Outcomes: to the retry topic; to the dead-letter topic; message, topic or group is not there any more; its record is
damaged: in order it is passed over, else it stays in flight and is counted once."""
ALL_QUEUES = -1
MESSAGES_MAX = 32
"""Most messages of one pop, RocketMQ's limit too."""
FROM_END = 1
"""Value of `initMode` for a group that begins at the end."""
ORDERED_REVIVE_QUEUE = 999
"""`reviveQid` of an answer in order."""
RETRY_FIRST_EVERY = 5
EXAMINED_MAX = 1_024
"""Most messages of one queue that one pop holds against its filter."""

Refuse = Callable[[str, int, str], Refused]
"""(reason for the counter, code, remark) -> the refusal, counted."""
Place = tuple[str, int, int]
"""Topic, queue number, queue id."""


@dataclass(slots=True)
class PopAsk:
    """One request for messages."""

    group: str
    topic: str
    index: int
    count: int
    invisible_ms: int
    wait_ms: int
    from_end: bool
    wanted: Selection | None
    ordered: bool = False
    attempt: bytes = b""
    """In order: the same attempt gets the same messages, if the client lost the answer."""


@dataclass(slots=True)
class Taken:
    """Messages of one queue for one pop."""

    topic: str
    index: int
    queue_id: int
    front: int
    """The next offset to give."""
    rest: int
    """How many messages remain behind it."""
    batch: OrderedBatch | None = None
    """What the group has of the queue in order."""
    ordered: bool = False
    reached: int = 0
    """The offset behind the last message that was examined: below `front` where only messages of `batch` were."""
    gone: int = 0
    """How many messages of `batch` are not in the log any more."""
    damaged: int = 0
    """How many of them are damaged: they are passed over."""
    moved: bool = False
    """Whether messages behind `batch` were given or passed over."""
    offsets: list[int] = field(default_factory=list)
    records: list[memoryview] = field(default_factory=list)


def asked(group: str, topic: str, fields: Mapping[str, str], refuse: Refuse) -> PopAsk:
    """What the fields of a request ask for, without the time of the ownership. Refused where they are malformed."""
    count = number(fields, "maxMsgNums", MESSAGES_MAX)
    if not 0 < count <= MESSAGES_MAX:
        raise refuse("count", ResponseCode.INVALID_PARAMETER, f"maxMsgNums {count} is not in 1..32")
    expression = fields.get("exp") or "*"
    attempt = fields.get("attemptId", "").encode()
    if len(attempt) > ATTEMPT_BYTES_MAX:
        remark = f"attemptId has {len(attempt)} bytes, more than {ATTEMPT_BYTES_MAX}"
        raise refuse("attempt", ResponseCode.INVALID_PARAMETER, remark)
    ordered = flag(fields, "order")
    return PopAsk(
        group=group,
        topic=topic,
        index=number(fields, "queueId", ALL_QUEUES),
        count=count,
        invisible_ms=0,
        wait_ms=number(fields, "pollTime", 0),
        from_end=number(fields, "initMode", 0) == FROM_END,
        wanted=selection(expression, fields.get("expType") or TAG),
        ordered=ordered,
        attempt=attempt if ordered else b"",
    )


def invisible_time(fields: Mapping[str, str], refuse: Refuse) -> int:
    """For how long the group is to own what it is given, in ms. Refused where that is too long, or no time."""
    invisible_ms = number(fields, "invisibleTime")
    if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
        remark = f"invisibleTime {invisible_ms} is not in 1..{INVISIBLE_MS_MAX}"
        raise refuse("time", ResponseCode.INVALID_PARAMETER, remark)
    return invisible_ms


def beginning(low: int, high: int, *, from_end: bool) -> int:
    """Where a group begins in a queue whose messages have the offsets from `low` to before `high`.

    At the first message, unless the group begins at the end and the queue has lost messages already. A young queue is
    read from its first message, as by groups that pull and in RocketMQ: what was sent before the first consumer of a
    new topic came is consumed too.
    """
    return high if from_end and low > 0 else low


def require_topic(ask: PopAsk, refuse: Refuse) -> None:
    """Refused for a name that is of no topic which is popped."""
    if is_light(ask.topic) or ask.topic.startswith(names.RETRY_PREFIX):
        raise refuse("topic", ResponseCode.INVALID_PARAMETER, f"the topic [{ask.topic}] cannot be popped")


def require_poppable(ask: PopAsk, config: TopicSettings, *, reads_lite: bool, refuse: Refuse) -> None:
    """Refused for what no group may pop of a topic. `reads_lite`: whether the group reads its lite topics."""
    if reads_lite:
        remark = f"the group [{ask.group}] reads [{ask.topic}] by subscriptions to lite topics (POP_LITE) only"
        raise refuse("mode", ResponseCode.ILLEGAL_OPERATION, remark)
    if config.takes_batches:
        raise refuse("topic", ResponseCode.INVALID_PARAMETER, f"[{ask.topic}] is a batch topic: pull it")
    if ask.index >= config.read_queue_count or ask.index < ALL_QUEUES:
        remark = f"queueId[{ask.index}] is illegal, topic:[{ask.topic}] has {config.read_queue_count} queues"
        raise refuse("queue", ResponseCode.INVALID_PARAMETER, remark)


def goes_by_priority(settings: TopicSettings | None, config: GroupConfig | None, turn: int) -> bool:
    """Whether a pop takes from the highest queue of a topic first: all do, or as many as the group's factor says."""
    if settings is None or not settings.has_priorities:
        return False
    factor = PRIORITY_FACTOR_MAX if config is None else config.priority_factor
    return turn % PRIORITY_FACTOR_MAX < factor


def by_turns(topic: str, queues: Sequence[Place], retries: Sequence[Place], turn: int, *, ranked: bool) -> list[Place]:
    """The order in which a pop of the topic takes from its queues and the retry topic's; `ranked`: by priority."""
    retry_first = turn % RETRY_FIRST_EVERY == 0
    if ranked:
        return sorted([*queues, *retries], key=lambda place: (-place[1], (place[0] == topic) == retry_first))
    first = turn % len(queues)
    found = [*queues[first:], *queues[:first]]
    return [*retries, *found] if retry_first else [*found, *retries]


def mark_ordered(reply: Command, given: Iterable[tuple[Taken, Mapping[int, int]]]) -> None:
    """Say in an answer that its messages are in order. With what is taken of a queue: offset -> deliveries before."""
    counts = [(each.topic, each.index, {offset: times[offset] for offset in each.offsets}) for each, times in given]
    reply.fields["reviveQid"] = str(ORDERED_REVIVE_QUEUE)
    reply.fields["orderCountInfo"] = order_info(counts)


def popped(
    command: Command, given: Sequence[Taken], owned: Owned, *, rest: int, address: tuple[str, int], cluster_name: str
) -> tuple[Command, bool]:
    """The answer with these messages, and whether some of them ask for a reply to an MQTT client.

    `address`: what messages name as the host that they are stored at.
    """
    host, origin = ipv4_host(*address), origin_of(cluster_name)
    starts, offsets = offset_info((each.topic, each.index, each.offsets) for each in given)
    fields = {
        "popTime": str(owned[0]),
        "invisibleTime": str(owned[1]),
        "reviveQid": "0",
        "restNum": str(rest),
        "startOffsetInfo": starts,
        "msgOffsetInfo": offsets,
    }
    bodies, asks = [], False
    for each in given:
        made = native.core.stored(each.records, each.offsets, each.index, host, origin, None)
        assert made is not None, "topics with batches are not popped"
        bodies.append(made[0])
        asks |= bool(made[2])
    return command.reply(0, "FOUND", fields, b"".join(bodies)), asks

"""What is mirrored from a RocketMQ cluster, and where to: topics, queues and groups; what is not, and why.

The queues of one source broker become the queues of the same numbers of one broker group here. Where several source
brokers share a group, the queues of the later ones follow those of the earlier ones, in the order of their names. What
was copied before stays where it is, and a queue whose number is taken gets the next free one.

Invariants: each source queue has one target queue, for ever, and no two have the same; the same clusters and the same
copies give the same plan. What is left out has a reason. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from remoting.protocol.bodies.controller_body import PERM_READ, TopicConfig
from remoting.protocol.records.names import DLQ_PREFIX, RETRY_PREFIX

Chosen = Callable[[str], bool]
"""Whether the user wants a topic or a group, by its name."""
SourceQueue = tuple[str, str, int]
"""(topic, source broker, queue number)."""
Place = tuple[str, int]
"""(target broker, queue number)."""
BrokerTopics = Mapping[str, Mapping[str, TopicConfig]]
"""Broker -> its topics by name."""

ELSEWHERE = "waits in a system topic there; the source delivers it to its topic, and it is copied then"
SYSTEM_TOPICS = {
    "SCHEDULE_TOPIC_XXXX": f"a delayed message {ELSEWHERE}",
    "rmq_sys_wheel_timer": f"a delayed message {ELSEWHERE}",
    "RMQ_SYS_TRANS_HALF_TOPIC": f"a half message {ELSEWHERE} if its producer commits it",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": "the source's own notes on half messages",
    "TRANS_CHECK_MAX_TIME_TOPIC": "half messages that were never decided",
}
"""Topics of RocketMQ's brokers in which messages of users wait, and what becomes of those."""
SYSTEM_NAMES = frozenset({"TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "DefaultCluster"})
SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_", "%SYS%", "%LMQ%")
SYSTEM_GROUPS = frozenset(
    {"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "SELF_TEST_P_GROUP", "__MONITOR_CONSUMER",
     "CLIENT_INNER_PRODUCER", "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "ONS_HTTP_PROXY"}
)  # fmt: skip
SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_ONS", "CID_ONSAPI_", "rmq_sys_")
QUEUE_TYPE = "queue.type"
MESSAGE_TYPE = "message.type"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"


@dataclass(frozen=True, slots=True)
class QueueCopy:
    """One queue to mirror: broker and number at the source, group and number here."""

    topic: str
    source_broker: str
    source_queue: int
    target_broker: str
    target_queue: int

    def named(self, migration: str) -> str:
        """The name of the source queue in the target's records."""
        return f"{migration}/{self.source_broker}/{self.source_queue}"


@dataclass(slots=True)
class Plan:
    """What is mirrored: queues, topics by target broker, groups, and what is not."""

    queues: list[QueueCopy] = field(default_factory=list)
    topics: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    """Target broker -> topics by name as they are to be there, with the permission they have at the source."""
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Subscription groups by name, with the fields of RocketMQ."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What is not mirrored -> why."""


def make_plan(
    sources: BrokerTopics,
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]],
    targets: Iterable[str],
    *,
    wanted_topic: Chosen = lambda _: True,
    wanted_group: Chosen = lambda _: True,
    clusters: Iterable[str] = (),
    copied: Mapping[SourceQueue, Place] | None = None,
) -> Plan:
    """The plan for these source brokers and their groups. `targets`: broker groups here, at least one; `copied`: where
    queues were copied to before."""
    plan, names = Plan(), sorted(targets)
    reserved = {*SYSTEM_NAMES, *sources, *clusters}
    placed = {broker: names[at % len(names)] for at, broker in enumerate(sorted(sources))}
    for broker, listed in sorted(groups.items()):
        for name, group in listed.items():
            if name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIXES) or not wanted_group(name):
                continue
            plan.groups.setdefault(name, _portable(name, group, plan, broker))
    for topic in sorted({name for configs in sources.values() for name in configs}):
        if not _is_mirrored(topic, plan, reserved, wanted_topic):
            continue
        for broker, configs in sorted(sources.items()):
            if topic in configs and _is_possible(topic, configs[topic], plan):
                _add(plan, configs[topic], broker, placed[broker], copied or {})
    return plan


def _is_mirrored(topic: str, plan: Plan, reserved: set[str], wanted: Chosen) -> bool:
    if topic in SYSTEM_TOPICS:
        plan.left_out[topic] = SYSTEM_TOPICS[topic]
        return False
    if topic in reserved or topic.startswith(SYSTEM_PREFIXES) or topic.endswith(REPLY_TOPIC_SUFFIX):
        return False
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):  # also the retry topics of POP, whose names go on with the topic's
            group = topic.removeprefix(prefix)
            return any(group == known or group.startswith((f"{known}_", f"{known}+")) for known in plan.groups)
    return wanted(topic)


def _is_possible(topic: str, config: TopicConfig, plan: Plan) -> bool:
    attributes = config.attributes or {}
    if not config.perm & PERM_READ:
        plan.left_out[topic] = "it cannot be read: its permission has no R"
    elif attributes.get(QUEUE_TYPE, "SimpleCQ") != "SimpleCQ":
        plan.left_out[topic] = f"its queues are of the type {attributes[QUEUE_TYPE]}"
    elif attributes.get(MESSAGE_TYPE) == "LITE":
        plan.left_out[topic] = "it is the parent of lite topics"
    else:
        return True
    return False


def _add(plan: Plan, config: TopicConfig, broker: str, target: str, copied: Mapping[SourceQueue, Place]) -> None:
    """The queues of a topic at one source broker."""
    topic = config.topic_name
    present = plan.topics.get(target, {}).get(topic)
    first = 0 if present is None else max(present.read_queue_nums, present.write_queue_nums)
    taken = {place for (named, _broker, _number), place in copied.items() if named == topic}
    taken |= {(one.target_broker, one.target_queue) for one in plan.queues if one.topic == topic}
    for number in range(max(config.read_queue_nums, config.write_queue_nums)):
        place = copied.get((topic, broker, number))
        if place is None:
            free = next(at for at in count(first + number) if (target, at) not in taken)
            place = target, free
        taken.add(place)
        plan.queues.append(QueueCopy(topic, broker, number, *place))
        _grow(plan, config, place)


def _grow(plan: Plan, config: TopicConfig, place: Place) -> None:
    """Let the topic have this place at its target, in the shape that it has at the source."""
    target, number = place
    hidden = config.read_queue_nums - config.write_queue_nums
    kept = {name: value for name, value in (config.attributes or {}).items() if name == MESSAGE_TYPE}
    topics = plan.topics.setdefault(target, {})
    known = topics.get(config.topic_name)
    needed = number + 1 if known is None else max(number + 1, known.read_queue_nums, known.write_queue_nums)
    topics[config.topic_name] = TopicConfig(
        config.topic_name, needed + min(0, hidden), needed - max(0, hidden), config.perm, config.topic_filter_type,
        config.topic_sys_flag, config.order, kept,
    )  # fmt: skip


def _portable(name: str, group: Mapping[str, Any], plan: Plan, broker: str) -> dict[str, Any]:
    """A group's settings without what is not offered here."""
    found = {key: value for key, value in group.items() if key != "subscriptionDataSet"}
    policy = found.pop("groupRetryPolicy", None)
    if isinstance(policy, dict) and any(value for key, value in policy.items() if key != "type"):
        plan.left_out[f"group {name}"] = f"its retry policy at {broker}: retries follow the delay levels here"
    return found

"""Topic table: name -> number of queues, permission, attributes; the ids of a topic's queues, and which are visible.

A parent topic has N ordinary queues. Each is a store queue named `topic \x00 index`; a zero byte cannot occur in a
topic name, so these names never collide with light queues. The configuration is one JSON document per topic (RocketMQ's
own field names) in the TOPIC state table. One that was made by use has the user for whom it counts there, as `madeBy`,
which no client is shown; a change by an administrator takes that away.

Attributes are named as RocketMQ names them. A request writes changes as `+name=value,-name`; a topic keeps plain `name:
value`.

`ClientQueues`: RocketMQ's clients name a queue by (topic, queue id): a parent queue, or a light queue by its name. A
topic that begins with %LMQ% is a light queue's own name and has the single queue 0; such a queue need not exist yet.
`VisibleQueues`: queues of staged rows, of waiting messages and queues that do not exist are answered alike: no queue.

Invariants: the TOPIC record is written after the records that create its queues, so a topic that is durable has all its
queues. Queues are only ever added; lowering a queue count hides the surplus from producers, never from readers. A kept
attribute is one of `ATTRIBUTES` with a value that its rule accepts, and one that is fixed at creation never changes
afterwards. Loop thread only.

Topics that the controllers do not have yet, and the answers that wait until they do.

An answer that announces a topic to its sender (a send, 17, 34, 200) waits until every reachable controller has
acknowledged the topic's registration, so that a route query that follows it succeeds. Unreachable controllers are not
waited for, and one that does not answer within `wait_ms` is left out until it answers again: messages are stored even
with every controller down. Topics announced without that acknowledgement are counted, by reason.

Invariants: every callback is called once; a topic that no answer has to wait for is not in `pending`, so the usual
check costs one look-up in an empty dict. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.rights import of_topic
from remoting.protocol.errors import LocalMisuse, NotOffered, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


QUEUE_TYPE = "queue.type"
SIMPLE_QUEUE = "SimpleCQ"
BATCH_QUEUE = "BatchCQ"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
MESSAGE_TYPE, PRIORITY, LITE = "message.type", "PRIORITY", "LITE"
LITE_EXPIRATION = "lite.topic.expiration"
LITE_EXPIRATION_MINUTES_MAX = 30 * 24 * 60
NUMBER_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: the rule for its value, the text for a value that breaks it, whether it is fixed at creation."""

    accepts: Callable[[str], bool]
    needed: str
    fixed: bool = False


def _one_of(*values: str, fixed: bool = False) -> Attribute:
    return Attribute(values.__contains__, " or ".join(values), fixed)


def _number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= NUMBER_DIGITS_MAX


def _expiration(value: str) -> bool:
    return value == "-1" or (_number(value) and int(value) <= LITE_EXPIRATION_MINUTES_MAX)


ATTRIBUTES: dict[str, Attribute] = {
    QUEUE_TYPE: _one_of(SIMPLE_QUEUE, BATCH_QUEUE, fixed=True),
    RETENTION_MS: Attribute(_number, "a number of milliseconds, 0 for ever"),
    RETENTION_BYTES: Attribute(_number, "a number of bytes, 0 without a limit"),
    MESSAGE_TYPE: _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", PRIORITY, LITE),
    LITE_EXPIRATION: Attribute(_expiration, f"-1 or a number of minutes up to {LITE_EXPIRATION_MINUTES_MAX}"),
}
"""Every attribute a topic can have; an unknown one is refused, because it would have no effect."""


def parse_changes(text: str) -> dict[str, str | None]:
    """Name -> new value, or None to remove it. Refused for a form that is neither `+name=value` nor `-name`."""
    changes: dict[str, str | None] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        sign, (name, equals, value) = part[0], part[1:].partition("=")
        if sign not in "+-" or not name or (sign == "+") != bool(equals and value):
            raise _refused(f"attribute change {part!r} is neither +name=value nor -name")
        if name in changes:
            raise _refused(f"attribute {name!r} is named twice")
        changes[name] = value if sign == "+" else None
    return changes


def changed(kept: Mapping[str, str], text: str, *, created: bool) -> dict[str, str]:
    """The attributes after a request's changes.

    Raises:
        Refused: an unknown name, a value outside its rule, or a change of what is fixed at creation.
    """
    result = dict(kept)
    for name, value in parse_changes(text).items():
        attribute = ATTRIBUTES.get(name)
        if attribute is None:
            remark = f"attribute {name!r} is not supported here; there are: {', '.join(sorted(ATTRIBUTES))}"
            raise NotOffered(ResponseCode.INVALID_PARAMETER, remark)
        if value is not None and not attribute.accepts(value):
            remark = f"attribute {name!r} is {attribute.needed}, not {value!r}"
            raise NotOffered(ResponseCode.INVALID_PARAMETER, remark)
        if attribute.fixed and not created and value != result.get(name):
            raise _refused(f"attribute {name!r} is fixed when the topic is created")
        if value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def is_batch(attributes: Mapping[str, str]) -> bool:
    """True for a topic that takes batch records."""
    return attributes.get(QUEUE_TYPE) == BATCH_QUEUE


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)


PERMISSION_READ = 4
PERMISSION_WRITE = 2
PERMISSION_INHERIT = 1
DEFAULT_TOPIC = "TBW102"
"""Clients ask for the route of this topic when theirs does not exist yet (automatic creation)."""


class TopicSettings(msgspec.Struct, kw_only=True, frozen=True):
    """One topic with the fields of RocketMQ's tools."""

    name: str = msgspec.field(name="topicName")
    read_queue_count: int = msgspec.field(name="readQueueNums", default=4)
    write_queue_count: int = msgspec.field(name="writeQueueNums", default=4)
    permission: int = msgspec.field(name="perm", default=PERMISSION_READ | PERMISSION_WRITE)
    filter_type: str = msgspec.field(name="topicFilterType", default="SINGLE_TAG")
    system_flag: int = msgspec.field(name="topicSysFlag", default=0)
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def queue_count(self) -> int:
        """Queues that exist: the larger of what readers and writers see."""
        return max(self.read_queue_count, self.write_queue_count)

    @property
    def takes_batches(self) -> bool:
        """True for queue type BatchCQ: a producer may store a batch of messages as one record."""
        return is_batch(self.attributes)

    @property
    def has_priorities(self) -> bool:
        """True for message type PRIORITY: its queues are the priorities of its messages."""
        return self.attributes.get(MESSAGE_TYPE) == PRIORITY

    @property
    def takes_lite(self) -> bool:
        """True for message type LITE: the parent of lite topics."""
        return self.attributes.get(MESSAGE_TYPE) == LITE


PRIORITY_KEY = b"_SYS_MSG_PRIORITY_"
PRIORITY_DIGITS_MAX = 10
"""A priority is a Java int."""


def queue_of_priority(config: TopicSettings, parts: Sequence[Mapping[bytes, bytes]], wanted: int) -> int:
    """The queue of the messages of a request, given by their properties; `wanted` without priorities.

    The queues of a topic with priorities are its priorities. A priority that is higher than those is in the last queue;
    a message without the property has the lowest, 0.

    Raises:
        Refused: MESSAGE_ILLEGAL where the topic has no priorities, a priority is not a number, or those of a batch
            differ.
    """
    if not config.has_priorities:
        if any(properties.get(PRIORITY_KEY, b"false") not in (b"false", b"") for properties in parts):
            remark = f"the topic [{config.name}] has no priorities: set its attribute message.type to PRIORITY"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        return wanted
    queues = {_queue_of_priority(config, properties.get(PRIORITY_KEY, b"0")) for properties in parts}
    if len(queues) > 1:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch have different priorities")
    return queues.pop()


def _queue_of_priority(config: TopicSettings, text: bytes) -> int:
    if not text.isdigit() or len(text) > PRIORITY_DIGITS_MAX:
        remark = f"the priority {text.decode(errors='replace')!r} is not a number from 0"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    return min(int(text), config.write_queue_count - 1)


_decode = msgspec.json.Decoder(TopicSettings).decode
_encode = msgspec.json.Encoder().encode


def settings_in(value: bytes) -> TopicSettings:
    """The settings in a value of TOPIC."""
    return _decode(value)


_MAKER_KEY = b'{"madeBy":'


class _Made(msgspec.Struct):
    """What the record of a topic says beside its settings, which clients are shown."""

    maker: str = msgspec.field(name="madeBy", default="")


_decode_made = msgspec.json.Decoder(_Made).decode


def _made_by(config: TopicSettings, maker: str) -> bytes:
    """The value of TOPIC for a topic that counts for this user, if any."""
    settings: bytes = _encode(config)
    return _MAKER_KEY + _encode(maker) + b"," + settings[1:] if maker else settings


def _maker_in(value: bytes) -> str:
    return _decode_made(value).maker if value.startswith(_MAKER_KEY) else ""


def queue_name(topic: str, index: int) -> bytes:
    """Store name of queue `index` of a parent topic."""
    return topic.encode() + b"\x00" + str(index).encode()


class Topics:
    """The topic table; creates topics and their queues."""

    def __init__(
        self,
        store: LogStore,
        *,
        topics_max: int,
        per_user_max: int = 0,
        asking_user: Callable[[], str] = lambda: "",
        refused: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`asking_user()`: for whom a topic made by use counts, empty: nobody; `refused(reason)` counts."""
        self._store = store
        self.topics_max = topics_max
        self.per_user_max = per_user_max
        self._asking_user = asking_user
        self._refused = refused
        self._makers: dict[str, str] = {}
        """Topic made by use -> its user."""
        self._made: Counter[str] = Counter()
        """User -> topics made by use."""
        self._configs: dict[str, TopicSettings] = {}
        self._positions: dict[str, int] = {}
        self._queue_ids: dict[str, tuple[int, ...]] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self._listeners: list[Callable[[str, bool], None]] = []
        self.version = 0
        for key, (value, position) in list(store.state.items(state_kinds.TOPIC)):
            self._apply(key.decode(), _decode(value), position, _maker_in(value))

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[TopicSettings]:
        return iter(list(self._configs.values()))

    def get(self, name: str) -> TopicSettings | None:
        """Configuration of a topic, or None when there is no such topic."""
        return self._configs.get(name)

    def require(self, name: str) -> TopicSettings:
        """Configuration of a topic; Refused(TOPIC_NOT_EXIST) when there is none."""
        config = self._configs.get(name)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic [{name}] not exist, apply first please!")
        return config

    def position(self, name: str) -> int:
        """Log position that a reply showing the topic waits for: below it its creation is durable."""
        return self._positions.get(name, 0)

    def queue_ids(self, name: str) -> tuple[int, ...]:
        """Ids of all queues of a topic by index; empty when the topic does not exist."""
        return self._queue_ids.get(name, ())

    def owner(self, queue_id: int) -> tuple[str, int] | None:
        """(topic, index) a queue id belongs to; None for light queues."""
        return self._owners.get(queue_id)

    def on_change(self, listener: Callable[[str, bool], None]) -> None:
        """Call `listener(name, created)` after every creation, change or removal."""
        self._listeners.append(listener)

    def ensure(self, name: str, queue_count: int, *, permission: int = 6, maker: str | None = None) -> TopicSettings:
        """The topic's configuration, creating it with `queue_count` queues when it does not exist.

        It counts for the user `maker`; None: who asks now, empty: nobody.

        Raises:
            Refused: the name is not valid, or there are too many topics, in all or of this user.
        """
        config = self._configs.get(name)
        if config is not None:
            return config
        maker = self._asking_user() if maker is None else maker
        if maker and self.per_user_max and self._made[maker] >= self.per_user_max:
            self._refused("topics_per_user")
            remark = f"topics_per_user_max: {maker} has made {self._made[maker]} topics and groups by use already"
            raise Refused(ResponseCode.FLOW_CONTROL, remark)
        made = TopicSettings(
            name=name,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            permission=permission,
        )
        return self.put(made, maker)

    def put(self, config: TopicSettings, maker: str = "") -> TopicSettings:
        """Create or change a topic: its queues first, then its record. It counts for the user `maker`, if any."""
        self.check((config.name,))
        self._store.queues.open_all([queue_name(config.name, index) for index in range(config.queue_count)])
        created = config.name not in self._configs
        change = StateChange(state_kinds.TOPIC, config.name.encode(), _made_by(config, maker))
        position = self._store.append_state([change])
        self._apply(config.name, config, position, maker)
        self._announce(config.name, created=created)
        return config

    def check(self, wanted: Collection[str]) -> None:
        """Whether all these topics may be created or changed. Refused: a name is not valid, or there are too many."""
        for name in wanted:
            if not names.valid_rocketmq_topic(name):
                raise Refused(ResponseCode.INVALID_PARAMETER, f"topic name [{name}] is not valid")
        created = sum(name not in self._configs for name in wanted)
        if created and len(self._configs) + created > self.topics_max:
            self._refused("topics")
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topics_max {self.topics_max} topics exist already")

    def delete(self, name: str) -> int:
        """Remove a topic and its queues; returns the end position of the removal."""
        self.require(name)
        deletion = StateChange(state_kinds.TOPIC, name.encode(), None)
        position = self._store.queues.delete(self._queue_ids.get(name, ()), [deletion])
        for queue_id in self._queue_ids.pop(name, ()):
            self._owners.pop(queue_id, None)
        del self._configs[name]
        self._count(name, "")
        self._positions.pop(name, None)
        self._announce(name, created=False)
        return position

    def _count(self, name: str, maker: str) -> None:
        """Let a topic count for this user, if any, and no longer for another one."""
        former = self._makers.pop(name, "")
        if former:
            self._made[former] -= 1
            if not self._made[former]:
                del self._made[former]
        if maker:
            self._makers[name] = maker
            self._made[maker] += 1

    def _apply(self, name: str, config: TopicSettings, position: int, maker: str) -> None:
        self._count(name, maker)
        ids = tuple(self._store.queues.open_all([queue_name(name, index) for index in range(config.queue_count)]))
        known = self._queue_ids.get(name, ())
        self._queue_ids[name] = ids + known[len(ids) :]
        for index, queue_id in enumerate(ids):
            self._owners[queue_id] = (name, index)
        self._configs[name] = config
        self._positions[name] = position

    def _announce(self, name: str, *, created: bool) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(name, created)


_LIGHT = names.LMQ_PREFIX.decode()


def is_light(topic: str) -> bool:
    """True for the name of a light queue."""
    return topic.startswith(_LIGHT)


def require_readable(config: TopicSettings) -> None:
    """Refused(NO_PERMISSION) when a topic may not be read."""
    if not config.permission & PERMISSION_READ:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{config.name}] pulling message is forbidden")


class ClientQueues:
    """Queues as RocketMQ's clients name them."""

    def __init__(self, store: LogStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics

    def find(self, topic: str, index: int) -> int | None:
        """Store queue id; None for a light queue without a message so far.

        Raises:
            Refused: TOPIC_NOT_EXIST, INVALID_PARAMETER for a queue number out of range.
        """
        if is_light(topic):
            return self._store.queues.find(topic.encode())
        ids = self._topics.queue_ids(self._topics.require(topic).name)
        if not 0 <= index < len(ids):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"queueId[{index}] is illegal, topic:[{topic}] has {len(ids)} queues"
            )
        return ids[index]

    def require_readable(self, topic: str) -> None:
        """Refused(NO_PERMISSION) when a parent topic may not be read."""
        if not is_light(topic):
            require_readable(self._topics.require(topic))


class VisibleQueues:
    """Every queue except those in `hidden`, which other features keep."""

    def __init__(self, store: LogStore, topics: Topics, hidden: Collection[int]) -> None:
        self._store = store
        self._topics = topics
        self._hidden = hidden

    def hidden(self, queue_id: int) -> bool:
        """True for queue ids that readers never see: staged rows, and ids that do not exist."""
        if queue_id in self._hidden:
            return True
        try:
            self._store.queues.name(queue_id)
        except LocalMisuse:
            return True
        return False

    def end(self, queue_id: int) -> int:
        """Confirmed end of a queue that readers may see; 0 for a queue that does not exist or is hidden."""
        return 0 if self.hidden(queue_id) else self._store.reading.bounds(queue_id)[1]

    def title(self, queue_id: int) -> str:
        """The resource of a queue, for authorisation; empty for a hidden one."""
        owner = self._topics.owner(queue_id)
        if owner is not None:
            return of_topic(owner[0])
        return of_topic(self._store.queues.name(queue_id).decode()) if not self.hidden(queue_id) else ""


UNREACHABLE = "unreachable"
TIMEOUT = "timeout"

Then = Callable[[], None]


@dataclass(slots=True)
class Unpublished:
    """A changed topic that some controllers have not acknowledged yet."""

    version: int
    links: set[str]
    waiting: list[Then] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class Publication:
    """Topics on their way to the controllers; `link` is a controller's address."""

    def __init__(self, *, wait_ms: int, missed: Callable[[str, int], None]) -> None:
        """`missed(reason, topics)` is called for topics that are announced before every controller has them."""
        self.pending: dict[str, Unpublished] = {}
        self._wait_s = wait_ms / 1_000
        self._missed = missed
        self._links: dict[str, bool] = {}

    def watch(self, link: str) -> None:
        """Add a controller; it is waited for until it is unreachable."""
        if self._wait_s:
            self._links[link] = True

    def unreachable(self, link: str) -> None:
        """Stop waiting for this controller; it gets everything when it is reachable again."""
        self._give_up([link], UNREACHABLE)

    def changed(self, name: str, version: int) -> None:
        """A topic was created or changed; `version` is that of the topic table afterwards."""
        if not self._links:
            return
        links = {link for link, awaited in self._links.items() if awaited}
        known = self.pending.get(name)
        if known is not None:
            known.version, known.links = version, links
        elif links:
            self.pending[name] = Unpublished(version, links)
        if len(links) < len(self._links):
            self._missed(UNREACHABLE, 1)
        if not links:
            self._release([name])

    def acknowledged(self, link: str, versions: Mapping[str, int]) -> None:
        """A controller has these versions of topics; it is waited for from now on."""
        if link in self._links:
            self._links[link] = True
        for name, version in versions.items():
            entry = self.pending.get(name)
            if entry is not None and entry.version <= version:
                entry.links.discard(link)
        self._release(versions)

    def when_published(self, names: Iterable[str], then: Then) -> None:
        """Call `then` when every reachable controller has the topics; at once when they have."""
        for name in names:
            entry = self.pending.get(name)
            if entry is not None:
                # The other names are checked then; most are published by that time.
                entry.waiting.append(partial(self.when_published, tuple(names), then))
                if entry.timer is None:
                    loop = asyncio.get_running_loop()
                    entry.timer = loop.call_later(self._wait_s, self._too_late, name)
                return
        then()

    def stop(self) -> None:
        """Release all waiting answers: nothing is registered any more."""
        self._links.clear()
        for entry in self.pending.values():
            entry.links.clear()
        self._release(list(self.pending))

    def _too_late(self, name: str) -> None:
        entry = self.pending.get(name)
        if entry is not None:
            entry.timer = None
            self._give_up(list(entry.links), TIMEOUT)

    def _give_up(self, links: Collection[str], reason: str) -> None:
        touched = []
        for name, entry in self.pending.items():
            if not entry.links.isdisjoint(links):
                entry.links.difference_update(links)
                touched.append(name)
        for link in links:
            if link in self._links:
                self._links[link] = False
        if touched:
            self._missed(reason, len(touched))
        self._release(touched)

    def _release(self, names: Iterable[str]) -> None:
        """Call back for the topics that no controller lacks any more."""
        for name in list(names):
            entry = self.pending.get(name)
            if entry is None or entry.links:
                continue
            del self.pending[name]
            if entry.timer is not None:
                entry.timer.cancel()
            for then in entry.waiting:
                then()

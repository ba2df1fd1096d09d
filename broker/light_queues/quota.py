"""How many MQTT topics a parent topic may have, and how many one user may have made.

An MQTT topic counts from its first message: for its parent topic, and for the user who published it. A light queue that
only a subscription has made counts for the subscriber alone, so nobody takes a publisher's room away by subscribing.
What exists goes on beyond a limit; only what would be new is refused (FLOW_CONTROL: 0x97 of MQTT 5), counted by reason
and logged.

After a start the topics that the log has are counted parent by parent in one walk over its table of queues, in bounded
steps; until that is done a parent may get more than it should. The log does not say who made a topic: one that was
there before the start counts for the user who is the first to publish there again, and is never refused; one where
nobody publishes counts for no user until it ends.

A number per queue says both, in pages of 4,096 ids: { queue id % 4096 -> number u32 }. A page is made with its first
number and dropped with its last, so that what is kept grows with the pages in use and not with the ids given out.

Invariants: no queue costs a Python object; a queue is counted at most once for a user and at most once for its parent,
and no longer when it is deleted. Loop thread only.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from broker.topics.feature import topic_of
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

PUBLISHED, OWNED = 1, 2
"""A mark is the number of a queue's user (0: none) times `OWNED`, and `PUBLISHED` if it counts for its parent."""
PARENT, USER = "mqtt_topics_per_parent", "mqtt_topics_per_user"
"""Reasons of refusals."""
COUNTED_PER_STEP = 1_024
"""Ids whose topics are counted in one step: a few milliseconds."""
LOG_INTERVAL_MS = 60_000
LOGGED_MAX = 1_000


PAGE = 4_096
_NONE = bytes(4 * PAGE)


class QueueMarks:
    """Numbers above 0 by queue id; 0 stands for none."""

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        self._used: dict[int, int] = {}
        """Page -> how many of its numbers are not 0."""

    def get(self, queue: int) -> int:
        """Return the number of a queue."""
        page = self._pages.get(queue // PAGE)
        return 0 if page is None else page[queue % PAGE]

    def set(self, queue: int, number: int) -> None:
        """Give a queue this number; 0 forgets it."""
        at, row = divmod(queue, PAGE)
        page = self._pages.get(at)
        if page is None:
            if not number:
                return
            page = self._pages[at] = array("I", _NONE)
        self._used[at] = self._used.get(at, 0) + bool(number) - bool(page[row])
        page[row] = number
        if not self._used[at]:
            del self._pages[at], self._used[at]


class TopicMakers:
    """Numbers of users from 1 on, and how many topics each has; one without topics has no number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._counts: dict[int, int] = {}
        self._last = 0

    def count(self, user: str) -> int:
        """How many topics a user has."""
        return self._counts.get(self._numbers.get(user, 0), 0)

    def add(self, user: str) -> int:
        """Count one more topic; return the user's number."""
        number = self._numbers.get(user)
        if number is None:
            self._last = number = self._last + 1
            self._numbers[user], self._names[number] = number, user
        self._counts[number] = self._counts.get(number, 0) + 1
        return number

    def remove(self, number: int) -> None:
        """Count one topic less of the user with this number."""
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._counts[number], self._numbers[self._names.pop(number)]


class TopicQuota:
    """Opens the light queues of MQTT topics, up to the limits."""

    def __init__(
        self,
        store: LogStore,
        *,
        per_parent_max: int,
        per_user_max: int,
        refused: Callable[[str], None],
        now_ms: Callable[[], int],
        log: Any,
    ) -> None:
        """`refused(reason)` counts; a limit of 0 is none. A message of which no user is known counts for its parent."""
        self._store = store
        self.per_parent_max = per_parent_max
        self.per_user_max = per_user_max
        self._refused = refused
        self._now_ms = now_ms
        self._log = log
        self._marks = QueueMarks()
        self._makers = TopicMakers()
        self._parents: Counter[bytes] = Counter()
        """Parent topic -> its MQTT topics, as far as they are counted."""
        self._at, self._end = 0, store.queues.ids_end
        """Topics of the ids in [at, end) are not counted yet."""
        self._logged_ms: dict[tuple[str, str], int] = {}
        store.queues.on_delete(self._deleted)

    def publish(self, name: bytes, parent: bytes, user: str, *, is_due: bool = False) -> int:
        """Return the light queue `name` for a message of `user`, made if it does not exist; a message follows.

        `parent` is empty for a queue that the message names itself. `is_due`: the message was accepted before, so the
        queue is made whatever the limits say.

        Raises:
            Refused: FLOW_CONTROL, it would be one too many.
        """
        queue = self._store.queues.find(name)
        mark = 0 if queue is None else self._marks.get(queue)
        if mark & PUBLISHED:
            return queue or 0
        existed = queue is not None and self._is_topic(queue)
        if not parent and names.topic_key(name) is not None:
            parent = topic_of(name)
        if not existed and not is_due:
            self._check_parent(parent)
            if mark < OWNED:
                self.check(user)
        if queue is None:
            queue = self._store.queues.open(name)
        if not existed and parent and self._is_counted(queue):
            self._parents[parent] += 1
        self._own(queue, mark | PUBLISHED, user)
        return queue

    @property
    def counting(self) -> bool:
        """Whether there are topics that are not counted yet."""
        return self._at < self._end

    def count_step(self) -> None:
        """Count some more of the topics that were there at the start."""
        first = self._store.queues.part(COUNTED_PER_STEP, self._at)
        if first is None or first >= self._end:
            self._at = self._end
            return
        queues = self._store.state.queues
        at, self._at = max(first, self._at), min(first + COUNTED_PER_STEP, self._end)
        for queue in queues.ids(at, self._at):
            name = queues.name(queue) or b""
            if names.topic_key(name) is not None and self._is_topic(queue):
                self._parents[topic_of(name)] += 1

    def _is_counted(self, queue: int) -> bool:
        return queue < self._at or queue >= self._end

    def check(self, user: str) -> None:
        """Return when `user` may make one more. Refused: FLOW_CONTROL."""
        if self.per_user_max and user and self._makers.count(user) >= self.per_user_max:
            raise self._refusal(USER, user, self.per_user_max)

    def subscribe(self, wanted: Iterable[tuple[bytes, str]]) -> None:
        """Make the missing ones of these light queues, as (name, user), by one record; not those beyond a limit."""
        missing: dict[bytes, str] = {}
        for name, user in wanted:
            if name not in missing and self._store.queues.find(name) is None and self._has_room(user, missing):
                missing[name] = user
        for (_name, user), queue in zip(missing.items(), self._store.queues.open_all(list(missing)), strict=True):
            self._own(queue, 0, user)

    def subscribed(self, name: bytes, user: str) -> int:
        """Return the light queue `name` that is subscribed to. Refused: it would be one too many of the user."""
        queue = self._store.queues.find(name)
        if queue is None:
            self.check(user)
            queue = self._store.queues.open(name)
            self._own(queue, 0, user)
        return queue

    def _has_room(self, user: str, more: dict[bytes, str]) -> bool:
        if not self.per_user_max or not user:
            return True
        return self._makers.count(user) + sum(one == user for one in more.values()) < self.per_user_max

    def _is_topic(self, queue: int) -> bool:
        return bool(self._marks.get(queue) & PUBLISHED) or self._store.queues.had_messages(queue)

    def _own(self, queue: int, mark: int, user: str) -> None:
        """Note a queue and, if it has none, its user."""
        if mark < OWNED and user:
            mark |= self._makers.add(user) * OWNED
        self._marks.set(queue, mark)

    def _check_parent(self, parent: bytes) -> None:
        if not self.per_parent_max or not parent or self._store.queues.count < self.per_parent_max:
            return
        if self.counting:
            self.count_step()
        if self._parents[parent] >= self.per_parent_max:
            raise self._refusal(PARENT, parent.decode("utf-8", "replace"), self.per_parent_max)

    def _refusal(self, reason: str, name: str, most: int) -> Refused:
        self._refused(reason)
        now_ms = self._now_ms()
        if now_ms - self._logged_ms.get((reason, name), -LOG_INTERVAL_MS) >= LOG_INTERVAL_MS:
            if len(self._logged_ms) >= LOGGED_MAX:
                self._logged_ms.clear()
            self._logged_ms[reason, name] = now_ms
            self._log.warning("topic_refused", reason=reason, name=name, most=most)
        return Refused(ResponseCode.FLOW_CONTROL, f"{reason}_max {most} is reached by {name!r}")

    def _deleted(self, queue: int, name: bytes) -> None:
        """A queue is no longer counted."""
        mark = self._marks.get(queue)
        if mark >= OWNED:
            self._makers.remove(mark // OWNED)
        was_topic = bool(mark & PUBLISHED) or self._store.queues.had_messages(queue)
        if was_topic and self._is_counted(queue) and names.topic_key(name) is not None:
            parent = topic_of(name)
            self._parents[parent] -= 1
            if self._parents[parent] <= 0:
                del self._parents[parent]
        self._marks.set(queue, 0)

"""Small stores for tests: every limit low, callbacks run by hand."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from broker.store.log_store import LogStore
from broker.store.placed import Placed
from broker.store.settings import StoreSettings
from remoting.protocol.records.record import FLAG_FORMAT_SHIFT, FLAG_MQTT, FLAG_RETAIN, FORMAT_ARROW, MQTT_TOPIC_KEY
from runtime.faults import FaultPoints
from tests.sim.store_model import Sent
from tests.support.clock import ManualClock
from tests.support.images import placed

SMALL: dict[str, Any] = {
    "segment_size_bytes": 16 * 1024,
    "index_tail_entries": 64,
    "index_merge_runs": 3,
    "retention_ms": 0,
    "free_space_bytes_min": 1,
    "ballast_size_bytes": 0,
}


class Silent:
    """Accepts the store's events where thousands would be printed."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_fields: None


class StoreBench:
    """An open store whose loop is a queue of functions; `turn` runs what is due."""

    def __init__(self, directory: Path, *, log: Any = None, **settings: Any) -> None:
        self.log = log or structlog.get_logger()
        self.due: deque = deque()
        self.clock = ManualClock()
        self.faults = FaultPoints()
        self.directory = directory
        self.settings = StoreSettings(**{**SMALL, **settings})
        self.store = self.open()

    def open(self) -> LogStore:
        """Open the directory again."""
        self.store = LogStore.open(
            self.directory,
            self.settings,
            clock=self.clock,
            faults=self.faults,
            schedule=self.due.append,
            log=self.log,
        )
        return self.store

    def turn(self) -> None:
        """Run what the threads have scheduled."""
        while self.due:
            self.due.popleft()()

    def settle(self, position: int | None = None) -> None:
        """Turn until `position` (default: the end) is confirmed."""
        position = self.store.end_position if position is None else position
        deadline = time.monotonic() + 20
        while self.store.confirm_position < position:
            self.turn()
            assert time.monotonic() < deadline, "the confirm position does not move"
            time.sleep(0.0002)
        self.turn()

    def reopen(self) -> LogStore:
        """Close and open."""
        self.store.close()
        self.turn()
        return self.open()

    def close(self) -> None:
        """Close the store."""
        self.store.close()
        self.turn()


def drain(store: LogStore) -> None:
    """Let the index thread finish its jobs and deliver their results."""
    store._site.thread.drain()


def message(
    queues: Sequence[int],
    body: bytes,
    *,
    flags: int = 0,
    topic: bytes = b"t",
    mqtt_topic: bytes | None = None,
    **more: int,
) -> Placed:
    """A message with a topic and, when given, its MQTT topic."""
    properties = [] if mqtt_topic is None else [(MQTT_TOPIC_KEY, mqtt_topic)]
    return placed(queues, body, flags=flags, topic=topic, properties=properties, **more)


def bodies(store: LogStore, queue: int) -> list[bytes]:
    """Every confirmed body of a queue, from its oldest offset on."""
    from remoting.protocol.records.record import RecordView

    result = store.reading.read(queue, store.reading.bounds(queue)[0], 1 << 30, 1 << 40)
    assert result.next_offset == result.max_offset, (result.next_offset, result.max_offset)
    return [bytes(RecordView(record, 0).body) for record in result.records]


def mixed(
    chance: random.Random, queues: list[int], count: int, size: int, number: int
) -> tuple[list[Sent], list[Placed]]:
    """Messages to one to three queues each, some retained, some batches; for the model and for the store."""
    sent, messages = [], []
    for at in range(count):
        picked = tuple(chance.sample(queues, chance.randint(1, min(3, len(queues)))))
        topic = chance.choice([None, None, None, b"a/b", b"c"])
        empty = topic is not None and chance.random() < 0.3
        body = b"" if empty else b"%08d" % (number + at) + bytes(chance.randint(0, size))
        batch = topic is None and chance.random() < 0.2
        held = chance.choice([1, 2, 7, 300]) if batch else 1
        flags = FLAG_MQTT | FLAG_RETAIN if topic else FORMAT_ARROW << FLAG_FORMAT_SHIFT if batch else 0
        sent.append(Sent(picked, body, held, topic, batch))
        messages.append(message(picked, body, flags=flags, mqtt_topic=topic, count=held))
    return sent, messages

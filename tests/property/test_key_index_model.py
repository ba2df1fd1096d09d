"""The key index against a list of messages: whatever is appended, crashes, is damaged or expires, both find the same.

Each twin of the hot loops runs its own machine. LIGHTMQ_MODEL_EXAMPLES=2000 makes the runs long.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.store.keys.key_store import KeyQuestion
from remoting.native import core as native
from remoting.protocol.records.record import FLAG_MQTT, FLAG_STAGED, RecordView
from tests.property.test_store_model import MEMORY, Silent
from tests.sim.disk import crash_copy
from tests.sim.keyed import keyed_message
from tests.sim.store_model import walk
from tests.sim.stores import StoreBench, drain

EXAMPLES = int(os.environ.get("LIGHTMQ_MODEL_EXAMPLES", "40"))
STEPS = 30
KEYS = [b"k%d" % n for n in range(12)]
TOPICS = [b"t", b"u"]


@dataclass(slots=True)
class Said:
    """One message: the keys it has, its position, and when it is visible."""

    topic: bytes
    keys: frozenset[bytes]
    unique: bytes
    position: int
    end: int
    visible_at: int
    store_ms: int
    body: bytes


class KeyMachine(RuleBasedStateMachine):
    """One store and a list of its messages."""

    twin = "pure"

    def __init__(self) -> None:
        super().__init__()
        self.kept_core = native.core
        native.core = native.pure_core() if self.twin == "pure" else native.compiled_core()
        self.place = Path(tempfile.mkdtemp(prefix="key-model-", dir=MEMORY if MEMORY.is_dir() else None))
        self.said: list[Said] = []
        self.lives = 0
        self.number = 0

    @initialize(
        segment=st.sampled_from([4096, 16384]),
        entries=st.sampled_from([64, 70, 200]),
        flush=st.sampled_from(["sync", "async"]),
        size=st.sampled_from([0, 0, 49_152]),
        merge=st.sampled_from([2, 3]),
    )
    def open(self, segment: int, entries: int, flush: str, size: int, merge: int) -> None:
        """Begin with an empty directory."""
        self.bench = StoreBench(
            self.place / "0", segment_size_bytes=segment, key_index_entries=entries, flush=flush, flush_interval_ms=1,
            retention_size_bytes=size, index_merge_runs=merge, index_tail_entries=32, log=Silent(),
        )  # fmt: skip
        self.queue = self.bench.store.queues.open(b"q")

    def teardown(self) -> None:
        """Close and remove everything."""
        if hasattr(self, "bench"):
            self.bench.close()
        shutil.rmtree(self.place)
        native.core = self.kept_core

    @rule(seed=st.integers(0, 2**16), count=st.sampled_from([1, 3, 40]), atomic=st.booleans())
    def append(self, seed: int, count: int, atomic: bool) -> None:
        """Messages with keys, without, staged, in no queue, from MQTT."""
        choice, batch, meant = random.Random(seed), [], []
        for _ in range(count):
            self.number += 1
            keys = choice.choices(KEYS, k=choice.choice([0, 0, 1, 2]))
            unique = choice.choice([b"", b"id%d" % self.number, choice.choice(KEYS)])
            flags, topic = choice.choice([0, 0, 0, FLAG_MQTT, FLAG_STAGED]), choice.choice(TOPICS)
            queues = [self.queue] if choice.random() < 0.9 else []
            body = b"%d" % self.number
            message = keyed_message(queues, body, keys=b" ".join(keys), unique=unique, topic=topic, flags=flags)
            batch.append(message)
            found_by_unique = b"" if flags & FLAG_MQTT else unique
            hidden = flags & FLAG_STAGED or not queues
            meant.append((topic, frozenset() if hidden else {*keys, found_by_unique} - {b""}, found_by_unique, body))
        store = self.bench.store
        first = store.end_position
        store.append(*batch, atomic=atomic)
        end = store.end_position
        for (position, data), (topic, keys, unique, body) in zip(walk(store.directory, first, end), meant, strict=True):
            (store_ms,) = struct.unpack_from("<q", data, 32)
            whole = end if atomic else position + len(data)
            self.said.append(Said(topic, frozenset(keys), unique, position, whole, end, store_ms, body))

    @rule()
    def settle(self) -> None:
        """Everything is confirmed."""
        self.bench.settle()

    @rule(step_ms=st.sampled_from([0, 1, 400, 3000]))
    def maintain(self, step_ms: int) -> None:
        """Upkeep, and everything it starts."""
        self.bench.clock.advance_ms(step_ms)
        self.bench.store.maintain(self.bench.clock.now_ms())
        drain(self.bench.store)
        self.bench.turn()

    @rule()
    def restart(self) -> None:
        """A complete shutdown and a start."""
        self.bench.settle()
        self.bench.reopen()
        self.recovered()

    @rule(seed=st.integers(0, 2**16))
    def crash(self, seed: int) -> None:
        """A power cut; what was not flushed may be lost in part."""
        self.lives += 1
        target = self.place / str(self.lives)
        crash_copy(self.bench.store, target, seed)
        self.bench.close()
        self.bench.directory = target
        self.bench.open()
        self.recovered()

    @rule(seed=st.integers(0, 2**16), what=st.sampled_from(["directory", "manifest", "header", "file"]))
    def lose_index(self, seed: int, what: str) -> None:
        """Files of the index are damaged while the store is down."""
        self.bench.settle()
        self.bench.close()
        keys, choice = self.bench.directory / "keys", random.Random(seed)
        runs = sorted(keys.glob("run-*"))
        if what == "directory":
            shutil.rmtree(keys)
        elif what == "manifest" and (keys / "MANIFEST").exists():
            (keys / "MANIFEST").write_bytes(b"{}\n")
        elif runs and what == "header":
            run = choice.choice(runs)
            data = bytearray(run.read_bytes())
            data[choice.randrange(56)] ^= 1 << choice.randrange(8)
            run.write_bytes(data)
        elif runs:
            choice.choice(runs).unlink()
        self.bench.open()
        self.recovered()

    def recovered(self) -> None:
        """What a start has recovered is visible."""
        end = self.bench.store.end_position
        self.said = [one for one in self.said if one.end <= end]
        for one in self.said:
            one.visible_at = min(one.visible_at, end)
        self.queue = self.bench.store.queues.open(b"q")  # its creation may have been lost
        self.bench.turn()

    @rule(topic=st.sampled_from(TOPICS), key=st.sampled_from(KEYS), unique=st.booleans(), seed=st.integers(0, 2**16))
    def look_up(self, topic: bytes, key: bytes, unique: bool, seed: int) -> None:
        """With a span of time and a limit."""
        choice = random.Random(seed)
        times = [one.store_ms for one in self.said] or [5]
        begin, end = sorted(choice.choices(times, k=2))
        self.compare(topic, key, begin - choice.choice([0, 1]), end, choice.choice([1, 3, 1000]), unique=unique)

    @invariant()
    def every_key_finds_its_messages(self) -> None:
        """All of them, the newest first."""
        if hasattr(self, "bench"):
            self.compare(b"t", KEYS[self.number % len(KEYS)], 0, 2**62, 10_000, unique=False)

    def compare(self, topic: bytes, key: bytes, begin: int, end: int, count: int, *, unique: bool) -> None:
        """Compare the answers of both."""
        store = self.bench.store
        assert store.keys is not None
        question = KeyQuestion(topic, key, begin, end, count, 1 << 30, unique)
        matches = store.keys.find(question)
        meant = [
            one.body
            for one in reversed(self.said)
            if one.topic == topic and (key == one.unique and one.keys if unique else key in one.keys)
            and begin <= one.store_ms <= end
            and one.visible_at <= store.confirm_position and one.position >= store.begin_position
        ]  # fmt: skip
        assert [bytes(RecordView(record).body) for record in matches.records] == meant[:count]
        assert matches.complete
        assert not matches.unreadable


class CompiledKeyMachine(KeyMachine):
    """The same on the compiled twin."""

    twin = "compiled"


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
TestPureKeys = pytest.mark.timeout(600)(KeyMachine.TestCase)
TestPureKeys.settings = SETTINGS
TestCompiledKeys = pytest.mark.timeout(600)(CompiledKeyMachine.TestCase)
TestCompiledKeys.settings = SETTINGS
if native.choice.name != "compiled":
    TestCompiledKeys = pytest.mark.skip(f"no compiled twin: {native.choice.reason}")(TestCompiledKeys)

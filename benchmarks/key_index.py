"""The key index: CPU to add a key, to write a run of a million, to look one up; and the cost of keys in an append.

The first three on one run of a million unique keys, as a broker makes eight of before it merges them. The append is the
store's own, in batches of 128 messages of 100 bytes into one queue, alternately without keys and with one (KEYS);
process CPU of all threads, so that writing the runs is in it. Each figure is the best of `--rounds`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.stores import StoreBench, store_bench
from broker.store.keys.key_index import KeyRun, key_run_path, sort_keys, write_key_run
from broker.store.keys.key_store import KeyQuestion
from broker.store.placed import Placed
from remoting.native import core as native
from remoting.native.contracts import KeyChunk
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.properties import key_hash
from remoting.protocol.records.record import MESSAGE, encode_record

TOPIC = b"orders"
BATCH = 128


def main() -> None:
    """Print a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=256_000, help="messages per round of appends")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{native.core.name} core, {options.keys} keys")
    data = records(options.keys)
    costs = [taking(data, options.keys) for _ in range(options.rounds)]
    print(f"hash and insert: {min(costs):.1f} ns/key")
    with tempfile.TemporaryDirectory(prefix="key-bench-", dir=".") as directory:
        chunk = filled(data, options.keys)
        path = key_run_path(Path(directory), 1)
        costs = [writing(path, chunk, len(data)) for _ in range(options.rounds)]
        print(f"sort and write: {min(costs):.1f} ns/key, {path.stat().st_size / options.keys:.1f} bytes/key")
        run = KeyRun(path)
        for name, first in (("a key that is there", 0), ("one that is not", options.keys)):
            costs = [looking(run, first, options.keys) for _ in range(options.rounds)]
            print(f"look-up in one run, {name}: {min(costs):.2f} us")
    appends(options.messages, options.rounds)


def key(number: int) -> bytes:
    """Key number `number`."""
    return b"ORDER-%010d" % number


def records(count: int) -> bytes:
    """Records with one key each, as they lie in the log."""
    parts, position = [], 0
    for number in range(count):
        parts.append(
            encode_record(
                magic_type=MESSAGE, epoch=1, position=position, born_ms=1, store_ms=number, flags=0, count=1,
                dispatch=((1, number),), counts=(0, len(TOPIC), 16, 0, 0), tag_hash=0, producer_seq=0,
                meta=TOPIC + key(number), body=b"",
            )
        )  # fmt: skip
        position += len(parts[-1])
    return b"".join(parts)


def filled(data: bytes, count: int) -> KeyChunk:
    """Memory that holds all keys of the records."""
    chunk = native.core.make_key_chunk(count + 64)
    assert chunk.take(data, 0, 0, len(data)) == len(data)
    return chunk


def cost_ns(work: Callable[[], object], count: int) -> float:
    """Process CPU of `work` for each of `count`."""
    begun = time.process_time_ns()
    work()
    return (time.process_time_ns() - begun) / count


def taking(data: bytes, count: int) -> float:
    """Nanoseconds to take one key in."""
    return cost_ns(lambda: filled(data, count), count)


def writing(path: Path, chunk: KeyChunk, end: int) -> float:
    """Nanoseconds to sort and write one key, checksum and fsync included."""
    return cost_ns(lambda: write_key_run(path, 1, 0, (0, end), sort_keys([chunk.columns()])), chunk.count)


def looking(run: KeyRun, first: int, count: int) -> float:
    """Microseconds to find one key, hash included."""
    numbers = random.Random(1)
    wanted = [key(first + numbers.randrange(count)) for _ in range(20_000)]

    def work() -> None:
        for one in wanted:
            run.find(key_hash(TOPIC, one))

    return cost_ns(work, len(wanted)) / 1000


def appends(count: int, rounds: int) -> None:
    """Print what a message costs with and without a key, and a look-up through the store."""
    with store_bench(1, retention_ms=0) as bench:
        plain, keyed = [], []
        for each in range(rounds):
            plain.append(appending(bench, count, each, keys=False))
            keyed.append(appending(bench, count, each, keys=True))
        print(f"append of one message: {min(plain):.3f} us without keys, {min(keyed):.3f} us with one")
        keys = bench.store.keys
        assert keys is not None
        wanted = [key(number * 7919 % (count * rounds)) for number in range(2_000)]
        missed = [one for one in wanted if len(keys.find(KeyQuestion(TOPIC, one)).records) != 1]
        assert not missed, missed[:3]
        spent = cost_ns(lambda: [keys.find(KeyQuestion(TOPIC, one)) for one in wanted], len(wanted)) / 1000
        runs = bench.store.metrics()["key_index_runs"]
        print(f"look-up through the store, {count * rounds} keys in {runs} runs: {spent:.1f} us")


def appending(bench: StoreBench, count: int, turn: int, *, keys: bool) -> float:
    """Microseconds of CPU to append one message, runs included."""
    store, body = bench.store, bytes(100)
    batches = []
    for first in range(turn * count, (turn + 1) * count, BATCH):
        texts = [key(number) if keys else b"" for number in range(first, min(first + BATCH, (turn + 1) * count))]
        batches.append(
            [Placed(encode_image(flags=0, born_ms=5, topic=TOPIC, keys=one, body=body), [(0,)]) for one in texts]
        )

    def work() -> None:
        for batch in batches:
            store.append(*batch)
            bench.turn()
        bench.settle()
        store.maintain(time.time_ns() // 1_000_000)
        store._site.thread.drain()  # noqa: SLF001 - the runs' cost belongs to the appends

    return cost_ns(work, count) / 1000


if __name__ == "__main__":
    main()

"""`python -m tests.processes.acting_pops --rounds 8 --seed 1`: groups pop through outages in which nobody can elect;
with `--ordered` in order.

Each round stores messages, pops some of them at the master, kills it with two of three controllers, and pops on at the
replica that stands in, which may be killed as well; then everything is started again. Some of what is given is
acknowledged, the rest comes again when its time is over; in order, nothing behind the first message of a queue that is
not. In the end every message must have been acknowledged, none may have been given after that, and in order those of
each queue in their order.

Thread rule: blocks; one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.stored_message import iter_stored
from tests.processes.acting_groups import TOPIC, acting, at, send
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.unit.broker.pop.client import Message, popping

INVISIBLE_MS = 15_000
MESSAGES = 30
"""Messages a round."""
END_S = 120
"""For how long everything may take to be given at the end."""


class Consumer:
    """A member of the group, and what it saw."""

    def __init__(self, chance: random.Random, *, ordered: bool) -> None:
        self._chance, self._ordered = chance, ordered
        self.acknowledged: set[int] = set()
        self.overtaken: list[int] = []
        """Messages that were acknowledged behind a later one of their queue."""
        self._last: dict[tuple[bytes, int], int] = {}
        self.given_after: list[int] = []
        """Messages that were given although they had been acknowledged."""

    def take(self, broker: Broker, pops: int, share: float) -> int:
        """Pop so often, or until there is nothing; acknowledge this share. Returns how many messages were given."""
        count = 0
        with at(broker) as connection:
            for _ in range(pops):
                most = self._chance.randint(1, 4)
                reply = connection.request(
                    popping(
                        topic=TOPIC,
                        invisibleTime=INVISIBLE_MS,
                        pollTime=1_000,
                        maxMsgNums=most,
                        order=str(self._ordered).lower(),
                    )
                )
                if reply.code != ResponseCode.SUCCESS:
                    break
                held = set[tuple[bytes, int]]()
                for stored in iter_stored(reply.body):
                    count += 1
                    number, queue = int(stored.body), (stored.topic, stored.queue_id)
                    if number in self.acknowledged:
                        self.given_after.append(number)
                    if queue in held or self._chance.random() >= share:
                        held |= {queue} if self._ordered else set()
                    elif connection.request(Message(stored, reply).command()).code == ResponseCode.SUCCESS:
                        self._done(number, queue, stored.queue_offset)
        return count

    def _done(self, number: int, queue: tuple[bytes, int], offset: int) -> None:
        if number in self.acknowledged:
            return
        self.acknowledged.add(number)
        if offset < self._last.get(queue, 0):
            self.overtaken.append(number)
        self._last[queue] = offset


def outage(group: BrokerGroup, consumer: Consumer, chance: random.Random) -> int:
    """One outage; returns how many messages the replica gave."""
    master = group.settle()
    consumer.take(master, chance.randint(1, 4), 0.6)
    (replica,) = [each for each in group.brokers if each is not master]
    if chance.random() < 0.7:  # else it may know less to be confirmed
        group.wait_equal()
        until(lambda: replica.status()["confirmed"] == replica.status()["end"], "the replica knows less is confirmed")
    for each in group.controllers[1:]:
        each.kill()
    master.kill()
    until(lambda: acting([replica]), "nobody stands in")
    given = consumer.take(replica, chance.randint(1, 6), 0.6)
    if chance.random() < 0.4:
        replica.kill()
        replica.start()
    if chance.random() < 0.5:
        time.sleep(chance.random() * 1.3 * INVISIBLE_MS / 1_000)
    for part in (*group.brokers, *group.controllers):
        if part.process is None or part.process.poll() is not None:
            part.start()
    group.settle()
    until(lambda: not list(group.directory.glob("broker-*-data/ACTING")), "the master does not have everything")
    return given


def run(directory: Path, *, rounds: int, seed: int, ordered: bool = False) -> dict[str, object]:
    """The rounds, and what came of them."""
    chance = random.Random(seed)
    consumer, sent, given = Consumer(chance, ordered=ordered), 0, 0
    group = BrokerGroup(
        directory, controllers=3, brokers=2, in_sync_min=2,
        arguments={
            "broker": ["--set", "broker.replication.acting_master=true"],
            "controller": ["--set", "controller.broker_lost_grace_ms=2500"],
        },
    )  # fmt: skip
    try:
        group.start()
        for _ in range(rounds):
            master = group.settle()
            for _ in range(MESSAGES):
                send(master, sent)
                sent += 1
            given += outage(group, consumer, chance)
        deadline = time.monotonic() + END_S
        while len(consumer.acknowledged) < sent and time.monotonic() < deadline:
            consumer.take(group.settle(), 20, 1.0)
        return {
            "sent": sent,
            "given_by_replicas": given,
            "missing": sorted(set(range(sent)) - consumer.acknowledged),
            "given_after_acknowledgement": consumer.given_after,
            "overtaken": consumer.overtaken if ordered else [],
        }
    finally:
        group.end()


def main() -> None:
    """Run, and print one line of JSON; exit status 1 where something was lost, given too often or overtaken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ordered", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="acting-pops-") as directory:
        found = run(Path(directory), rounds=options.rounds, seed=options.seed, ordered=options.ordered)
    print(json.dumps(found))
    raise SystemExit(bool(found["missing"] or found["given_after_acknowledgement"] or found["overtaken"]))


if __name__ == "__main__":
    main()

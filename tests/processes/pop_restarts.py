"""`python -m tests.processes.pop_restarts --rounds 10 --mode dledger`: `kill -9` of all brokers of a group that pops.

Each round stores messages, gives all of them, acknowledges none, kills every broker of the group and starts them again.
A master that has just opened its log cannot read its tail before the replicas have confirmed that, and the messages
that were given lie there. Each of them must be given again.

Thread rule: blocks; one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.stored_message import iter_stored
from tests.processes.acting_groups import TOPIC, at, send
from tests.processes.broker_group import BrokerGroup
from tests.unit.broker.pop.client import Message, popping

MESSAGES = 60
"""Messages a round."""
INVISIBLE_MS = 3_000
AGAIN_S = 60.0
"""For how long everything may take to be given again."""


def take(connection: BlockingConnection, *, acknowledge: bool) -> set[int]:
    """Pop once; returns the numbers of the messages."""
    answer = connection.request(popping(topic=TOPIC, pollTime=1_000, invisibleTime=INVISIBLE_MS))
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return set()
    messages = [Message(stored, answer) for stored in iter_stored(checked(answer).body)]
    for message in messages if acknowledge else ():
        connection.request(message.command())
    return {int(message.body) for message in messages}


def lost_by_kill_of_all(group: BrokerGroup, first: int, count: int = MESSAGES) -> set[int]:
    """Do one round with the messages of these numbers; returns which of them are not given again."""
    master, wanted = group.settle(), set(range(first, first + count))
    for number in sorted(wanted):
        send(master, number)
    given: set[int] = set()
    with at(master) as connection:
        while not given >= wanted:
            given |= take(connection, acknowledge=False)
    over = time.monotonic() + INVISIBLE_MS / 1_000
    for broker in group.brokers:
        broker.kill()
    time.sleep(max(0.0, over - time.monotonic()))  # so that everything is due in the first moment of the new master
    for broker in group.brokers:
        broker.start()
    deadline = time.monotonic() + AGAIN_S
    while wanted and time.monotonic() < deadline:
        try:
            with at(group.settle()) as connection:
                while wanted and time.monotonic() < deadline:
                    wanted -= take(connection, acknowledge=True)
        except (LightMQError, OSError):
            continue  # it is not the master any more
    return wanted


def run(directory: Path, *, rounds: int, mode: str) -> dict[str, object]:
    """Do so many rounds with one group; returns how many messages there were, and which are lost."""
    group, lost = BrokerGroup(directory, brokers=3, in_sync_min=2, mode=mode), set[int]()
    try:
        group.start()
        for number in range(rounds):
            lost |= lost_by_kill_of_all(group, number * MESSAGES)
    finally:
        group.end()
    return {"mode": mode, "given": rounds * MESSAGES, "lost": sorted(lost)}


def main() -> None:
    """Run, and print one line of JSON; exit status 1 where something is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mode", choices=("controller", "dledger"), default="controller")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pop-restarts-") as directory:
        found = run(Path(directory), rounds=options.rounds, mode=options.mode)
    print(json.dumps(found))
    raise SystemExit(bool(found["lost"]))


if __name__ == "__main__":
    main()

"""`python -m tests.processes.failovers --kills 10`: how long after `kill -9` of a master until publishes are confirmed.

One MQTT client publishes with QoS 1 all the time, through a proxy. Each round kills the master, waits for the first
acknowledgement of a message handed over afterwards, starts the broker again and waits until it is in sync. In the end
every acknowledged message must be there, in order, and the logs of all brokers must be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Client, Stream, expect_all

TOPIC = "line/a/x"


def failover(group: BrokerGroup, stream: Stream) -> tuple[float, float]:
    """Kill the master; (seconds until a later message is confirmed, seconds until the broker is in sync again)."""
    master = group.settle()
    stream.flowing()
    began = time.monotonic()
    master.kill()
    wanted = len(stream.sent) + stream.ON_THEIR_WAY
    stream.client.until(lambda: stream._confirmed >= min(wanted, len(stream.sent)))
    back_s = time.monotonic() - began
    master.start()
    came = time.monotonic()
    group.settle()
    return back_s, time.monotonic() - came


def measure(
    directory: Path, *, kills: int, controllers: int, brokers: int, in_sync_min: int, mode: str = "controller"
) -> dict[str, object]:
    """Run the rounds and check the logs at the end."""
    group = BrokerGroup(directory, controllers=controllers, brokers=brokers, in_sync_min=in_sync_min, mode=mode)
    try:
        group.start()
        reader = Client(group.proxy, "reader", clean=False)
        reader.subscribe((TOPIC, 1))
        stream = Stream(group.proxy, TOPIC)
        rounds = [failover(group, stream) for _ in range(kills)]
        count = stream.end()
        expect_all(reader, {TOPIC: count})
        reader.close()
        group.wait_equal()
        back = sorted(one for one, _again in rounds)
        return {
            "kills": kills,
            "messages": count,
            "back_s_p50": round(statistics.median(back), 2),
            "back_s_max": round(back[-1], 2),
            "in_sync_again_s_max": round(max(again for _one, again in rounds), 2),
        }
    finally:
        group.end()


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--controllers", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--in-sync-min", type=int, default=2)
    parser.add_argument("--mode", default="controller", help="controller, or dledger for brokers that elect themselves")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="failovers-") as directory:
        found = measure(
            Path(directory), kills=options.kills, controllers=options.controllers, brokers=options.brokers,
            in_sync_min=options.in_sync_min, mode=options.mode,
        )  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()

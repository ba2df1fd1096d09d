"""The store through asyncio with an acknowledgement per message: K producers that each await the message before.

A whole broker runs in this process without its port. Each producer hands one message (100 bytes, three queues out of a
million) to the broker's gathering of a loop turn, as SEND_MESSAGE does, and awaits a future that is set when the
message is confirmed: with flush "sync" after fdatasync. Prints process CPU per message, what that is per second and
core, messages a second of wall time, and the 99th percentile of the time from handing over to the acknowledgement.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.stores import NAMES_AT_ONCE, Meter, messages
from broker.app import BrokerApp
from broker.config import BrokerConfig
from broker.publishing.append import Appender
from broker.store.placed import Appended, Placed
from broker.store.settings import StoreSettings
from remoting.native import core as native
from remoting.protocol.errors import Refused
from runtime.process import loop_name, run, settle_garbage

IN_FLIGHT = (1, 16, 128, 1024)
ROUNDS = 7


async def produce(appender: Appender, mine: list[Placed], times_ns: list[int]) -> None:
    """Send one after the other, each when the one before is acknowledged."""
    make_future, clock_ns = asyncio.get_running_loop().create_future, time.monotonic_ns
    for message in mine:
        acknowledged = make_future()

        def done(
            appended: Appended | None, first: int, refused: Refused | None, future: asyncio.Future[Any] = acknowledged
        ) -> None:
            if refused is not None:
                future.set_exception(refused)
            else:
                future.set_result((appended, first))

        begun_ns = clock_ns()
        appender.add(message, done)
        await acknowledged
        times_ns.append(clock_ns() - begun_ns)


async def measure(app: BrokerApp, queues: int, in_flight: int, total: int) -> str:
    """Return one line: rounds of `total` messages, `in_flight` of them at a time."""
    assert app.broker is not None
    meter = Meter()
    rates: list[float] = []
    times_ns: list[int] = []
    each = max(total // in_flight, 1)
    for number in range(ROUNDS):
        made = messages(each * in_flight, queues, number * total, bytes(100))
        shares = [made[at::in_flight] for at in range(in_flight)]
        meter.start()
        begun = time.monotonic()
        await asyncio.gather(*[produce(app.broker.publishing.appender, share, times_ns) for share in shares])
        rates.append(len(made) / (time.monotonic() - begun))
        meter.stop(len(made))
    times_ns.sort()
    best, median = min(meter.process_us), statistics.median(meter.process_us)
    return (
        f"K={in_flight:<5} CPU {best:5.2f} / {median:5.2f} us/msg = {1e3 / best:.0f} / {1e3 / median:.0f} k/s and core"
        f"   wall {max(rates) / 1e3:4.0f} / {statistics.median(rates) / 1e3:4.0f} k/s"
        f"   p99 {times_ns[len(times_ns) * 99 // 100] / 1e6:.2f} ms"
    )


async def serve(directory: Path, flush: str, options: argparse.Namespace) -> None:
    """Run the rounds against one broker."""
    config = BrokerConfig(data_directory=directory, controllers=(), store=StoreSettings(flush=flush))
    app = BrokerApp(config, listen=False)
    await app.start()
    try:
        assert app.broker is not None
        for first in range(0, options.queues, NAMES_AT_ONCE):
            names = [b"q%d" % number for number in range(first, min(first + NAMES_AT_ONCE, options.queues))]
            app.broker.tools.store.queues.open_all(names)
        settle_garbage()
        for in_flight in options.in_flight:
            total = options.messages if in_flight > 1 else options.messages // 8
            print(f"{flush:<6}{await measure(app, options.queues, in_flight, total)}", flush=True)
    finally:
        await app.stop()


def main() -> None:
    """Run both flush modes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=65_536, help="per round; an eighth of it with one in flight")
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, nargs="*", default=IN_FLIGHT)
    parser.add_argument("--flush", nargs="*", choices=["async", "sync"], default=["async", "sync"])
    options = parser.parse_args()
    print(f"{native.core.name} core, {loop_name()}; best / median of {ROUNDS} rounds")
    for flush in options.flush:
        directory = Path(tempfile.mkdtemp(prefix="store-bench-", dir="."))
        try:
            run(serve(directory, flush, options))
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()

"""How long a running query bears that a broker is away, before it fails.

A broker that restarts, or a group that elects a new master, is back within seconds; the query's work waits, nothing of
it is lost. Invariant: what is borne is logged once per outage; the clock runs only while nothing succeeds. Thread rule:
one task, or the driver-side process of the query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from spark_connector.errors import BrokerUnreachable, phrase
from spark_connector.options.option_table import ConnectionOptions

LOG = logging.getLogger("lightmq.spark")
Answer = TypeVar("Answer")


class Outage:
    """The present outage of one query, if there is one."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._wait_ms = options.broker_wait_ms
        self._pause_ms = options.fetch_retry_interval_ms
        self._since: float | None = None

    def bear(self, failure: BrokerUnreachable) -> None:
        """Take in one failure: pause for a moment, or raise it when the outage has lasted too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            LOG.warning("waiting up to %d ms for a broker: %s", self._wait_ms, phrase(failure))
        if (now - self._since) * 1000 >= self._wait_ms:
            raise BrokerUnreachable(f"{phrase(failure)}, for longer than the option 'brokerWaitMs' = {self._wait_ms}")
        time.sleep(self._pause_ms / 1000)

    def end(self) -> None:
        """Everything answers."""
        if self._since is not None:
            LOG.warning("the broker is back after %d ms", (time.monotonic() - self._since) * 1000)
        self._since = None


def patiently(work: Callable[[], Answer], options: ConnectionOptions) -> Answer:
    """Do what may be repeated until a broker has answered, or was away for too long."""
    outage = Outage(options)
    while True:
        try:
            answer = work()
        except BrokerUnreachable as failure:
            outage.bear(failure)
        else:
            outage.end()
            return answer

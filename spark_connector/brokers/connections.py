"""Connections of one Python worker process: made once, used by every task that follows, repaired when they break.

Spark keeps worker processes over batches, so a module-level pool saves a handshake per task. Invariant: a connection
goes back to the pool only when every request sent on it was answered; any failure closes it, and one the server has
hung up on meanwhile is not lent again, so that a broker's restart costs no attempt. Thread rule: one task at a time
per process is Spark's rule, a lock guards the lists for the cases where it is not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from remoting.client.blocking import BlockingConnection
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LightMQError, LocalMisuse, Refused
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import TlsFailed, checked, join_address, not_master
from remoting.transport.signature import Signer
from spark_connector.errors import BrokerMoved, BrokerRefused, BrokerUnreachable, phrase
from spark_connector.options.option_table import ConnectionOptions

IDLE_PER_ADDRESS_MAX = 4
"""Idle connections kept per address and process; more are closed."""

NAME_SERVER = " (the option 'nameServer')"

Answer = TypeVar("Answer")
Address = tuple[str, int]
Manner = tuple[Signer | None, ClientTls | None]
"""How a connection speaks: what signs on it, and TLS."""


class Pool:
    """Idle connections by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: dict[Address, list[tuple[Manner, BlockingConnection]]] = {}

    @contextmanager
    def borrow(
        self,
        address: Address,
        timeout_ms: int,
        *,
        signer: Signer | None = None,
        tls: ClientTls | None = None,
        while_silent: Callable[[], None] | None = None,
    ) -> Iterator[BlockingConnection]:
        """Lend a connection that speaks as asked; it is closed when the block fails or leaves answers behind.

        `while_silent` is called now and then while it waits in vain; what it raises ends the wait.
        """
        manner = (signer, tls)
        connection = self._take(address, manner) or BlockingConnection(*address, timeout_ms, signer=signer, tls=tls)
        connection.while_silent = while_silent
        done = False
        try:
            yield connection
            done = True
        finally:
            connection.while_silent = None
            if done and not connection.closed and connection.in_flight == 0:
                self._give(address, manner, connection)
            else:
                connection.close()

    def forget(self, address: Address) -> None:
        """Close what is idle for an address: after one failure the others are probably as dead."""
        with self._lock:
            idle = self._idle.pop(address, [])
        for _, connection in idle:
            connection.close()

    def close(self) -> None:
        """Close every idle connection; the pool can be used again."""
        for address in list(self._idle):
            self.forget(address)

    def _take(self, address: Address, manner: Manner) -> BlockingConnection | None:
        with self._lock:
            if self._process != os.getpid():
                # A forked child must not speak on its parent's sockets.
                self._idle.clear()
                self._process = os.getpid()
            idle = self._idle.get(address, [])
            for at in reversed(range(len(idle))):
                if idle[at][0] != manner:
                    continue
                connection = idle.pop(at)[1]
                if not connection.stale:
                    return connection
                connection.close()
            return None

    def _give(self, address: Address, manner: Manner, connection: BlockingConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < IDLE_PER_ADDRESS_MAX:
                idle.append((manner, connection))
                return
        connection.close()


POOL = Pool()


def repeated(once: Callable[[], Answer], address: Callable[[], Address], options: ConnectionOptions) -> Answer:
    """Do `once` until it succeeds, with the pauses and as often as the options say.

    Raises BrokerUnreachable naming the address once the retries are used up; a refusal is not repeated.
    """
    failure: Exception | None = None
    for attempt in range(options.fetch_retries + 1):
        if attempt:
            time.sleep(options.fetch_retry_interval_ms / 1000)
        try:
            return once()
        except (LocalMisuse, BrokerRefused):
            raise
        except TlsFailed as refused:  # asking again does not change a certificate
            raise BrokerUnreachable(f"{refused} (the options 'tlsCaFile' and 'tlsServerName')") from refused
        except (OSError, LightMQError) as caught:
            failure = caught
    raise unreachable(address(), failure, options)


def ask(address: Address, command: Command, options: ConnectionOptions, *, refusal_is_error: bool = True) -> Command:
    """Send one request that may safely be repeated to a name server and return its answer.

    Raises BrokerUnreachable naming the address once the retries are used up, and BrokerRefused for a refusal, unless
    the caller wants to read the code itself.
    """

    def once() -> Command:
        try:
            with POOL.borrow(
                address, options.pull_timeout_ms, signer=options.signer, tls=options.client_tls
            ) as connection:
                return connection.request(command)
        except (OSError, LightMQError):
            POOL.forget(address)
            raise

    reply = repeated(once, lambda: address, options)
    return check(reply, address) if refusal_is_error else reply


def check(reply: Command, address: Address) -> Command:
    """Return the answer if it says yes, else raise BrokerRefused with the broker's own words.

    Raises BrokerMoved when the broker is not the master of its group any more.
    """
    where = join_address(*address)
    if not_master(reply) is not None:
        raise BrokerMoved(f"the broker at {where} is not the master of its group: {reply.remark}")
    try:
        return checked(reply)
    except Refused as refusal:
        raise BrokerRefused(f"the broker at {where} refused: {refusal}", refusal.code) from None


def unreachable(address: Address, failure: Exception | None, options: ConnectionOptions) -> BrokerUnreachable:
    """Return the error for an address that did not answer after all attempts."""
    reason = "" if failure is None else phrase(failure).removesuffix(NAME_SERVER)
    return BrokerUnreachable(
        f"no answer from {join_address(*address)} after {options.fetch_retries + 1} attempts: {reason}{NAME_SERVER}"
    )

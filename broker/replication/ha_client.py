"""A replica's connection to its master: copies the log, cuts its own where they part, acknowledges what its disk has.

The decisions are those of `follower`; here its actions are carried out on the store and the socket, in their order.
`ReplicationLink` is the socket: it hands each frame on as it comes. A lost connection is made again until `stop`, each
time with a handshake of its own.
Invariant: what is acknowledged is what the store reported as kept; after `stop` the store is not used any more; no
frame is handed on once the link has ended: it was lost, a frame broke the rules or was not taken, or no byte came for
too long. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, cast

from broker.replication.epochs import Epochs, Extent
from broker.replication.follower import Action, AdvanceConfirm, Cut, Follower, Over, ReplicaIdentity, Reset, Send, Write
from broker.replication.frames import FROM_MASTER, NONCE_BYTES, OLD_EPOCH, Decoder, Frame, Transfer
from broker.store.append.replica_writer import RawPart
from broker.store.errors import StoreError, StoreFailed
from broker.store.log_store import LogStore
from remoting import clock
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LightMQError, LocalMisuse, RemoteViolation
from remoting.transport.certificates import CertificateProblem
from remoting.transport.failures import ConnectionLost, split_address
from remoting.transport.turn import turn_of

BUFFER_BYTES = 4 * 1024 * 1024
"""Several parts as masters cut them: most are taken over where they arrived."""
DATA_BYTES_MAX = 64 * 1024 * 1024
"""Log bytes of one transfer: a part is at most as large as the master's, and the rest of one record."""


class ReplicationLink(asyncio.BufferedProtocol):
    """One connection to a master."""

    def __init__(
        self, opened: Callable[[ReplicationLink], None], received: Callable[[Frame], str], silence_s: float
    ) -> None:
        """`received` takes a frame and returns the reason to end the connection, or None."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """Why the stream has ended; an error if there is one."""
        self._opened, self._received = opened, received
        self._silence_s = silence_s
        self._heard_s = clock.monotonic_s()
        self._decoder = Decoder(FROM_MASTER, DATA_BYTES_MAX, BUFFER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._watch = self._loop.call_later(silence_s, self._check_silence)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Its owner may write now."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # frames are sent at once
        self._heard_s = clock.monotonic_s()
        self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes go."""
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on the frames that are whole; what they ask for at the end of the turn is done at once."""
        if self.ended.done():
            return
        self._heard_s = clock.monotonic_s()
        turn = turn_of(self._loop)
        turn.begin()
        try:
            for frame in self._decoder.filled(nbytes):
                reason = self._received(frame)
                if reason:
                    self._end(reason)
                if self.ended.done():
                    return
        except Exception as error:  # noqa: BLE001 - the task that awaits the end decides what it means
            self._end(error)
        finally:
            turn.run()

    def write(self, data: bytes) -> None:
        """Say something; nothing when the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self, reason: str = "closed here") -> None:
        """Drop the connection; `reason` is what the follower reports."""
        self._end(reason)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection to the master ended."""
        self._transport = None
        self._end(error or "the master closed the connection")

    def _check_silence(self) -> None:
        left_s = self._heard_s + self._silence_s - clock.monotonic_s()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._check_silence)
        else:
            self._end(TimeoutError("the master was silent for too long"))

    def _end(self, why: str | Exception) -> None:
        self._watch.cancel()
        if not self.ended.done():
            if isinstance(why, str):
                self.ended.set_result(why)
            else:
                self.ended.set_exception(why)
        if self._transport is not None:
            self._transport.abort()


class LogCopy:
    """A replica's log as its master's is copied to it: what is written, what is cut off, and what that cost."""

    def __init__(self, store: LogStore, log: Any) -> None:
        self.store = store
        self.received_bytes = 0
        self.cuts = 0
        self.lost_confirmed_bytes = 0
        """Bytes that were confirmed here and are not in the master's log; in the safe mode there are none."""
        self.damaged_bytes = 0
        """Bytes from the first damage of the log on that were given up to be taken from the master again."""
        self._damage_at = store.replica.sound_end if store.quarantined else None
        """Where the log is given up; damage that is found later is the next client's."""
        self._log = log

    def sound_extent(self) -> Extent:
        """The log up to its first damage: from there on the master's is taken."""
        store, end = self.store, self._damage_at
        if end is None:
            return Extent(store.begin_position, store.end_position, Epochs(store.replica.epochs))
        return Extent(store.begin_position, end, Epochs([each for each in store.replica.epochs if each[1] < end]))

    def write(self, transfer: Transfer) -> None:
        """Append a part of the master's log. Raises StoreError, RemoteViolation for what does not fit."""
        part = RawPart(
            transfer.position, transfer.segment_base, transfer.segment_size, transfer.epoch, memoryview(transfer.data)
        )
        self.store.replica.append_raw(part)
        self.received_bytes += len(transfer.data)

    def cut(self, action: Cut | Reset) -> None:
        """Cut off, durably, what the master does not have. Raises StoreFailed when the disk does not do it."""
        store, end = self.store, self.store.end_position
        if isinstance(action, Reset) or action.position < end:
            self.cuts += 1
            self.lost_confirmed_bytes += action.below_confirm
            self._log.warning(
                "log_cut",
                kind=type(action).__name__.lower(),
                position=action.position,
                end=end,
                confirmed_bytes=action.below_confirm,
            )
        try:
            if isinstance(action, Reset):
                store.replica.reset(action.position)
            else:
                store.replica.truncate(
                    action.position
                )  # also at the end: an epoch without a byte there is not the master's
        except OSError as error:
            raise StoreFailed(f"the log cannot be cut at {action.position}: {error}") from error
        if self._damage_at is not None:
            self.damaged_bytes += end - action.position
            self._damage_at = None
            self._log.warning("damaged_log_given_up", position=action.position, end=end)


RETRY_S = 0.05
"""Pause before the master is dialled again; doubles while no byte comes, and half of it is left to chance."""
RETRY_S_MAX = 0.4
CONNECT_TIMEOUT_S = 2.0


class HaClient:
    """Follows one master in one epoch."""

    def __init__(
        self,
        store: LogStore,
        identity: ReplicaIdentity,
        address: str,
        epoch: int,
        *,
        silence_ms: int,
        superseded: Callable[[int], None],
        failed: Callable[[Exception], None],
        log: Any,
        tls: ClientTls | None = None,
    ) -> None:
        """`superseded` is called with an epoch newer than ours, `failed` with what makes the store useless."""
        self.address = address
        self.connected = False
        """Whether the stream continues now."""
        self.master_end = 0
        self.log_copy = LogCopy(store, log)
        self._identity = identity
        self._epoch = epoch
        self._silence_s = silence_ms / 1_000
        self._superseded = superseded
        self._failed = failed
        self._log = log
        self._tls = tls
        self._task: asyncio.Task[None] | None = None
        self._follower: Follower | None = None
        self._link: ReplicationLink | None = None
        self._moved = asyncio.Event()
        self._said = ""

    def start(self) -> None:
        """Begin to dial the master and to copy its log."""
        self.log_copy.store.positions.on_kept(self._kept)
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Leave the master; nothing is done to the store afterwards."""
        task, self._task, self._follower = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def move(self, address: str, epoch: int) -> None:
        """The same master elsewhere, or in a newer epoch: the present connection ends."""
        self.address, self._epoch = address, max(self._epoch, epoch)
        self._moved.set()
        if self._link is not None:
            self._link.abort("the master is elsewhere now")

    async def _follow(self) -> None:
        pause_s = RETRY_S
        while True:
            before = self.log_copy.received_bytes
            try:
                reason = await self._connection()
            except (StoreFailed, LocalMisuse) as error:
                self._log.error("replica_failed", error=str(error))
                self._failed(error)
                return
            except (OSError, TimeoutError, LightMQError) as error:
                reason = str(error) or type(error).__name__
            except Exception as error:
                self._log.error("replica_failed", exc_info=error)
                self._failed(error)
                raise
            finally:
                self.connected, self._follower = False, None
            if reason != self._said:
                self._log.info("master_not_followed", address=self.address, reason=reason)
                self._said = reason
            pause_s = RETRY_S if self.log_copy.received_bytes > before else min(2 * pause_s, RETRY_S_MAX)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * (1 + secrets.randbelow(1_000) / 1_000) / 2):
                    await self._moved.wait()
            if self._moved.is_set():
                self._moved.clear()
                pause_s = RETRY_S / 2

    async def _connection(self) -> str:
        """One connection from its first to its last byte; why it ended."""
        host, port = split_address(self.address)
        security = self._security(host)
        self._link = link = ReplicationLink(self._opened, self._received, self._silence_s)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(lambda: link, host, port, **security)
            return await link.ended
        finally:
            self._link = None
            link.abort()

    def _opened(self, link: ReplicationLink) -> None:
        if self._task is None or link is not self._link:
            link.abort()
            return
        store, extent = self.log_copy.store, self.log_copy.sound_extent()
        self._follower = Follower(
            self._identity,
            extent,
            flushed=min(store.positions.kept, extent.end),
            confirm=min(store.confirm_position, extent.end),
            epoch=self._epoch,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )

    def _received(self, frame: Frame) -> str:
        """Do what a frame asks for; why the connection is to end then, or nothing."""
        follower = self._follower
        if follower is None:
            return "the replica stops"
        over = self._act(follower, follower.receive(frame))
        self.master_end = follower.master_end
        return over

    def _security(self, host: str) -> dict[str, Any]:
        """What makes the connection one with TLS, where that is configured."""
        if self._tls is None:
            return {}
        try:
            return {"ssl": self._tls.context(), "server_hostname": self._tls.name_for(host)}
        except CertificateProblem as problem:  # files that are being replaced are there again soon
            raise ConnectionLost(str(problem)) from problem

    def _act(self, follower: Follower, actions: Sequence[Action]) -> str:
        """Carry out what the follower decided, in order; why the connection is to end then, or nothing."""
        over = ""
        for action in actions:
            if isinstance(action, Send):
                if self._link is not None:
                    self._link.write(action.data)
            elif isinstance(action, Write):
                self._write(action)
            elif isinstance(action, AdvanceConfirm):
                self.log_copy.store.positions.limit_confirm(action.position)
            elif isinstance(action, (Cut, Reset)):
                over = self._cut(follower, action) or over
            else:
                over = self._ended(action)
        return over

    def _write(self, action: Write) -> None:
        self.log_copy.write(action.transfer)

    def _cut(self, follower: Follower, action: Cut | Reset) -> str:
        store = self.log_copy.store
        self.log_copy.cut(action)
        self.connected, self._said = True, ""
        self._log.info("master_followed", address=self.address, epoch=follower.epoch, position=store.end_position)
        return self._act(follower, follower.cut(store.end_position, store.positions.kept))

    def _ended(self, over: Over) -> str:
        if over.reason == OLD_EPOCH and over.epoch > self._epoch:
            self._superseded(over.epoch)
        return over.remark or "ended"

    def _kept(self, end: int) -> None:
        follower = self._follower
        if follower is not None and self._task is not None:
            with contextlib.suppress(StoreError, RemoteViolation):
                self._act(follower, follower.flushed(end))

"""A replica's end of its connection to its master, over as many connections as it takes: what it does, and when.

    dial --opened--> Follower: hello, cut, parts, acknowledgements --ended--> pause --> dial again, until `stop`

The decisions of one connection are those of `follower`; here its actions are carried out, in their order, on the log
(`LogCopy`) and the wire. A lost connection is dialled again after a pause that doubles while no byte comes. Invariant:
what is acknowledged is what the log reported as kept; after `stop` the log is not used any more; no frame is taken once
a stream is over: it was lost, a frame broke the rules or was not taken, or no byte came for too long. A log that fails
ends it for good. Pure: the world is a `StreamHost`, a `FollowingLog`, and a wire for each address that is dialled, so
the simulation runs this code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from broker.replication.epochs import Epochs, Extent
from broker.replication.follower import Action, AdvanceConfirm, Cut, Follower, LinkPhase, Over, Reset, Send, Write
from broker.replication.frames import FROM_MASTER, OLD_EPOCH, Decoder, Frame, Transfer, encode_leave
from broker.replication.host import FollowingLog, StreamHost, StreamWire
from broker.store.append.raw_part import RawPart
from broker.store.errors import StoreError, StoreFailed
from remoting.protocol.errors import LightMQError, LocalMisuse, RemoteViolation

BUFFER_BYTES = 4 * 1024 * 1024
"""Several parts as masters cut them: most are taken over where they arrived."""
DATA_BYTES_MAX = 64 * 1024 * 1024
"""Log bytes of one transfer: a part is at most as large as the master's, and the rest of one record."""


class LogCopy:
    """A replica's log as its master's is copied to it: what is written, what is cut off, and what that cost."""

    def __init__(self, store: FollowingLog, log: Any) -> None:
        self.store = store
        self.received_bytes = 0
        self.cuts = 0
        self.lost_confirmed_bytes = 0
        """Bytes that were confirmed here and are not in the master's log; in the safe mode there are none."""
        self.damaged_bytes = 0
        """Bytes from the first damage of the log on that were given up to be taken from the master again."""
        self._damage_at = _first_damage(store)
        """Where the log is given up; damage that is found later is the next client's."""
        self._log = log

    @property
    def is_damage_expired(self) -> bool:
        """Whether retention has removed what was to be given up: another extent is to be told."""
        return self._damage_at is not None and self._damage_at < self.store.begin_position

    def sound_extent(self) -> Extent:
        """The log up to its first damage: from there on the master's is taken."""
        store = self.store
        if self.is_damage_expired:
            self._damage_at = _first_damage(store)
        end = self._damage_at
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


def _first_damage(store: FollowingLog) -> int | None:
    return store.replica.sound_end if store.quarantined else None


class MasterStream:
    """One connection to a master, from its dialling on."""

    def __init__(self, following: LogFollowing) -> None:
        self.follower: Follower | None = None
        """What decides, once the connection is there."""
        self.wire: StreamWire | None = None
        self.is_over = False
        """Whether no more frames are taken; the wire may take a moment longer to end."""
        self.reason = ""
        """Why; the first reason given."""
        self.heard_ms = following.host.now_ms()
        """When bytes came, or the connection."""
        self._following = following
        self._decoder = Decoder(FROM_MASTER, DATA_BYTES_MAX, BUFFER_BYTES)

    def opened(self) -> None:
        """The connection is there: wait for the master's first word."""
        if not self.is_over:
            self.heard_ms = self._following.host.now_ms()
            self.follower = self._following.decider()

    def room(self) -> memoryview:
        """Where the next bytes go; pass their number to `filled`."""
        return self._decoder.room()

    def filled(self, count: int) -> None:
        """So many bytes have come."""
        self._take(self._decoder.filled(count))

    def received(self, data: bytes) -> None:
        """The same for bytes that are elsewhere."""
        self._take(self._decoder.feed(data))

    def kept(self, end: int) -> None:
        """More of the log is kept: acknowledge it."""
        if self.follower is not None and not self.is_over:
            self._act(self.follower, self.follower.flushed(end))

    def leave(self) -> None:
        """Take nothing more; the master need not wait for this broker, which stops."""
        follower = self.follower
        if self.wire is not None and follower is not None and follower.stage is LinkPhase.STREAMING:
            self.wire.send(encode_leave())
            self.is_over, self.reason = True, self.reason or "this broker stops"
            self.wire.close()
        else:
            self.end("this broker stops")

    def end(self, reason: str) -> None:
        """Take nothing more and drop the connection."""
        self.is_over = True
        self.reason = self.reason or reason
        if self.wire is not None:
            self.wire.abort()

    def ended(self, why: str) -> None:
        """The connection has ended, or none could be made."""
        self.is_over = True
        self._following.ended(self, self.reason or why)

    def _take(self, frames: Iterator[Frame]) -> None:
        if self.is_over or self.follower is None:
            return
        self.heard_ms = self._following.host.now_ms()
        try:
            for frame in frames:
                self._act(self.follower, self.follower.receive(frame))
                self._following.master_end = self.follower.master_end
                if self.is_over:
                    return
        except (StoreFailed, LocalMisuse) as error:
            self._following.fail(error)
        except LightMQError as error:
            self.end(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the log is not what it should be
            self._following.fail(error, exc_info=error)

    def _act(self, follower: Follower, actions: Sequence[Action]) -> None:
        """Carry out what the follower decided, in order."""
        log_copy = self._following.log_copy
        for action in actions:
            if isinstance(action, Send):
                if self.wire is not None and not self.is_over:
                    self.wire.send(action.data)
            elif isinstance(action, Write):
                log_copy.write(action.transfer)
            elif isinstance(action, AdvanceConfirm):
                log_copy.store.positions.limit_confirm(action.position)
            elif isinstance(action, (Cut, Reset)) and log_copy.is_damage_expired:
                self.end("the damage to be cut off has expired")
            elif isinstance(action, (Cut, Reset)):
                log_copy.cut(action)
                self._following.continues(follower.epoch)
                store = log_copy.store
                self._act(follower, follower.cut(store.end_position, store.positions.kept))
            else:
                self._following.refused(action)
                self.end(action.remark or "ended")


RETRY_S = 0.05
"""Pause before the master is dialled again; doubles while no byte comes, and half of it is left to chance."""
RETRY_S_MAX = 0.4


class LogFollowing:
    """Follows one master in one epoch."""

    def __init__(
        self,
        host: StreamHost,
        store: FollowingLog,
        follower: Callable[..., Follower],
        address: str,
        epoch: int,
        *,
        silence_ms: int,
        dial: Callable[[str, MasterStream], StreamWire],
        superseded: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`follower` is the class `Follower` with its identity; `dial` begins a connection, whose wire tells the stream
        when it is `opened`, what it `received`, and once that it has `ended`.

        `superseded` is called with an epoch newer than ours, `failed` with what makes the store useless.
        """
        self.host, self.silence_ms = host, silence_ms
        self.address = address
        self.connected = False
        """Whether the stream continues now."""
        self.master_end = 0
        self.log_copy = LogCopy(store, host.log)
        self.stream: MasterStream | None = None
        """The present connection, None in the pause before the next one."""
        self.said = ""
        """Why the last connection ended, as it was logged; empty once one continues."""
        self.epoch = epoch
        """The newest one known; a master of an earlier one is not followed."""
        self._make, self._dial = follower, dial
        self._superseded, self._failed = superseded, failed
        self._pause_s = RETRY_S
        self._received_before = 0
        self._rounds: int | None = 0
        """Connections so far; None once it is stopped."""

    def start(self) -> None:
        """Begin to dial the master and to copy its log."""
        self.log_copy.store.positions.on_kept(self._kept)
        self._connect(0)

    def stop(self, *, good_bye: bool = False) -> None:
        """Leave the master, and tell it when this broker stops; nothing is done to the store afterwards."""
        self._rounds = None
        self.connected = False
        if self.stream is not None and good_bye:
            self.stream.leave()
        elif self.stream is not None:
            self.stream.end("the replica stops")

    def move(self, address: str, epoch: int) -> None:
        """The same master elsewhere, or in a newer epoch: the present connection ends, the next begins at once."""
        self.address, self.epoch = address, max(self.epoch, epoch)
        self.connected = False
        self._pause_s = 0.0
        if self.stream is not None:
            self.stream.end("the master is elsewhere now")
        elif self._rounds is not None:
            self._connect(self._rounds)

    def fence(self, epoch: int) -> None:
        """Acknowledge nothing to the master of an earlier epoch from now on."""
        self.move(self.address, epoch)

    def introduce(self, follower: Callable[..., Follower]) -> None:
        """This replica is another than before, a learner or one no more: it says so on a new connection."""
        self._make = follower
        self.move(self.address, self.epoch)

    def _connect(self, round_: int) -> None:
        if round_ != self._rounds:
            return
        self._rounds += 1
        self._received_before = self.log_copy.received_bytes
        self.stream = stream = MasterStream(self)
        stream.wire = self._dial(self.address, stream)
        self._watch(self._rounds, self.silence_ms)

    def _watch(self, round_: int, left_ms: int) -> None:
        # A timer holds no stream: one that has ended would keep its large buffer until then.
        self.host.later(left_ms / 1_000, partial(self._check_silence, round_))

    def _check_silence(self, round_: int) -> None:
        if round_ != self._rounds or self.stream is None:
            return
        left_ms = self.stream.heard_ms + self.silence_ms - self.host.now_ms()
        if left_ms > 0:
            self._watch(round_, left_ms)
        else:
            self.stream.end("the master was silent for too long")

    # -- what a stream reports -----------------------------------------------------------------------------------------

    def decider(self) -> Follower:
        """What decides on a new connection, for the log as it is now."""
        store, extent = self.log_copy.store, self.log_copy.sound_extent()
        return self._make(
            extent,
            flushed=min(store.positions.kept, extent.end),
            confirm=min(store.confirm_position, extent.end),
            epoch=self.epoch,
            nonce=self.host.nonce(),
        )

    def continues(self, epoch: int) -> None:
        """The log is cut where it parts from the master's: the stream continues from there."""
        self.connected, self.said = True, ""
        position = self.log_copy.store.end_position
        self.host.log.info("master_followed", address=self.address, epoch=epoch, position=position)

    def refused(self, over: Over) -> None:
        """The master refuses, or what it says cannot be."""
        if over.reason == OLD_EPOCH and over.epoch > self.epoch:
            self._superseded(over.epoch)

    def fail(self, error: Exception, **details: Any) -> None:
        """The log cannot be written as the master's is."""
        self.host.log.error("replica_failed", error=str(error), **details)
        self.stop()
        self._failed(error)

    def ended(self, stream: MasterStream, reason: str) -> None:
        """A connection has ended: dial again after a pause."""
        if stream is not self.stream:
            return
        self.stream, self.connected = None, False
        if self._rounds is None:
            return
        if reason != self.said:
            self.host.log.info("master_not_followed", address=self.address, reason=reason)
            self.said = reason
        if self._pause_s and self.log_copy.received_bytes > self._received_before:
            self._pause_s = RETRY_S
        self.host.later(self._pause_s * (1 + self.host.chance()) / 2, partial(self._connect, self._rounds))
        self._pause_s = min(2 * self._pause_s, RETRY_S_MAX) or RETRY_S

    def _kept(self, end: int) -> None:
        if self.stream is not None and self._rounds is not None:
            with contextlib.suppress(StoreError, RemoteViolation):
                self.stream.kept(end)

"""The record of what was done at this controller: one line of a file for each administrative act; AUDIT_LIST (9116).

Brokers record the acts that they carry out in their log. What only controllers do (the election of a named master,
brokers cleaned from a group, permissions, entries of the key-value table) is recorded where it was carried out, by each
controller for itself; tools ask all of them. A controller that answers "not the leader" has done nothing and records
nothing.

    audit.jsonl  {"time_ms", "who", "role", "address", "act", "target", "outcome", "road", "id"}, one line each

Invariants: an act is answered once its line is on the disk, or the failure to write it is logged and counted; ids rise
by one and are never used again; the file has `RECORDS_MAX` lines younger than the retention, and at most as many more
before it is written anew. A torn last line is dropped at the start, a damaged one is logged and left out.
Loop rule: the loop's thread; lines are written by another one, all that have gathered at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from controller.api import number
from remoting import background
from remoting.access.rights import ACTS
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.acts import (
    DONE,
    REFUSED_PER_MINUTE_MAX,
    ActRecord,
    RefusedActs,
    described,
    watched,
)
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer
from runtime.clock import Clock
from runtime.files import atomic_replace, fsync_dir
from runtime.metrics import Registry

FILE = "audit.jsonl"
RECORDS_MAX = 10_000
LIMIT_MAX = 200
"""Most records in one page."""
_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(ActRecord).decode


class ControllerActs:
    """Records acts in a file and lists them."""

    def __init__(
        self,
        directory: Path,
        retention_ms: int,
        name: str,
        *,
        clock: Clock,
        authorizer: Authorizer,
        log: Any,
        registry: Registry | None,
    ) -> None:
        """Read the file in `directory`; `name` is this controller's. Raises OSError."""
        self._name = f"controller {name}"
        self._path = directory / FILE
        self._retention_ms = retention_ms
        self._clock, self._authorizer, self._log = clock, authorizer, log
        self._refused = RefusedActs(REFUSED_PER_MINUTE_MAX)
        self._waiting: list[tuple[bytes, Peer, Command | None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._records, self._lines = self._read()
        """The newest acts, and how many lines the file has."""
        self._next_id = int(self._records[-1].id) + 1 if self._records else 0
        registry = registry or Registry()
        self._unrecorded = registry.counter(
            "rocketmq_audit_unrecorded_total", "Administrative acts without a record", ("reason",)
        )
        self._acts = registry.counter("rocketmq_audit_acts_total", "Administrative acts", ("outcome",))

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: AUDIT_LIST."""
        return {RequestCode.AUDIT_LIST: self.audit_list}

    def watching(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers, acts recorded."""
        return watched(handlers, ACTS, self._report)

    async def stop(self) -> None:
        """Wait until what was recorded is written."""
        if self._writer is not None:
            await self._writer

    def audit_list(self, _peer: Peer, command: Command) -> Command:
        """9116: a page of the acts, newest first."""
        fields = command.fields
        limit = min(number(command, "limit", LIMIT_MAX), LIMIT_MAX)
        if limit < 1:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"limit {limit} is no number from 1 on")
        from_ms = max(number(command, "from_ms", 0), self._oldest_ms())
        before = number(command, "before", self._next_id)
        until_ms = number(command, "until_ms") if "until_ms" in fields else None
        wanted = (
            record
            for record in reversed(self._records)
            if record.time_ms >= from_ms
            and int(record.id) < before
            and (until_ms is None or record.time_ms <= until_ms)
        )
        found = list(islice(wanted, limit + 1))
        records = found[:limit]
        following = records[-1].id if len(found) > limit else ""
        return command.reply(body=_encode({"records": records, "next": following, "server": self._name}))

    def _oldest_ms(self) -> int:
        return self._clock.now_ms() - self._retention_ms if self._retention_ms else 0

    def _report(self, peer: Peer, command: Command, reply: Command | None, outcome: str) -> None:
        """Record an act, then answer it."""
        record = described(self._authorizer, peer, command, outcome, self._clock.now_ms())
        if reply is not None and reply.code == ResponseCode.CONTROLLER_NOT_LEADER:
            peer.send(reply)
            return
        self._acts.child("done" if outcome == DONE else outcome.partition(":")[0]).value += 1
        self._log.info("administrative_act", **msgspec.to_builtins(record))
        if self._refused.too_many(record):
            self._unrecorded.child("refused_too_often").value += 1
            if reply is not None:
                peer.send(reply)
            return
        self._record(record, peer, reply)

    def _record(self, record: ActRecord, peer: Peer, reply: Command | None) -> None:
        listed = msgspec.structs.replace(record, id=str(self._next_id))
        self._next_id += 1
        self._records.append(listed)
        self._waiting.append((_encode(listed) + b"\n", peer, reply))
        if self._writer is None or self._writer.done():
            self._writer = background.task(self._write(), "writes the audit log")

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                if self._lines >= 2 * RECORDS_MAX:
                    await self._renew()
                else:
                    await asyncio.to_thread(_append, self._path, b"".join([line for line, _peer, _reply in waiting]))
                    self._lines += len(waiting)
            except OSError as error:
                self._unrecorded.child("store").value += len(waiting)
                self._log.error("audit_unrecorded", acts=len(waiting), error=str(error))
            for _line, peer, reply in waiting:
                if reply is not None:
                    peer.send(reply)

    async def _renew(self) -> None:
        """Write the file anew, with what is to be kept; those that wait are in it."""
        oldest_ms = self._oldest_ms()
        kept = [record for record in self._records if record.time_ms >= oldest_ms]
        data = b"".join([_encode(record) + b"\n" for record in kept])
        await asyncio.to_thread(atomic_replace, self._path, data)
        self._lines = len(kept)

    def _read(self) -> tuple[deque[ActRecord], int]:
        records: deque[ActRecord] = deque(maxlen=RECORDS_MAX)
        data = self._path.read_bytes() if self._path.exists() else b""
        lines = data.split(b"\n")
        if lines.pop():  # torn by the end of the process; it was not answered
            os.truncate(self._path, data.rfind(b"\n") + 1)
        for number_of_line, line in enumerate(lines, 1):
            try:
                records.append(_decode(line))
            except msgspec.MsgspecError as error:
                self._log.error("audit_damaged", path=str(self._path), line=number_of_line, reason=str(error))
        return records, len(lines)


def _append(path: Path, data: bytes) -> None:
    """Append durably; what a failure left of a line is removed again, if that is possible."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fdatasync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)
    if new:
        fsync_dir(path.parent)

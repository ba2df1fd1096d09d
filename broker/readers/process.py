"""One reader process: RANGE_PULL (9005) and FILTERED_PULL (9009) answered from an attached store.

Requests, answers and rules are those of the broker. What cannot be answered for certain is refused with its reason, and
the client asks the broker instead. Staged rows are recognised by their flag, because a reader knows no names; where a
policy decides which topics may be read, it is asked about the topics named in the records themselves.

The process gets its settings in one line on standard input and serves until that pipe ends. The pipe ends with the
broker, however the broker ends, so no reader outlives it. Standard output carries reports (`messages`), standard error
the log. Invariants: nothing at or above the confirm position and nothing staged is ever in an answer; the first report
is written when the port is open. Thread rule: one loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from broker.readers.messages import ReaderReport, ReaderSettings, settings_of, to_line, users_of
from broker.reading.pull import RANGE_COUNT_MAX, filtered, judge_for, range_reply
from broker.store.attached.store import AttachedStore
from broker.store.errors import CorruptLog, StoreError, Unsettled
from broker.store.index.reader import NO_SUCH_QUEUE, RangeResult
from remoting.access.key_policy import KeyPolicy
from remoting.access.rights import CONSUME, of_record, of_topic, with_rights
from remoting.native.vectors import view
from remoting.protocol.bodies.pull_body import (
    VIEW_FIELD,
    FilteredWant,
    RangeWant,
    decode_filtered_pull,
    decode_range_pull,
    decode_row_filter,
    encode_filtered_reply,
)
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import DISPATCH_SIZE, FLAG_STAGED, HEADER_SIZE, RecordView
from remoting.server.authorizer import Authorizer, TopicJudge
from remoting.server.router import Access, Router, parse_access_keys
from remoting.server.server import RemotingServer
from remoting.transport.certificates import ServerTls
from remoting.transport.contracts import Peer
from runtime import logs, process
from runtime.files import WatchedFile
from runtime.tls_config import ListenTlsConfig

_FLAGS_AT = 48
_COUNTS_AT = 56
"""Where a record has the numbers of its queues and properties and the length of its topic, two bytes each."""
T = TypeVar("T")


class RangeService:
    """Answers the ranges of one reader process and counts them."""

    def __init__(self, store: AttachedStore, *, pull_bytes_max: int, authorizer: Authorizer | None = None) -> None:
        self._store = store
        self._pull_bytes_max = pull_bytes_max
        self._authorizer = authorizer or Authorizer()
        self._report = ReaderReport(refused={}, withheld={})

    @property
    def report(self) -> ReaderReport:
        """The counts so far."""
        self._report.retries = self._store.retries
        return self._report

    def range_pull(self, peer: Peer, command: Command) -> Command:
        """Records of one queue in [offset, end offset), with the start of each record in the blob."""
        want = self._decoded(decode_range_pull, command)
        found = self._answer(peer, command, want, RANGE_COUNT_MAX)
        self._count(command, len(found.starts), len(found.blob))
        return command.reply(body=range_reply(found))

    def filtered_pull(self, peer: Peer, command: Command) -> Command:
        """The same without the records that do not pass the request's filter."""
        want = self._decoded(decode_filtered_pull, command)
        judge = self._decoded(lambda _: judge_for(want.row_filter), command)
        filters = decode_row_filter(want.row_filter).mqtt
        found = self._answer(peer, command, want, judge.look_max, filters)
        pulled = filtered(found, judge, self._readable(peer, command, filters), self._report.withheld)
        self._count(command, pulled.count, len(pulled.blob))
        return command.reply(body=encode_filtered_reply(pulled))

    def _decoded(self, read: Callable[[bytes], T], command: Command) -> T:
        """Decode a request; a malformed one is counted and refused."""
        try:
            return read(command.body)
        except (Refused, RemoteViolation):
            self._report.requests += 1
            self._count_refusal("malformed")
            raise

    def _readable(self, peer: Peer, command: Command, filters: Sequence[str]) -> TopicJudge | None:
        return None if self._authorizer.open else self._authorizer.readable(peer, command, filters)

    def _answer(
        self,
        peer: Peer,
        command: Command,
        want: RangeWant | FilteredWant,
        count_max: int,
        filters: Sequence[str] = (),
    ) -> RangeResult:
        """The records of a range; with `filters` each is judged later, without them the peer must be allowed all."""
        self._report.requests += 1
        try:
            found = self._read(want, count_max)
            if filters:
                self._readable(peer, command, filters)
            else:
                self._authorize(peer, command, found)
            return found
        except StoreError as error:
            self._count_refusal(_reason(error))
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"ask the broker: {error}") from error
        except Refused:
            self._count_refusal("not_authorized")
            raise

    def _count(self, command: Command, records: int, size: int) -> None:
        if VIEW_FIELD in command.fields:
            self._report.viewed += records
        else:
            self._report.records += records
            self._report.bytes += size

    def _read(self, want: RangeWant | FilteredWant, count_max: int) -> RangeResult:
        bytes_max = min(want.max_bytes, self._pull_bytes_max)
        found = self._store.read_range(want.queue_id, want.offset, count_max, bytes_max, want.end_offset)
        flags = view(found.blob, "I", len(found.blob) // 4)[(found.starts + _FLAGS_AT) // 4]
        if (flags & FLAG_STAGED).any():
            return RangeResult(NO_SUCH_QUEUE, 0, 0, 0, 0)
        return found

    def _authorize(self, peer: Peer, command: Command, found: RangeResult) -> None:
        if self._authorizer.open:
            return
        if self._whole_topic_allowed(peer, command, found):
            return
        records = (RecordView(memoryview(found.blob), at) for at in found.starts)
        for resource in sorted({of_record(record) for record in records}):
            self._authorizer.authorize(peer, command, CONSUME, resource)

    def _whole_topic_allowed(self, peer: Peer, command: Command, found: RangeResult) -> bool:
        """Whether all records are of one topic that may be read as a whole, so that none is checked by itself."""
        topic = one_topic(found)
        return topic is not None and self._authorizer.allows(peer, command, CONSUME, of_topic(topic))

    def _count_refusal(self, reason: str) -> None:
        self._report.refused[reason] = self._report.refused.get(reason, 0) + 1


def one_topic(found: RangeResult) -> str | None:
    """The RocketMQ topic of all records; None when there are several, or no records."""
    if not len(found.starts):
        return None
    words, blob = view(found.blob, "H", len(found.blob) // 2), found.blob
    at = (found.starts + _COUNTS_AT) // 2
    sizes = words[at + 2]
    if (sizes != sizes[0]).any():
        return None
    begins = found.starts + HEADER_SIZE + words[at] * DISPATCH_SIZE + words[at + 1] * 4
    first, size = begins[0], sizes[0]
    name = blob[first : first + size]
    return name.decode("utf-8", "replace") if all(blob.startswith(name, begin) for begin in begins) else None


def _reason(error: StoreError) -> str:
    if isinstance(error, Unsettled):
        return "unsettled"
    return "corrupt" if isinstance(error, CorruptLog) else "index"


INPUT, OUTPUT = 0, 1
PIPE_BYTES = 65_536
UPKEEP_INTERVAL_S = 1.0
"""How often counts are reported and files that the broker has deleted are closed."""
STOP_DEADLINE_S = 1.0


def main() -> int:
    """Serve until standard input ends; the exit status."""
    process.refuse_optimised()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, whose end closes the pipe
    try:
        settings = settings_of(_first_line())
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"a reader process is started by its broker: {error}\n")
        return 2
    logs.setup(settings.log_level, json=settings.log_json)
    try:
        process.run(serve(settings))
    except (OSError, StoreError) as error:
        logs.get_logger("reader").error("range_reader_failed", error=str(error))
        return 1
    return 0


async def serve(settings: ReaderSettings) -> None:
    """Open the directory and the port, report, and stop when standard input ends. Raises OSError, StoreError."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    store = AttachedStore(Path(settings.directory))
    policy = (
        None
        if settings.access_list is None
        else KeyPolicy(
            Path(settings.access_list),
            logs.get_logger("reader"),
            WatchedFile,
            partly=settings.partly_readable_filters,
        )
    )
    loop.add_reader(INPUT, UsersPipe(policy, ended).moved)
    service = RangeService(store, pull_bytes_max=settings.pull_bytes_max, authorizer=Authorizer(policy))
    access = Access(
        parse_access_keys(settings.access_keys),
        open_to_all=settings.open_to_all,
        keys_count=policy is not None,
        bound_only=settings.bound_signatures_only,
        created=None if policy is None else policy.secrets,
    )
    table = {RequestCode.RANGE_PULL: service.range_pull, RequestCode.FILTERED_PULL: service.filtered_pull}
    server = RemotingServer(
        Router(with_rights(table), access=access),
        frame_size_bytes_max=settings.frame_size_bytes_max,
        output_bytes_max=settings.output_bytes_max,
        connections_max=settings.connections_max,
        tls=_tls(settings),
        access=access,
    )
    try:
        await server.start(settings.host, settings.port, reuse_port=True)
        process.settle_garbage()
        await _report(service, store, policy, ended)
    finally:
        loop.remove_reader(INPUT)
        await server.stop(STOP_DEADLINE_S)
        store.close()


def _tls(settings: ReaderSettings) -> ServerTls | None:
    """The broker's own TLS settings; None without TLS."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return ServerTls.of(
        ListenTlsConfig(
            mode=settings.tls_mode,
            certificate=Path(settings.tls_certificate),
            key=Path(settings.tls_key),
            client_ca=None if settings.tls_client_ca is None else Path(settings.tls_client_ca),
            client_required=settings.tls_client_required,
        )
    )


async def _report(service: RangeService, store: AttachedStore, policy: KeyPolicy | None, ended: asyncio.Event) -> None:
    """Report that the port is open, then report counts until the end."""
    reported = _write(service.report)
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), UPKEEP_INTERVAL_S)
        except TimeoutError:
            store.let_go()
            if policy is not None:
                await policy.refresh()
        if reported != to_line(service.report):
            reported = _write(service.report)


def _write(report: ReaderReport) -> bytes:
    line = to_line(report)
    os.write(OUTPUT, line)
    return line


def _first_line() -> bytes:
    """The first line of standard input, and not a byte more: what follows is for `UsersPipe`."""
    with open(INPUT, "rb", buffering=0, closefd=False) as pipe:
        return pipe.readline()


class UsersPipe:
    """The pipe from the broker behind the settings: users and rules made by requests, line by line."""

    def __init__(self, policy: KeyPolicy | None, ended: asyncio.Event) -> None:
        self._policy = policy
        self._ended = ended
        self._data = b""

    def moved(self) -> None:
        """Read what is there; the end of the pipe is the end of the reader, and so is a line that is no table."""
        found = os.read(INPUT, PIPE_BYTES)
        *lines, self._data = (self._data + found).split(b"\n")
        try:
            if lines and self._policy is not None:
                self._policy.use(users_of(lines[-1]))
        except msgspec.MsgspecError as error:
            logs.get_logger("reader").error("range_reader_users_unreadable", error=str(error))
            self._ended.set()
        if not found:
            self._ended.set()

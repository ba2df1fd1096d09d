"""One reader process: told what to do by one line on standard input, it serves until that pipe ends.

The pipe ends with the broker, however the broker ends, so no reader outlives it. Standard output carries reports
(`messages`), standard error the log. Invariant: the first report says that the port is open. Thread rule: one loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from broker.readers.messages import ReaderReport, ReaderSettings, settings_of, to_line
from broker.readers.service import RangeService
from broker.store.attached.store import AttachedStore
from broker.store.errors import StoreError
from remoting.access.key_policy import KeyPolicy
from remoting.access.rights import with_rights
from remoting.protocol.frames.codes import RequestCode
from remoting.server.access import Access, parse_access_keys
from remoting.server.authorizer import Authorizer
from remoting.server.router import Router
from remoting.server.server import RemotingServer
from remoting.server.tls import ServerTls
from runtime import logs, process
from runtime.files import WatchedFile
from runtime.tls_config import ListenTlsConfig

INPUT, OUTPUT = 0, 1
UPKEEP_INTERVAL_S = 1.0
"""How often counts are reported and what the broker has deleted is let go."""
STOP_DEADLINE_S = 1.0


def main() -> int:
    """Serve until standard input ends; the exit status."""
    process.refuse_optimised()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker; the pipe tells us
    try:
        settings = settings_of(sys.stdin.buffer.readline())
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
    loop.add_reader(INPUT, lambda: _pipe_moved(ended))
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
    service = RangeService(store, pull_bytes_max=settings.pull_bytes_max, authorizer=Authorizer(policy))
    access = Access(
        parse_access_keys(settings.access_keys),
        open_to_all=settings.open_to_all,
        keys_count=policy is not None,
        bound_only=settings.bound_signatures_only,
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
    """The broker's own; None where it has none."""
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
    """Say that we listen, then keep the counts known until the end."""
    said = _say(service.report)
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), UPKEEP_INTERVAL_S)
        except TimeoutError:
            store.let_go()
            if policy is not None:
                await policy.refresh()
        if said != to_line(service.report):
            said = _say(service.report)


def _say(report: ReaderReport) -> bytes:
    line = to_line(report)
    os.write(OUTPUT, line)
    return line


def _pipe_moved(ended: asyncio.Event) -> None:
    if not os.read(INPUT, 4096):
        ended.set()

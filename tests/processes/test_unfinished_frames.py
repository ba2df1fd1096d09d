"""Many connections that each send most of a large frame, or nothing: memory stays within its budget.

They are closed in time, and other clients are still served.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import encode_frame
from remoting.transport.signature import Signer
from tests.processes.rig import Process, Server

CONNECTIONS = 14
FRAME_BYTES = 15 * 1_048_576
SENT_BYTES = 14 * 1_048_576
BUDGET_BYTES = 33_554_432
GROWTH_KB_MAX = 2 * BUDGET_BYTES // 1_024
"""The budget and as much again for the allocator; without a budget it is 196 MB."""
DEADLINE_S = 120.0
CONNECTIONS_BEGUN = 1


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    """With rules: a key must be proved on this machine too."""
    made = start(tmp_path, *rules(tmp_path, "broker"))
    yield made
    made.kill_if_running()


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Server]:
    """A controller of its own with the same rules."""
    settings = (*rules(tmp_path, "controller"), "controller.port=0", "controller.admin_port=0")
    more = [word for setting in settings for word in ("--set", setting)]
    made = Process(tmp_path / "controller", ["controller", "--data", str(tmp_path / "c"), *more], "remoting")
    made.start()
    yield made
    made.kill_if_running()


@pytest.fixture
def unguarded(tmp_path: Path) -> Iterator[Server]:
    """Without rules: this machine is trusted, and the budget holds nevertheless."""
    made = start(tmp_path, f"broker.limits.read_bytes_max={BUDGET_BYTES}", "broker.limits.frame_deadline_ms=2000")
    yield made
    made.kill_if_running()


def rules(folder: Path, part: str) -> tuple[str, str]:
    """Settings of a part with an access list: one key may write, one may read the metrics."""
    (folder / "rules").write_text("user etl\ntopic readwrite plant/#\nuser watch\nrole monitor\n")
    return f"{part}.access_list={folder / 'rules'}", f"{part}.access_keys=etl:secret,watch:secret"


def start(folder: Path, *settings: str) -> Server:
    made = Server(folder / "data", *(word for setting in settings for word in ("--set", setting)))
    made.start()
    return made


def begin(server: Server, head: bytes) -> list[socket.socket]:
    """Connections that send the head, then zeros, as far as the broker reads."""
    opened = []
    for _ in range(CONNECTIONS):
        made = socket.create_connection(("127.0.0.1", server.ports["remoting"]))
        made.setblocking(False)
        opened.append(made)
    left = {each: head + bytes(SENT_BYTES) for each in opened}
    still = time.monotonic()
    while left and time.monotonic() - still < 1.0:
        for each, data in list(left.items()):
            try:
                taken = each.send(memoryview(data)[: 1 << 20])
            except BlockingIOError:
                continue
            except OSError:
                del left[each]
                continue
            still = time.monotonic()
            left[each] = data[taken:]
            if not left[each]:
                del left[each]
        time.sleep(0.001)
    return opened


def all_cut(opened: list[socket.socket]) -> bool:
    """Whether the broker has closed every one of them."""
    cut = 0
    for each in opened:
        try:
            cut += each.recv(1 << 20) == b""
        except BlockingIOError:
            continue
        except OSError:
            cut += 1
    return cut == len(opened)


def close(opened: list[socket.socket]) -> None:
    for each in opened:
        with contextlib.suppress(OSError):
            each.close()


def count(server: Server, name: str) -> int:
    headers = {"Authorization": "Bearer watch:secret"}
    asked = urllib.request.Request(f"http://127.0.0.1:{server.ports['admin']}/metrics", headers=headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        page = answer.read().decode()
    found = re.search(rf"^rocketmq_remoting_read_{name} (\d+)", page, re.MULTILINE)
    assert found, page
    return int(found[1])


def send_large(server: Server, signer: Signer | None) -> Command:
    """A message of 3 MB as the first request of a connection."""
    fields = {"a": "p", "b": "plant", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    command = Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=bytes(3 * 1_048_576))
    with BlockingConnection.dial(f"127.0.0.1:{server.ports['remoting']}", 30_000, signer=signer) as connection:
        return connection.request(command)


def head_of(command: Command) -> bytes:
    """The beginning of a frame of FRAME_BYTES."""
    empty = encode_frame(command)
    command.body = bytes(FRAME_BYTES - len(empty))
    return encode_frame(command)[: len(empty)]


def test_without_a_key_nothing_large_is_buffered(guarded: Server) -> None:
    holds_nothing_large(guarded)


def test_controllers_buffer_nothing_large_either(controller: Server) -> None:
    holds_nothing_large(controller)


def holds_nothing_large(server: Server) -> None:
    before = server.rss_kb()
    opened = begin(server, head_of(Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "plant"})))
    try:
        assert server.rss_kb() - before < 16 * 1_024
        assert all_cut(opened)
        assert count(server, "cut_unproven_connection_total") == CONNECTIONS
        assert count(server, "unproven_bytes") == 0
    finally:
        close(opened)


@pytest.mark.parametrize("kind", ["guarded", "controller"])
def test_silent_connections_do_not_use_up_the_limit(kind: str, request: pytest.FixtureRequest) -> None:
    """A hundred and twenty silent ones, and one that begins a small frame, are cut; a client with a key stays."""
    server: Server = request.getfixturevalue(kind)
    command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
    address = f"127.0.0.1:{server.ports['remoting']}"
    with BlockingConnection.dial(address, 30_000, signer=Signer("etl", "secret")) as idle:
        assert idle.request(command).code == 0
        opened = [socket.create_connection(("127.0.0.1", server.ports["remoting"])) for _ in range(120)]
        opened[0].send(encode_frame(Command(1))[:9])
        try:
            for each in opened:
                each.setblocking(False)
            until_all_cut(opened)
            assert count(server, "cut_silent_total") == len(opened) - CONNECTIONS_BEGUN
            assert count(server, "cut_deadline_total") + count(server, "cut_slow_total") == CONNECTIONS_BEGUN
            assert idle.request(command).code == 0
        finally:
            close(opened)


def test_the_administration_port_buffers_little(guarded: Server) -> None:
    """Three hundred unfinished requests, and as many whose answers are not read; a probe is answered."""
    before = guarded.rss_kb()
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    whole = request + b"X: " + b"x" * 4_000 + b"\r\n\r\n"
    opened = [socket.create_connection(("127.0.0.1", guarded.ports["admin"])) for _ in range(300)]
    try:
        for at, each in enumerate(opened):
            each.setblocking(False)
            with contextlib.suppress(OSError):
                each.send(request + b"X: " + b"x" * 8_000 if at % 2 else whole * 250)
        assert guarded.rss_kb() - before < 16 * 1_024
        with urllib.request.urlopen(f"http://127.0.0.1:{guarded.ports['admin']}/livez", timeout=10) as answer:
            assert answer.status == 200
        until_all_cut(opened)
    finally:
        close(opened)


def test_a_claimed_key_allows_no_more_than_the_share_of_an_address(guarded: Server) -> None:
    """A client's first request may be large, because its signature can only be checked at its end."""
    assert send_large(guarded, Signer("etl", "secret")).code == 0
    before = guarded.rss_kb()
    claim = {"b": "plant", "AccessKey": "etl", "Signature": "guessed"}
    opened = begin(guarded, head_of(Command(RequestCode.SEND_MESSAGE_V2, fields=claim)))
    try:
        assert guarded.rss_kb() - before < GROWTH_KB_MAX
        assert count(guarded, "cut_unproven_address_total") >= CONNECTIONS // 2
        until_all_cut(opened)
        assert count(guarded, "unproven_bytes") == 0
        assert send_large(guarded, Signer("etl", "secret")).code == 0
    finally:
        close(opened)


def test_where_no_key_is_needed_the_budget_holds(unguarded: Server) -> None:
    before = unguarded.rss_kb()
    opened = begin(unguarded, head_of(Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "plant"})))
    try:
        assert unguarded.rss_kb() - before < GROWTH_KB_MAX
        assert 0 < count(unguarded, "reserved_bytes") <= BUDGET_BYTES
        assert count(unguarded, "cut_deadline_total") < CONNECTIONS
        with BlockingConnection.dial(f"127.0.0.1:{unguarded.ports['remoting']}", 10_000) as connection:
            assert connection.request(Command(RequestCode.CLUSTER_STATUS)).code == 0
        until_all_cut(opened)
        assert send_large(unguarded, None).code == 0
        assert count(unguarded, "reserved_bytes") == 0
        assert count(unguarded, "cut_deadline_total") > 0
    finally:
        close(opened)


def until_all_cut(opened: list[socket.socket]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pending = list(opened)
    while pending:
        pending = [each for each in pending if not all_cut([each])]
        assert time.monotonic() < deadline, f"{len(pending)} are still open"
        time.sleep(0.05)

"""A disk that is full or damaged: a clear refusal, reading continues, nothing accepted is lost or truncated."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from remoting.protocol.records.record import HEADER
from tests.processes import wire
from tests.processes.rig import DEADLINE_S, ROOT, Client, Server, Stream, expect_all, no_traceback

MIB = 1024 * 1024
NEVER_ENOUGH = "--set=broker.store.free_space_bytes_min=1000000000000000"
SMALL_FILES = (
    f"--set=broker.store.segment_size_bytes={16 * MIB}",
    f"--set=broker.store.free_space_bytes_min={12 * MIB}",
    f"--set=broker.store.ballast_size_bytes={4 * MIB}",
)

pytestmark = pytest.mark.processes


def test_below_the_floor_reading_continues(tmp_path: Path) -> None:
    """A stored session is resumed and reads; publishers end with a logged reason; with room again all continues."""
    server = Server(tmp_path / "data")
    server.start()
    reader = Client(server, "reader", clean=False)
    reader.subscribe(("line/#", 1))
    reader.close()
    publisher = Client(server, "publisher")
    publisher.publish_many("line/a", 0, 500)
    publisher.close()
    assert server.end(signal.SIGTERM) == 0
    server.options = (NEVER_ENOUGH,)
    server.start()
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/readyz", timeout=DEADLINE_S)
        reader = Client(server, "reader", clean=False)
        assert reader.present
        expect_all(reader, {"line/a": 500})
        peer = wire.Peer(server.port)
        peer.send(wire.connect("writer") + wire.publish("line/a", b"500", qos=1))
        assert peer.until_closed() == b"\x20\x02\x00\x00"
        peer.close()
        new = wire.Peer(server.port)
        new.send(wire.connect("new", flags=0))
        assert new.until_closed() == b"\x20\x02\x00\x03"
        new.close()
        reader.close()
        log = server.log.read_text()
        assert log.count(" disk_full ") == 1
        assert "free_space_bytes_min" in log
        assert "the disk of this broker is full, nothing was stored" in log
        assert server.end(signal.SIGTERM) == 0
        server.options = ()
        server.start()
        publisher = Client(server, "publisher")
        publisher.publish_many("line/a", 500, 10)
        reader = Client(server, "reader", clean=False)
        reader.until(lambda: reader.latest.get("line/a") == b"509")
        for client in (publisher, reader):
            client.close()
        no_traceback(server)
    finally:
        server.kill_if_running()


@pytest.mark.slow
def test_a_disk_fills_up_under_publishers(small_disk: Path) -> None:
    """Their connections end, what was acknowledged stays, and with room they continue; a restart in between works."""
    server = Server(small_disk / "data", *SMALL_FILES)
    server.log = small_disk.with_name("server.log")
    server.start()
    try:
        online = Client(server, "online", clean=False)
        online.subscribe(("line/#", 1))
        stream = Stream(server, "line/a", padding_bytes=20_000)
        online.until(lambda: " publishes_refused " in server.log.read_text())
        server.kill()
        server.start()
        subprocess.run(["mount", "-o", f"remount,size={600 * MIB}", str(small_disk)], check=True)
        stream.flowing(1)
        count = stream.end()
        online.until(lambda: online.latest.get("line/a", b"").strip() == b"%d" % (count - 1))
        assert list(dict.fromkeys(online.numbers("line/a"))) == list(range(count))
        online.close()
        assert server.end(signal.SIGTERM) == 0
        no_traceback(server)
    finally:
        server.kill_if_running()


def test_a_flush_that_fails_ends_the_server_and_the_restart_has_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No acknowledgement after the failure, status 1, the reason as the last line."""
    server = Server(tmp_path / "data", SMALL_FILES[0])
    monkeypatch.setenv("LIGHTMQ_FAULTS", "log.fsync=EIO@40*0")
    try:
        server.start()
        acknowledged = publish_until_unacknowledged(server)
        assert acknowledged
        assert server.process is not None
        assert server.process.wait(DEADLINE_S) == 1
        last = server.log.read_text().splitlines()[-1]
        assert "fdatasync of the log failed" in last
        assert "nothing more is acknowledged" in last
        monkeypatch.delenv("LIGHTMQ_FAULTS")
        server.start()
        command = [*Server.python, "tail", "line/a", "--server", f"127.0.0.1:{server.ports['remoting']}", "--json"]
        command += ["--offset", "0", "--count", str(acknowledged)]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT, check=False)
        assert len(listed.stdout.splitlines()) == acknowledged, listed.stderr
        assert server.end(signal.SIGTERM) == 0
        no_traceback(server)
    finally:
        server.kill_if_running()


def publish_until_unacknowledged(server: Server) -> int:
    """QoS 1, one after the other; returns the number of PUBACKs."""
    peer = wire.Peer(server.port)
    peer.send(wire.connect("writer"))
    assert peer.socket.recv(64) == b"\x20\x02\x00\x00"
    acknowledged = 0
    while True:
        with contextlib.suppress(OSError):
            peer.send(wire.publish("line/a", b"%d" % acknowledged, qos=1))
        if peer.socket.recv(64) != b"\x40\x02\x00\x01":
            break
        acknowledged += 1
        assert acknowledged < 1_000
    peer.close()
    return acknowledged


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a server that was killed after 100 acknowledged messages."""
    server = Server(tmp_path_factory.mktemp("killed") / "data", SMALL_FILES[0])
    server.start()
    reader = Client(server, "reader", clean=False)
    reader.subscribe(("line/#", 1))
    reader.close()
    publisher = Client(server, "publisher")
    publisher.publish_many("line/a", 0, 100)
    server.kill()
    publisher.client.loop_stop()
    return server.data


def records(log: Path) -> list[tuple[int, int]]:
    """(position, size) of each record in a log file."""
    found = []
    with log.open("rb") as stream:
        while True:
            place = stream.tell()
            head = stream.read(HEADER.size)
            total = HEADER.unpack(head)[0] if len(head) == HEADER.size else 0
            if total == 0:
                return found
            found.append((place, total))
            stream.seek(place + total)


def log_file(data: Path) -> Path:
    """The one log file."""
    return next(path for path in (data / "broker" / "log").iterdir() if path.name.isdigit())


def flip_a_bit(data: Path) -> int:
    """Damage the body of the twentieth record from the end; returns where it begins."""
    log = log_file(data)
    place, size = records(log)[-20]
    with log.open("r+b") as stream:
        stream.seek(place + size - 8)
        byte = stream.read(1)[0]
        stream.seek(place + size - 8)
        stream.write(bytes([byte ^ 0x10]))
    return place


def test_a_flipped_bit_in_acknowledged_data_is_reported_and_kept(killed: Path, tmp_path: Path) -> None:
    """A person has to decide: no start, one line with file and position, nothing truncated."""
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    log, place = log_file(data), flip_a_bit(data)
    before = log.read_bytes()
    ports = ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
    refuse = "--set=broker.store.damage_policy=refuse"
    command = [*Server.python, "up", "--data", str(data), *ports, SMALL_FILES[0], refuse]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert str(log) in last
    assert f"position {place} is below the durable position" in last
    assert "Traceback" not in done.stderr
    unchanged = log.read_bytes() == before  # not compared in the assertion: a difference would print the whole file
    assert unchanged


def test_a_torn_tail_is_cut_and_everything_acknowledged_is_there(killed: Path, tmp_path: Path) -> None:
    """Half a record after the last one, as a crash in the middle of a write leaves it."""
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    log = log_file(data)
    last_place, last_size = records(log)[-1]
    with log.open("r+b") as stream:
        stream.seek(last_place)
        whole = stream.read(last_size)
        stream.seek(last_place + last_size)
        stream.write(whole[: last_size // 2])
    server = Server(data)
    server.start()
    try:
        assert " torn_tail_cut " in server.log.read_text()
        reader = Client(server, "reader", clean=False)
        assert reader.present
        publisher = Client(server, "publisher-2")
        publisher.publish_many("line/a", 100, 10)
        expect_all(reader, {"line/a": 110})
        for client in (reader, publisher):
            client.close()
        assert server.end(signal.SIGTERM) == 0
    finally:
        server.kill_if_running()

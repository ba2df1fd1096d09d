"""Messages looked up by key from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lightmq.cli.application import run
from lightmq.cli.connections import ServerTarget, connector
from lightmq.cli.messages.tail import ReplicaRanges
from remoting.protocol.bodies.pull_body import encode_range_pull
from remoting.protocol.records.stored_message import StoredMessage
from tests.support.ports import free_port
from tests.unit.lightmq.cli.conftest import LogServer


def test_the_last_messages_as_json(log_server: Any, capfdbinary: Any) -> None:
    for number in range(20):
        log_server.publish("plant/a", b"%d" % number)
    assert run(["tail", "plant/a", "-n", "2", "--server", log_server.address, "--json"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["payload"] for line in lines] == ["18", "19"]
    assert lines[1] == {
        "broker": "broker-a",
        "topic": "plant/a",
        "queue": 2,
        "offset": 19,
        "position": 19_000,
        "born_ms": 19,
        "stored_ms": 19,
        "payload": "19",
    }


def test_from_an_offset_and_following(log_server: Any, capfdbinary: Any) -> None:
    for number in range(5):
        log_server.publish("plant/a", b"%d" % number)
    log_server.on_bounds = lambda: log_server.publish("plant/a", b"new")
    arguments = ["tail", "plant/#", "--offset", "3", "--follow", "--count", "4", "--server", log_server.address]
    assert run(arguments) == 0
    out = capfdbinary.readouterr().out
    assert out == b"3 plant/a 3\n4 plant/a 4\n5 plant/a new\n6 plant/a new\n"


def test_invalid_starts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tail", "a/#/b"]) == 2
    assert run(["tail", "a", "--last", "-1"]) == 2
    assert "must not be negative" in capsys.readouterr().err


def test_a_missing_topic_is_reported(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log_server.with_topic = False
    assert run(["tail", "--topic", "nope", "--server", log_server.address]) == 1
    assert "there is no topic nope; see: lightmq topics" in capsys.readouterr().err
    log_server.with_topic = True
    assert run(["tail", "plant", "--topic", "--server", log_server.address]) == 0
    assert "no message is in plant" in capsys.readouterr().err
    log_server.publish("plant/a", b"x")
    assert run(["tail", "plant/b", "--server", log_server.address]) == 0
    assert "no message matches plant/b" in capsys.readouterr().err


def stored(body: bytes, store_ms: int, properties: list[tuple[bytes, bytes]]) -> StoredMessage:
    """A message of topic orders."""
    return StoredMessage(
        b"orders", body, 2, 7, 4096, 1, store_ms, ("10.0.0.1", 1), ("10.0.0.2", 10911), properties=properties
    )  # fmt: skip


def test_the_newest_come_first_as_lines_and_as_json(log_server: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log_server.keyed["k1"] = [stored(b"\xff", 5, []), stored(b"new", 9, [(b"KEYS", b"k1 k2"), (b"p", b"v")])]
    arguments = ["query", "--topic", "orders", "--key", "k1", "--server", log_server.address]
    assert run(arguments) == 0
    assert capfdbinary.readouterr().out == b"2-7 k1 k2 new\n2-7  \xff\n"
    assert run([*arguments, "--json", "-n", "1", "--begin", "3", "--end", "9", "--unique"]) == 0
    (line,) = capfdbinary.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["payload"], found["keys"], found["properties"]["p"]) == ("new", ["k1", "k2"], "v")
    assert found["id"] == "0A00000200002A9F0000000000001000"
    assert log_server.queries[-1] == {
        "topic": "orders", "key": "k1", "maxNum": "1", "beginTimestamp": "3", "endTimestamp": "9",
        "_UNIQUE_KEY_QUERY": "true",
    }  # fmt: skip


def test_nothing_found_and_invalid_answers_end_with_a_status(
    log_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["query", "-t", "orders", "-k", "none", "--server", log_server.address]
    assert run(arguments) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "lightmq: topic orders has no message with the key none in that time\n",
    )
    assert run([*arguments, "-n", "0"]) == 2
    assert "--count" in capsys.readouterr().err


ROOM = 1 << 20


@pytest.fixture
def replica() -> Iterator[LogServer]:
    """With the first four messages of ten."""
    made = LogServer()
    for number in range(4):
        made.publish("plant/a", b"r%d" % number)
    yield made
    made.stop()


@pytest.fixture
def master(log_server: Any, replica: LogServer) -> LogServer:
    """With ten messages."""
    for number in range(10):
        log_server.publish("plant/a", b"m%d" % number)
    log_server.replica = replica.address
    found: LogServer = log_server
    return found


def test_what_a_replica_lacks_comes_from_the_master(master: LogServer, capfdbinary: Any) -> None:
    def printed(read_from: str) -> list[str]:
        ask = ["tail", "plant/a", "--server", master.address, "--offset", "0", "--read-from", read_from]
        assert run(ask) == 0
        return [line.decode().rsplit(" ", 1)[1] for line in capfdbinary.readouterr().out.splitlines()]

    its_own = [f"m{n}" for n in range(10)]
    assert printed("replica") == [f"r{n}" for n in range(4)] + its_own[4:]
    assert printed("master") == its_own
    master.replica = f"127.0.0.1:{free_port()}"
    assert printed("replica") == its_own


def test_a_replica_that_does_not_answer_is_not_asked_again(replica: LogServer) -> None:
    """The next one is; an end that is not reached yet ends nothing."""
    dead, asked = f"127.0.0.1:{free_port()}", []
    dial = connector(ServerTarget(timeout=5.0))

    def counted(address: str) -> Any:
        asked.append(address)
        return dial(address)

    ranges = ReplicaRanges([dead, replica.address], counted)
    for start in (0, 3):
        pulled = ranges.pull(encode_range_pull(2, start, 100, ROOM), start)
        assert pulled is not None
        assert pulled.first_offset == start
    assert ranges.pull(encode_range_pull(2, 4, 100, ROOM), 4) is None
    assert asked == [dead, replica.address]
    ranges.close()

"""The commands by which an operator looks and acts, against a running installation with an access list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightmq.cli.application import run
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from tests.processes.rig import Client, Installation, no_traceback
from tests.support.letters import give_up

pytestmark = pytest.mark.processes

RULES = "topic readwrite plant/#\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Installation]:
    rules = tmp_path / "acl"
    rules.write_text(RULES)
    made = Installation(tmp_path / "data", "--acl-file", str(rules))
    made.start()
    yield made
    made.kill_if_running()
    no_traceback(made)


class Operator:
    """Runs commands and gives what they print."""

    def __init__(self, server: Installation, capsys: pytest.CaptureFixture[str]) -> None:
        self._server = ["--server", server.address]
        self._capsys = capsys

    def says(self, *command: str, status: int = 0) -> str:
        """The output of a command with this exit status; of a failed one its error."""
        try:
            found = run([*command, *self._server])
        except SystemExit as ended:
            found = int(str(ended.code))
        output = self._capsys.readouterr()
        assert found == status, output
        return output.out or output.err

    def rows(self, *command: str) -> list[dict[str, Any]]:
        """The objects of a command's JSON output."""
        return [json.loads(line) for line in self.says(*command, "--json").splitlines()]


def test_looking_and_acting(server: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    """Each act has the effect it says, and all of them are in the record."""
    operator = Operator(server, capsys)
    reader = Client(server, "reader", clean=False)
    reader.subscribe(("plant/#", 1))
    writer = Client(server, "writer")
    writer.publish("plant/7/temp", b"21", retain=True)
    assert [(row["client"], row["subscriptions"]) for row in operator.rows("clients")] == [("reader", 1), ("writer", 0)]
    assert "writer" in operator.says("clients", "wri")
    for sort, names in ((("messages-in",), ["writer", "reader"]), (("messages-in", "--reverse"), ["reader", "writer"])):
        assert [row["client"] for row in operator.rows("clients", "--sort", *sort)] == names
    assert [row["client"] for row in operator.rows("sessions", "--state", "connected")] == ["reader", "writer"]
    assert operator.says("sessions", "--state", "away") == "no session is selected\n"
    assert [row["topic"] for row in operator.rows("retained", "plant/+/temp")] == ["plant/7/temp"]
    (found,) = operator.rows("trace", "plant/7/temp", "0")
    assert ("device", "published") in [(step["where"], step["what"]) for step in found["steps"]]
    assert "client writer: plant/7/temp" in operator.says("trace", found["message"]["id"])
    assert operator.says("retained", "clear", "plant/7/temp") == "cleared plant/7/temp\n"
    assert "has no retained message" in operator.says("retained", "clear", "plant/7/temp", status=1)
    reader.client.loop_stop()
    assert operator.says("clients", "kick", "reader") == "disconnected reader\n"
    assert operator.says("sessions", "end", "reader") == "ended the session of reader\n"
    assert "no broker has a session" in operator.says("sessions", "end", "reader", status=1)
    assert "--yes" in operator.says("topics", "delete", "plant", status=1)
    assert operator.says("topics", "delete", "plant", "--yes") == "deleted plant on 1 broker\n"
    acts = [(row["act"], row["road"]) for row in operator.rows("audit", "--since", "1h")]
    assert acts == [
        (act, "lightmq")
        for act in (
            "DELETE_TOPIC_IN_BROKER",
            "SESSION_END",
            "SESSION_END",
            "MQTT_KICK",
            "RETAINED_CLEAR",
            "RETAINED_CLEAR",
        )
    ]
    assert operator.rows("audit", "--until", "1h") == []
    writer.close()


def test_groups_are_moved(server: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    """Forwards to the end, backwards to the beginning; the lag shows it."""
    operator = Operator(server, capsys)
    writer = Client(server, "writer")
    for number in range(3):
        writer.publish("plant/7", b"%d" % number)
    writer.close()
    assert operator.says("groups", "skip", "billing", "plant").startswith("skipped the backlog of billing in ")
    (group,) = operator.rows("groups")
    assert (group["group"], group["topics"], group["messages"]) == ("billing", ["plant"], 0)
    operator.says("groups", "reset", "billing", "plant", "--to", "earliest")
    assert [row["messages"] for row in operator.rows("groups")] == [3]
    operator.says("groups", "reset", "billing", "plant", "--to", "0s")
    assert [row["messages"] for row in operator.rows("groups")] == [0]
    assert "no broker has a topic" in operator.says("groups", "skip", "billing", "none", status=1)
    assert "neither a time" in operator.says("groups", "reset", "billing", "plant", "--to", "soon", status=2)


def test_a_dead_letter_is_sent_again(server: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    """It is listed with its place, which gives it to its group again; the record says so."""
    operator = Operator(server, capsys)
    assert operator.rows("dead-letters") == []
    with BlockingConnection("127.0.0.1", server.ports["remoting"]) as connection:
        give_up(connection, "billing", b"hello")
        (letter,) = operator.rows("dead-letters", "billing")
        assert (letter["topic"], letter["body"], letter["tries"]) == ("orders", "hello", 1)
        place = f"{letter['broker']}/0/0"
        assert place in operator.says("dead-letters", "--contains", "bill")
        assert operator.says("dead-letters", "resend", "billing", place) == (
            "sent again to billing: %RETRY%billing at 0\n"
        )
        fields = {"consumerGroup": "billing", "topic": "%RETRY%billing", "queueId": "0", "queueOffset": "0",
                  "maxMsgNums": "9", "sysFlag": "4", "commitOffset": "0", "subscription": "*"}  # fmt: skip
        (message,) = iter_stored(checked(connection.request(Command(Code.PULL_MESSAGE, fields=fields))).body)
        assert (message.body, message.reconsume_times) == (b"hello", 0)
    assert "no such dead letter" in operator.says(
        "dead-letters", "resend", "billing", place.replace("0/0", "0/1"), status=1
    )
    assert "BROKER/QUEUE/OFFSET" in operator.says("dead-letters", "resend", "billing", "17", status=2)
    assert "there is no broker" in operator.says("dead-letters", "resend", "billing", "none/0/0", status=1)
    acts = [(row["act"], row["outcome"].partition(":")[0]) for row in operator.rows("audit", "--since", "1h")]
    assert acts == [("RESEND_DEAD_LETTER", "refused"), ("RESEND_DEAD_LETTER", "done")]


def test_rules_in_force_health_and_queries(server: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    """The rule that decides is named with its line, by the proxy that has it in force."""
    operator = Operator(server, capsys)
    allowed = operator.says("acl", "test", "--topic", "plant/7")
    assert "allowed: publish 'plant/7'" in allowed
    assert f"acl:1: {RULES.strip()}" in allowed
    assert "no rule allows it" in operator.says("acl", "test", "--topic", "office", "--action", "subscribe", status=1)
    (rule,) = operator.rows("acl", "rules")
    assert (rule["on"], rule["rule"], rule["who"]) == ("MQTT", RULES.strip(), "clients without a name")
    assert rule["place"].endswith("acl:1")
    assert rule["place"] in operator.says("acl", "rules")
    assert operator.rows("health")[0]["state"] == "ok"
    assert operator.rows("spark") == []

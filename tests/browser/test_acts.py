"""Every act that the console offers, done by hand in a browser to a real server, with its effect seen there. Slow."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from tests.browser.plant import GROUP, api, ask_plain
from tests.browser.visitor import DESK, LIGHT, Visitor
from tests.processes.rig import Client, Server
from tests.support.letters import give_up
from tests.support.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]
CONNECTED = re.compile(r"All well|\d+ alarms?")
"""What the page says while it has a connection, also on a disk that is nearly full."""


def test_a_session_is_ended(visitor: Visitor, server: Server) -> None:
    """Its subscriptions go, and the client is disconnected."""
    device = Client(server, "kept", clean=False)
    device.subscribe(("kept/#", 1))
    visitor.go("#/clients/kept", "Clients")
    visitor.sees("kept/#")
    visitor.press("End session")
    visitor.sees("End this session?")
    visitor.press("End session")
    visitor.sees("The session of kept ended")
    device.close()
    sessions = api(server, "GET", "/sessions?search=kept")["items"]
    assert all(one["subscriptions"] == 0 for one in sessions)


def test_a_retained_message_is_read_and_cleared(visitor: Visitor, server: Server) -> None:
    """A new subscriber receives nothing any more."""
    device = Client(server, "keeper")
    device.publish("kept/value", b'{"value": 7}', retain=True)
    visitor.go("#/retained?filter=kept/%23", "Retained")
    visitor.press("kept/value")
    visitor.sees('"value": 7')
    visitor.press("Close")
    visitor.press("Clear kept/value")
    visitor.sees("Clear this retained message?")
    visitor.press("Clear")
    visitor.sees("has no retained message any more")
    visitor.sees("No retained message matches")
    newcomer = Client(server, "newcomer")
    newcomer.subscribe(("kept/value", 1))
    device.publish("kept/value", b"fresh")
    newcomer.until(lambda: bool(newcomer.messages))
    assert [message.payload for message in newcomer.messages] == [b"fresh"]
    newcomer.close()
    device.close()


def test_a_dead_letter_is_read_and_sent_again(visitor: Visitor, server: Server) -> None:
    """Its group gets it once more, and the record of acts has it."""
    with BlockingConnection("127.0.0.1", server.ports["remoting"]) as connection:
        give_up(connection, "packing", b'{"order": 7}')
        visitor.go("#/dead-letters", "Dead letters")
        visitor.fill("Group", "pack")
        visitor.press("orders")
        visitor.sees('"order": 7')
        visitor.sees("order-7")
        visitor.press("Close")
        visitor.press("Send again orders")
        visitor.sees("with all its retries")
        visitor.press("Send again")
        visitor.sees("Sent to packing again")
        fields = {"consumerGroup": "packing", "topic": "%RETRY%packing", "queueId": "0", "queueOffset": "0",
                  "maxMsgNums": "9", "sysFlag": "4", "commitOffset": "0", "subscription": "*"}  # fmt: skip
        answer = checked(connection.request(Command(Code.PULL_MESSAGE, fields=fields)))
        assert [(one.body, one.reconsume_times) for one in iter_stored(answer.body)] == [(b'{"order": 7}', 0)]
    visitor.go("#/audit", "Audit")
    visitor.sees("group=packing")


def test_a_delayed_message_is_made_moved_and_cancelled(visitor: Visitor, server: Server) -> None:
    """Moved to now it is delivered; cancelled it never is."""
    device = Client(server, "patient")
    device.subscribe(("later/#", 1))
    for topic in ("later/moved", "later/cancelled"):
        visitor.go(f"#/topics?topic={topic}&tab=publish", "Topics")
        visitor.fill("Message", topic)
        visitor.fill("Deliver after (seconds)", "3600")
        visitor.press("Publish")
        visitor.sees("Acknowledged")
    visitor.go("#/delayed", "Delayed")
    visitor.press("Cancel later/cancelled")
    visitor.press("Cancel message")
    visitor.sees("The delayed message was cancelled")
    visitor.press("Move later/moved")
    visitor.fill("Seconds from now", "1")
    visitor.press("Move")
    visitor.sees("The message was moved")
    device.until(lambda: "later/moved" in device.latest)
    visitor.sees("Nothing waits for its time")
    assert "later/cancelled" not in device.latest
    device.close()


def test_a_group_is_reset_and_skips(visitor: Visitor, server: Server) -> None:
    """To the oldest message, to one offset, past everything."""
    device = Client(server, "writer")
    for number in range(20):
        device.publish("orders/new", str(number).encode())
    device.close()
    queues = [one for one in api(server, "GET", "/queues?search=orders")["items"] if one["max"] > 0]
    queue = queues[0]["queue"]
    fields = {"consumerGroup": GROUP, "topic": "orders", "queueId": str(queue), "commitOffset": "0"}
    ask_plain(server.ports["remoting"], Code.UPDATE_CONSUMER_OFFSET, **fields)
    visitor.go(f"#/groups/{GROUP}", "Queues & groups")
    visitor.press("Skip everything waiting")
    visitor.sees("Skip everything waiting?")
    visitor.fill(f"Type {GROUP} to confirm", GROUP)
    visitor.press("Skip")
    visitor.sees("goes on with new messages of orders")
    assert api(server, "GET", f"/groups/{GROUP}")["lag"] == 0
    visitor.press("Reset offsets")
    visitor.press("Reset")
    visitor.sees("reads orders from there")
    assert api(server, "GET", f"/groups/{GROUP}")["lag"] > 0


def test_rights_are_tested(visitor: Visitor) -> None:
    """By the server, with its reason."""
    visitor.go("#/access", "Access")
    visitor.fill("Topic or filter", "plant/7")
    visitor.press("Test")
    visitor.page.get_by_role("status").get_by_text(
        re.compile("Anybody without a name may.* publish to plant/7")
    ).wait_for()


def test_what_was_done_is_in_the_audit(visitor: Visitor, server: Server) -> None:
    """The act, who did it, and on what."""
    device = Client(server, "audited")
    visitor.go("#/clients/audited", "Clients")
    visitor.press("Disconnect")
    visitor.press("Disconnect")
    visitor.sees("audited was disconnected")
    device.close()
    visitor.go("#/audit", "Audit")
    visitor.page.get_by_role("row").filter(has_text="audited").first.wait_for()


def test_a_message_is_followed(visitor: Visitor, server: Server, screenshots: Path) -> None:
    """From its line in the live tail to its way through the server."""
    device = Client(server, "traced", clean=False)
    device.subscribe(("way/+", 1))
    device.publish("way/1", json.dumps({"value": 1}).encode())
    visitor.go("#/topics?topic=way/1", "Topics")
    visitor.page.get_by_role("list", name="Messages, newest first").get_by_role("button").first.click()
    visitor.page.get_by_role("link", name="Trace this message").click()
    visitor.heading("Trace").wait_for()
    visitor.page.get_by_role("heading", name=re.compile(r"\d+ steps?")).wait_for()
    visitor.sees("way/1")
    visitor.settled()
    visitor.page.screenshot(path=screenshots / "trace-light.png")
    assert not visitor.findings()
    device.close()


class Lasting(Server):
    """The same address for its pages after every start."""

    def start(self) -> None:
        """Start and wait until it prints its ports; the token is printed at the first start alone."""
        before = self.ports
        self.port, admin = self.port or free_port(), before.get("admin") or free_port()
        ports = ["--mqtt-port", str(self.port), "--remoting-port", "0", "--admin-port", str(admin)]
        self.ports = {**before, **self.launch("up", "--data", str(self.data), *ports)}


def test_a_lost_server_is_told_and_found_again(chromium: Browser, tmp_path: Path) -> None:
    """The page says that it has no connection, and asks to sign in again when the server was started anew."""
    server = Lasting(tmp_path / "data")
    server.start()
    try:
        with Visitor(chromium, server, DESK, LIGHT) as visitor:
            visitor.sign_in()
            visitor.sees(CONNECTED)
            server.kill()
            visitor.sees("Connecting…")
            server.start()
            visitor.heading("Sign in").wait_for()
            visitor.sign_in()
            visitor.sees(CONNECTED)
            visitor.mishaps.clear()  # the browser told of every attempt in between
    finally:
        server.kill_if_running()

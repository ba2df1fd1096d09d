"""The console in a browser, in short: sign-in, live messages from and to a real device, an act, and no obstacle."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import LIGHT, PHONE, Visitor
from tests.processes.rig import Client, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.processes


def test_the_link_signs_in_and_leaves_the_address(visitor: Visitor) -> None:
    """The token is in no address that the browser keeps; signing out ends what the cookie stands for."""
    assert "token" not in visitor.page.url
    visitor.page.go_back()
    visitor.page.wait_for_timeout(0)
    assert "token" not in visitor.page.evaluate("location.href")
    visitor.page.goto(visitor.address())
    visitor.heading("Overview").wait_for()
    assert not visitor.findings()
    visitor.press("Sign out")
    visitor.heading("Sign in").wait_for()
    visitor.page.reload()
    visitor.heading("Sign in").wait_for()
    visitor.fill("Administrator token", "wrong")
    visitor.press("Sign in")
    visitor.sees("not the administrator token")
    assert not visitor.findings()


def test_messages_go_both_ways_and_a_client_is_disconnected(visitor: Visitor, server: Server) -> None:
    """A device publishes, and is seen; the page publishes, and the device receives; the device is disconnected."""
    device = Client(server, "press-7", clean=False)
    device.subscribe(("plant/7/commands", 1))
    visitor.go("#/topics?topic=plant/7/temperature", "Topics")
    visitor.sees("Waiting for messages")
    device.publish("plant/7/temperature", json.dumps({"value": 21.5}).encode())
    visitor.page.get_by_role("list", name="Messages, newest first").get_by_text('{"value": 21.5}').wait_for()

    visitor.go("#/topics?topic=plant/7/commands&tab=publish", "Topics")
    visitor.fill("Message", "cool down")
    visitor.press("Publish")
    visitor.sees("Acknowledged at offset")
    device.until(lambda: device.latest.get("plant/7/commands") == b"cool down")

    visitor.go("#/clients", "Clients")
    visitor.page.get_by_role("link", name="press-7").click()
    visitor.press("Disconnect")
    visitor.sees("Disconnect this client?")
    assert not visitor.findings()
    visitor.press("Disconnect")
    visitor.sees("press-7 was disconnected")
    device.close()


def test_the_client_that_sends_most_is_found(visitor: Visitor, server: Server) -> None:
    """Sorted by what clients send, the loud one is above those before it in the alphabet; a kept session is away."""
    quiet, loud, kept = Client(server, "a-quiet"), Client(server, "z-loud"), Client(server, "kept", clean=False)
    kept.close()
    quiet.publish("plant/1", b"x")
    for _ in range(40):
        loud.publish("plant/2", b"x" * 100)
    visitor.go("#/clients", "Clients")
    first = visitor.page.locator("tbody tr").first
    first.get_by_text("a-quiet").wait_for()
    for heading in ("Sends", "Sent bytes"):
        visitor.press(heading)
        first.get_by_text("z-loud").wait_for()
        visitor.press(heading)
        first.get_by_text("a-quiet").wait_for()
    visitor.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})  # where the headings are not shown
    visitor.page.get_by_label("Sorted by").select_option("Order: Sends")
    first.get_by_text("z-loud").wait_for()
    assert not visitor.findings()
    visitor.page.get_by_role("link", name="z-loud").click()
    visitor.sees("40 messages")
    assert not visitor.findings()
    visitor.go("#/clients?of=away", "Clients")
    visitor.page.get_by_role("link", name="kept").wait_for()
    assert not visitor.page.get_by_role("link", name="z-loud").count()
    quiet.close()
    loud.close()


def test_the_snippet_for_spark_names_this_server(visitor: Visitor, server: Server) -> None:
    """Not the port that another one has by default."""
    address = f"127.0.0.1:{server.ports['remoting']}"
    visitor.go("#/spark", "Spark")
    visitor.sees(f'.option("nameServer", "{address}")')
    visitor.sees(f'report_queries(spark, "{address}")')


def test_live_values_on_a_phone(server: Server, chromium: Browser) -> None:
    """Numbers in JSON become tiles, at the width of a phone too; with them what a pipeline found in them."""
    device = Client(server, "oven-3")
    with Visitor(chromium, server, PHONE, LIGHT) as walker:
        walker.sign_in()
        walker.go("#/live?filter=%2B/oven-3/%23", "Live values")
        walker.sees("Waiting for the first message")
        now_ms = time.time_ns() // 1_000_000

        def say(topic: str, **payload: object) -> None:
            device.publish(topic, json.dumps(payload).encode())

        for number in range(3):
            say("site/oven-3/temperature", value=181.5, time_ms=now_ms + 1000 * number)
        walker.page.get_by_label("site/oven-3/temperature: 182 °C").wait_for()
        say("results/oven-3/windows/temperature", start_ms=now_ms, end_ms=now_ms + 1000, mean=181, low=180, high=182)
        walker.sees("mean 181 °C, 180 °C to 182 °C")
        command = {"id": "cool-1", "sensor": "temperature", "value": 181.5, "deviation": 4.2}
        say("site/oven-3/commands", **command, sent_ms=now_ms, time_ms=now_ms + 1000)
        walker.sees("4.2 standard deviations off its mean")
        say("site/oven-3/round_trip_ms", value=250, command="cool-1")
        walker.sees("after the reading")
        assert walker.page.locator(".course .band").count() == 1
        assert walker.page.locator(".course .spot").count() == 1
        assert walker.overhang() == 0
        assert not walker.findings()
    device.close()

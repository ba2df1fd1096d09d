"""Every view of a busy server, by day and by night, at a desk and on a phone: complete, within the window, accessible.

The pictures that it takes are the ones of the documentation. Slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.plant import GROUP, Plant
from tests.browser.visitor import DARK, DESK, LIGHT, PHONE, Visitor
from tests.processes.rig import Client, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "plant/line-1/press/temperature"
VIEWS = {
    "live": ("#/live?filter=plant/%23", "Live values", re.compile(r"[3-9]\d\d messages received")),
    "alarms": ("#/alarms", "Alarms", ""),
    "topics": (f"#/topics?topic={TOPIC}", "Topics", '{"value"'),
    "publish": (f"#/topics?topic={TOPIC}&tab=publish", "Topics", "Quality of service"),
    "history": (f"#/topics?topic={TOPIC}&tab=history", "Topics", '{"value"'),
    "retained": ("#/retained", "Retained", TOPIC),
    "delayed": ("#/delayed", "Delayed", "plant/line-1/press/commands"),
    "dead-letters": ("#/dead-letters", "Dead letters", '{"order": 8}'),
    "clients": ("#/clients", "Clients", "press-1"),
    "client": ("#/clients/press-2", "Clients", "plant/line-2/press/commands"),
    "sessions": ("#/clients?of=sessions", "Clients", "press-2"),
    "groups": ("#/groups", "Queues & groups", GROUP),
    "group": (f"#/groups/{GROUP}", "Queues & groups", "Reset offsets"),
    "queues": ("#/groups?of=queues", "Queues & groups", "plant"),
    "spark": ("#/spark", "Spark", ""),
    "cluster": ("#/cluster", "Cluster", "MQTT proxies"),
    "access": ("#/access", "Access", "May this client do that?"),
    "quotas": ("#/quotas", "Quotas & refusals", "topics max"),
    "audit": ("#/audit", "Audit", ""),
    "trace": ("#/trace", "Trace", "Which message?"),
    "overview": ("#/overview", "Overview", "Messages per second"),
}
"""Address, title, and what is there when the view is complete; the overview last, with a past in its charts."""
MANNERS = {"light": (DESK, LIGHT), "dark": (DESK, DARK), "phone": (PHONE, LIGHT), "phone-dark": (PHONE, DARK)}


@pytest.fixture(scope="module")
def plant(server: Server) -> Iterator[Plant]:
    """Devices at work for all tests of this module."""
    with Plant(server) as made:
        made.furnish()
        yield made


@pytest.fixture(scope="module", params=MANNERS)
def reader(
    request: pytest.FixtureRequest, chromium: Browser, server: Server, plant: Plant
) -> Iterator[tuple[str, Visitor]]:
    """Somebody signed in, in one manner after the other."""
    size, theme = MANNERS[request.param]
    with Visitor(chromium, server, size, theme) as made:
        made.sign_in()
        yield request.param, made


@pytest.mark.parametrize("view", VIEWS)
def test_view(reader: tuple[str, Visitor], view: str, screenshots: Path) -> None:
    """It shows what there is."""
    manner, visitor = reader
    address, heading, sight = VIEWS[view]
    visitor.go(address, heading)
    visitor.settled()
    if sight:
        visitor.sees(sight)
    visitor.page.screenshot(path=screenshots / f"{view}-{manner}.png")
    assert visitor.overhang() <= 0
    assert not visitor.findings()


def test_no_view_is_left_out(visitor: Visitor) -> None:
    """The page's own table of views names no other than those that are looked at here."""
    declared = visitor.page.evaluate(
        "import('/console/static/app/parts/places.js').then((it) => [...it.BY_VIEW.keys()])"
    )
    assert set(declared) == {re.split(r"[/?]", address.removeprefix("#/"))[0] for address, *_ in VIEWS.values()}


def test_the_whole_overview(reader: tuple[str, Visitor], screenshots: Path) -> None:
    """Down to its end."""
    manner, visitor = reader
    visitor.go("#/overview", "Overview")
    visitor.sees("Durability")
    visitor.page.screenshot(path=screenshots / f"overview-whole-{manner}.png", full_page=True)


def test_a_list_of_many_topics_is_shown_in_pages(reader: tuple[str, Visitor], server: Server) -> None:
    """There are never more rows in the page than one page of the list."""
    manner, visitor = reader
    if manner != "light":
        pytest.skip("the same rows in every manner")
    device = plant_of_many(server)
    visitor.go("#/topics", "Topics")
    visitor.page.get_by_role("button", name="Open many").click()
    visitor.sees("1\N{EN DASH}100")
    assert visitor.page.locator(".tree li").count() < 250
    visitor.press("Next page")
    visitor.sees("101\N{EN DASH}200")
    device.close()


def plant_of_many(server: Server) -> Client:
    """A device with a thousand topics."""
    device = Client(server, "many")
    for number in range(1_000):
        device.client.publish(f"many/{number:04}", b"1", qos=1)
    device.publish("many/1000", b"1")
    return device

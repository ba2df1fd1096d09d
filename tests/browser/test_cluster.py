"""A group of three brokers in the console: its master is killed, and the change is drawn; an operator moves the role.

The same with brokers that elect their master themselves. Slow: real processes, a real browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import DARK, DESK, LIGHT, PHONE, Visitor
from tests.processes.broker_group import BrokerGroup

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]

ALL_IN_SYNC = re.compile("^all in sync$")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[BrokerGroup]:
    """Three brokers and a controller, whose administration port has the console."""
    del chromium  # without a browser there is nothing to start a cluster for
    yield from started(tmp_path_factory.mktemp("cluster"), "controller")


@pytest.fixture(scope="module")
def electing(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[BrokerGroup]:
    """Three brokers that elect their master, and a name server with the console."""
    del chromium
    yield from started(tmp_path_factory.mktemp("electing"), "dledger")


def started(folder: Path, mode: str) -> Iterator[BrokerGroup]:
    """A group until the end of the tests."""
    key = folder / "console-key"
    key.write_text("console:secret-of-console\n")
    key.chmod(0o600)
    made = BrokerGroup(folder, mode=mode, arguments={"controller": ["--set", f"console.access_key_file={key}"]})
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_a_failover_is_drawn(chromium: Browser, group: BrokerGroup, screenshots: Path) -> None:
    """Master, SyncStateSet and epoch over time: the killed one leaves, another leads, the first one comes back."""
    with Visitor(chromium, group.controllers[0], DESK, LIGHT) as visitor:
        visitor.sign_in()
        visitor.go("#/cluster", "Cluster")
        visitor.sees(ALL_IN_SYNC)
        art = visitor.page.locator(".lane-art")
        drawn = art.locator("rect.master").count()
        assert drawn >= 1
        master = group.master()
        assert master is not None
        master.kill()
        visitor.sees("down")
        art.locator("line.epoch").first.wait_for(state="attached")
        art.locator("rect.master").nth(drawn).wait_for(state="attached")
        master.start()
        group.settle()
        visitor.sees(ALL_IN_SYNC)
        visitor.press(re.compile("Show the changes of"), exact=False)
        visitor.sees(re.compile("is master, epoch"))
        visitor.page.screenshot(path=screenshots / "cluster-failover-light.png")
        assert visitor.overhang() <= 0
        assert not visitor.findings()
    on_a_phone(chromium, group, screenshots / "cluster-failover-phone.png", "#/cluster", "Cluster", ALL_IN_SYNC)


def test_an_operator_hands_the_role_over(chromium: Browser, group: BrokerGroup, screenshots: Path) -> None:
    """By a button; the controller that carried it out has it in its record of acts."""
    with Visitor(chromium, group.controllers[0], DESK, DARK) as visitor:
        visitor.sign_in()
        visitor.go("#/cluster", "Cluster")
        visitor.page.get_by_role("button", name=re.compile("^Make master")).first.click()
        visitor.press("Hand over")
        visitor.sees(re.compile(r"Broker \d is master of "))
        group.settle()
        visitor.go("#/audit", "Audit")
        visitor.sees("controller elect master")
        visitor.sees("controller n1")
        visitor.page.screenshot(path=screenshots / "audit-cluster-dark.png")
        assert not visitor.findings()
    on_a_phone(chromium, group, screenshots / "audit-cluster-phone.png", "#/audit", "Audit", "controller n1")


def test_a_group_that_elects_its_master(chromium: Browser, electing: BrokerGroup, screenshots: Path) -> None:
    """Who can be reached and how many a master needs; one is killed and comes back; the role is handed over."""
    reached = re.compile(r"Its brokers elect the master, term \d+: 3 of 3 can be reached, 2 are needed")
    with Visitor(chromium, electing.controllers[0], DESK, DARK) as visitor:
        visitor.sign_in()
        visitor.go("#/cluster", "Cluster")
        visitor.sees(reached)
        visitor.sees(ALL_IN_SYNC)
        master = electing.settle()
        master.kill()
        visitor.sees(re.compile(r"2 of 3 can be reached, 2 are needed; missing: \d"))
        visitor.sees("down")
        visitor.page.locator(".lane-art rect.master").nth(1).wait_for(state="attached")
        visitor.page.screenshot(path=screenshots / "cluster-electing-dark.png")
        master.start()
        electing.settle()
        visitor.sees(reached)
        visitor.sees(ALL_IN_SYNC)
        visitor.page.get_by_role("button", name=re.compile("^Make master")).first.click()
        visitor.press("Hand over")
        visitor.sees(re.compile(r"Broker \d is master of "))
        electing.settle()
        assert visitor.overhang() <= 0
        assert not visitor.findings()
    on_a_phone(chromium, electing, screenshots / "cluster-electing-phone.png", "#/cluster", "Cluster", reached)


def on_a_phone(
    chromium: Browser, group: BrokerGroup, picture: Path, address: str, heading: str, sight: str | re.Pattern[str]
) -> None:
    """The same view is no wider than a phone."""
    with Visitor(chromium, group.controllers[0], PHONE, LIGHT) as visitor:
        visitor.sign_in()
        visitor.go(address, heading)
        visitor.sees(sight)
        visitor.page.screenshot(path=picture)
        assert visitor.overhang() <= 0
        assert not visitor.findings()

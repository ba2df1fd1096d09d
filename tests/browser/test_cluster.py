"""A group of three brokers in the console: its master is killed, and the change is drawn; an operator moves the role.

Slow: real processes, a real browser.
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
    folder = tmp_path_factory.mktemp("cluster")
    key = folder / "console-key"
    key.write_text("console:secret-of-console\n")
    key.chmod(0o600)
    made = BrokerGroup(folder, arguments={"controller": ["--set", f"console.access_key_file={key}"]})
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
        assert art.locator("rect.master").count() == 1
        master = group.master()
        assert master is not None
        master.kill()
        visitor.sees("down")
        art.locator("line.epoch").first.wait_for(state="attached")
        art.locator("rect.master").nth(1).wait_for(state="attached")
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

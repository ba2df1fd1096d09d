"""A server that has just been started: each view says what will be there, and how to begin. Slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.visitor import Visitor

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(120)]

VIEWS = {
    "overview": ("Overview", "Send the first message"),
    "live": ("Live values", "Waiting for the first message"),
    "alarms": ("Alarms", "No alarm is raised"),
    "topics": ("Topics", "No topics yet"),
    "retained": ("Retained", "Nothing is retained"),
    "delayed": ("Delayed", "Nothing waits for its time"),
    "dead-letters": ("Dead letters", "No dead letters"),
    "clients": ("Clients", "No client is connected"),
    "groups": ("Queues & groups", "No consumer group yet"),
    "spark": ("Spark", "No Spark query has reported yet"),
    "access": ("Access", "No access list"),
    "audit": ("Audit", "No administrative act yet"),
    "trace": ("Trace", "Which message?"),
    "nowhere": ("No such page", "There is nothing at this address"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_view_says_what_will_be_there(night_visitor: Visitor, view: str, screenshots: Path) -> None:
    """Instead of an empty table."""
    heading, sight = VIEWS[view]
    night_visitor.go(f"#/{view}", heading)
    night_visitor.sees(sight)
    night_visitor.settled()
    night_visitor.page.screenshot(path=screenshots / f"{view}-empty.png")
    assert not night_visitor.findings()


def test_the_sign_in_page(visitor: Visitor, screenshots: Path) -> None:
    """By token or by access key."""
    visitor.press("Sign out")
    visitor.heading("Sign in").wait_for()
    visitor.page.screenshot(path=screenshots / "signin-light.png")
    visitor.press("Use an access key")
    visitor.fill("Access key", "nobody")
    visitor.fill("Secret", "wrong")
    visitor.press("Sign in")
    visitor.sees("No access key has this name and secret.")
    assert not visitor.findings()

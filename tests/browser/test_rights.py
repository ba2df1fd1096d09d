"""People with fewer rights: a monitor looks and cannot act; a pipeline sees what it may. Both are told. Slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import DESK, LIGHT, Visitor
from tests.processes.rig import Client, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]

RULES = """\
user watch
role monitor
user etl
topic readwrite plant/#
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Server]:
    """A server with an access list."""
    del chromium  # without a browser there is nothing to start a server for
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "rules").write_text(RULES)
    keys = "watch:secret-of-watch,etl:secret-of-etl"
    options = ["--set", f"broker.access_keys={keys}", "--set", f"broker.access_list={folder / 'rules'}"]
    made = Server(folder / "data", *options)
    made.start()
    yield made
    made.kill_if_running()


def enter(visitor: Visitor, key: str) -> None:
    """Sign in by name and secret."""
    visitor.page.goto(visitor.address())
    visitor.press("Use an access key")
    visitor.fill("Access key", key)
    visitor.fill("Secret", f"secret-of-{key}")
    visitor.press("Sign in")
    visitor.heading("Overview").wait_for()


def test_a_monitor_looks_and_does_not_act(chromium: Browser, guarded: Server) -> None:
    """No button offers what would be refused."""
    device = Client(guarded, "watched")
    with Visitor(chromium, guarded, DESK, LIGHT) as visitor:
        enter(visitor, "watch")
        visitor.sees("read-only")
        visitor.go("#/clients/watched", "Clients")
        visitor.sees("Keep alive")
        assert visitor.page.get_by_role("button", name="Disconnect").count() == 0
        visitor.go("#/topics?tab=publish", "Topics")
        visitor.sees("You are signed in to look only.")
        assert not visitor.findings()
    device.close()


def test_a_pipelines_key_is_told_what_it_may_not_see(chromium: Browser, guarded: Server, screenshots: Path) -> None:
    """Views of the whole server are refused to it, in words; its own topics are shown."""
    with Visitor(chromium, guarded, DESK, LIGHT) as visitor:
        enter(visitor, "etl")
        visitor.go("#/clients", "Clients")
        visitor.sees("You may not see this")
        visitor.page.screenshot(path=screenshots / "clients-refused.png")
        assert not visitor.findings()
        visitor.go("#/topics?topic=other/topic", "Topics")
        visitor.sees("Not allowed")
        visitor.go("#/topics?topic=plant/1&tab=publish", "Topics")
        visitor.fill("Message", "allowed")
        visitor.press("Publish")
        visitor.sees("Acknowledged at offset")
        visitor.mishaps.clear()  # the browser tells of each refusal

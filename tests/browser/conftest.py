"""A browser for the tests of the console: Debian's Chromium, driven by Playwright. Without either, they are skipped."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import DARK, DESK, LIGHT, Visitor
from tests.processes.rig import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests; each visitor has a profile of its own."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("the tests of the console need Playwright: pip install playwright")
    if found is None:
        pytest.skip("the tests of the console need a browser: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Server]:
    """`lightmq up` with its console; `server.ports` has the token of its administrator."""
    del chromium  # without a browser there is nothing to start a server for
    made = Server(tmp_path_factory.mktemp("console") / "data")
    made.start()
    yield made
    made.kill_if_running()


@pytest.fixture
def visitor(chromium: Browser, server: Server) -> Iterator[Visitor]:
    """Somebody at a desk, signed in by the printed link."""
    with Visitor(chromium, server, DESK, LIGHT) as made:
        made.sign_in()
        yield made


@pytest.fixture
def night_visitor(chromium: Browser, server: Server) -> Iterator[Visitor]:
    """The same with a system that prefers dark colours."""
    with Visitor(chromium, server, DESK, DARK) as made:
        made.sign_in()
        yield made


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where the pictures of this run lie."""
    folder = Path(__file__).parent / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder

"""Somebody who uses the console in a browser, and notices what is wrong with any page that is opened."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

    from tests.processes.rig import Server

DESK = (1360, 860)
PHONE = (390, 844)
LIGHT, DARK = "light", "dark"
PATIENCE_MS = 30_000
EXPECTED = ("401 (Unauthorized)",)
"""Messages of the browser about answers that are in order: a session is asked for before there is one."""


def axe_source() -> str:
    """The accessibility checker, as its Python package carries it."""
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "axe.min.js").read_text()


class Visitor:
    """A browser window of its own. `mishaps` are errors of scripts and what the browser refused or did not find."""

    def __init__(self, browser: Browser, server: Server, size: tuple[int, int], theme: str) -> None:
        self.mishaps: list[str] = []
        self._server = server
        self._context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if theme == DARK else "light",
            reduced_motion="reduce",
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.mishaps.append(str(error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.close()
        if kind is None:
            assert not self.mishaps, self.mishaps

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not any(part in message.text for part in EXPECTED):
            self.mishaps.append(message.text)

    def address(self, place: str = "") -> str:
        """Of a place in the console, such as `#/clients`."""
        return f"http://127.0.0.1:{self._server.ports['admin']}/console/{place}"

    def sign_in(self) -> None:
        """By the link that the server printed at its first start."""
        self.page.goto(self.address(f"#token={self._server.console_token}"))
        self.heading("Overview").wait_for()

    def go(self, place: str, heading: str) -> None:
        """Open a view and wait for its title."""
        self.page.goto(self.address(place))
        self.heading(heading).wait_for()

    def heading(self, text: str) -> Locator:
        """The title of the view."""
        return self.page.get_by_role("heading", level=1, name=text, exact=True)

    def settled(self) -> None:
        """Wait until nothing is loading any more."""
        skeletons = self.page.locator(".skeleton")
        while skeletons.count():
            skeletons.first.wait_for(state="detached")

    def press(self, name: str | re.Pattern[str], *, exact: bool = True) -> None:
        """Press a button."""
        self.page.get_by_role("button", name=name, exact=exact).last.click()

    def fill(self, label: str, text: str) -> None:
        """Write into a field."""
        self.page.get_by_label(label, exact=True).last.fill(text)

    def sees(self, text: str | re.Pattern[str]) -> None:
        """Wait until this is to be read somewhere."""
        self.page.get_by_text(text).first.wait_for()

    def findings(self) -> list[str]:
        """What the accessibility checker finds serious or critical in what is shown now."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(axe_source())
        found: dict[str, Any] = self.page.evaluate("axe.run()")
        assert found["passes"], "it checked something"
        return [
            f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:160]})"
            for one in found["violations"]
            if one["impact"] in {"serious", "critical"}
        ]

    def overhang(self) -> int:
        """By how many pixels the page is wider than the window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return width

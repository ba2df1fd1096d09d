"""The console without a mouse, and its colours by choice. Slow but for the walk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import LIGHT, PHONE, Visitor
from tests.processes.rig import Client, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def focused(visitor: Visitor) -> str:
    """Text or label of what has the focus."""
    script = "(document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || '').trim()"
    text: str = visitor.page.evaluate(script)
    return text


def test_a_walk_by_keyboard(visitor: Visitor, server: Server) -> None:
    """Skip the navigation, go to a view by its name, search, open and close a drawer; the focus is never lost."""
    device = Client(server, "walker")
    keyboard = visitor.page.keyboard
    keyboard.press("Tab")
    assert focused(visitor) == "Skip to the page"
    keyboard.press("Enter")
    assert focused(visitor) == "Overview"
    keyboard.press("Control+k")
    visitor.page.get_by_role("combobox").wait_for()
    keyboard.type("clients")
    assert not visitor.findings()
    keyboard.press("Enter")
    visitor.heading("Clients").wait_for()
    visitor.page.locator("h1:focus").wait_for()
    keyboard.press("/")
    keyboard.type("walk")
    visitor.page.get_by_role("link", name="walker").focus()
    keyboard.press("Enter")
    visitor.page.get_by_role("dialog").get_by_role("heading", name="walker").wait_for()
    assert visitor.page.evaluate("!!document.activeElement.closest('dialog')")
    keyboard.press("Escape")
    visitor.page.get_by_role("dialog").wait_for(state="detached")
    device.publish("meters/street-003/house-117/power", b"1")
    keyboard.press("Control+k")
    visitor.page.get_by_role("combobox").wait_for()
    keyboard.type("house-117")
    visitor.page.get_by_role("option", name="Topic meters/street-003/house-117").wait_for()
    assert not visitor.findings()
    keyboard.press("Enter")
    visitor.heading("Topics").wait_for()
    visitor.fill("Search by any part of the name", "3/house-117/pow")
    visitor.page.get_by_role("button", name="meters/street-003/house-117/power").wait_for()
    visitor.go("#/clients", "Clients")
    visitor.page.get_by_role("link", name="walker").wait_for()
    visitor.fill("Only addresses that begin with this", "10.")
    visitor.sees("No client matches")
    device.close()


@pytest.mark.slow
def test_every_control_of_a_view_is_reached_by_tab(visitor: Visitor) -> None:
    """In the order in which they stand, and each shows that it has the focus."""
    visitor.go("#/topics?tab=publish", "Topics")
    visitor.settled()
    reached: list[str] = []
    for _ in range(80):
        visitor.page.keyboard.press("Tab")
        if visitor.page.evaluate("document.activeElement === document.body"):
            break
        shadow = visitor.page.evaluate("getComputedStyle(document.activeElement).boxShadow")
        reached.append(focused(visitor))
        kind = visitor.page.evaluate("document.activeElement.type || ''")
        assert shadow != "none" or kind in {"checkbox", "select-one"}, f"{reached[-1]} does not show its focus"
    assert "Publish" in reached
    assert len(reached) >= 10


@pytest.mark.slow
def test_tabs_turn_by_arrow_keys(visitor: Visitor) -> None:
    """As tabs do."""
    visitor.go("#/topics?topic=some/where", "Topics")
    visitor.page.get_by_role("tab", name="Live tail").focus()
    visitor.page.keyboard.press("ArrowRight")
    visitor.page.get_by_role("tab", name="Publish", selected=True).wait_for()
    visitor.sees("Quality of service")


@pytest.mark.slow
def test_the_theme_is_chosen_and_kept(visitor: Visitor) -> None:
    """Light, dark, as the system; also after a reload."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light = visitor.page.evaluate(ground)
    switch = visitor.page.locator("[data-theme-switch]")
    switch.click()
    assert visitor.page.evaluate(ground) == light, "light was the system's preference"
    switch.click()
    dark = visitor.page.evaluate(ground)
    assert dark != light
    visitor.page.reload()
    visitor.heading("Overview").wait_for()
    assert visitor.page.evaluate(ground) == dark
    switch.click()
    assert visitor.page.evaluate(ground) == light


@pytest.mark.slow
def test_the_navigation_of_a_phone_opens_and_closes(chromium: Browser, server: Server) -> None:
    """It takes the focus, and Escape closes it."""
    with Visitor(chromium, server, PHONE, LIGHT) as walker:
        walker.sign_in()
        walker.press("Navigation")
        walker.page.locator("nav a:focus").wait_for()
        assert not walker.findings()
        walker.page.keyboard.press("Escape")
        walker.page.get_by_role("link", name="Audit").wait_for(state="hidden")
        walker.press("Navigation")
        walker.page.get_by_role("link", name="Audit").click()
        walker.heading("Audit").wait_for()

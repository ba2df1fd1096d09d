"""Every served request code has a right, an attempt that must be refused, and a line on the page; so has every page."""

from __future__ import annotations

from pathlib import Path

from broker.app import BrokerApp
from broker.config import BrokerConfig
from controller.app import ControllerApp
from controller.config import ControllerConfig
from remoting.access.key_policy import ROLES
from remoting.access.rights import ACTIONS, PAGES, RIGHTS, SUBJECTS, VERBS
from remoting.protocol.frames.codes import RequestCode, request_name
from tests.security.request_attempts import SHOWN_IN_PART, Target, attempts
from tests.support.tree import ROOT, relative

PAGE = ROOT / "docs" / "request-rights.md"
OF_MEMBERS = {
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.GET_BROKER_EPOCH_CACHE, RequestCode.ELECTION,
    RequestCode.AGREE_LOCKS,
}  # fmt: skip


async def test_what_is_served_has_a_right_and_no_right_is_left_over(tmp_path: Path) -> None:
    broker = BrokerApp(BrokerConfig(data_directory=tmp_path / "b"), listen=False)
    controller = ControllerApp(ControllerConfig(data_directory=tmp_path / "c"), listen=False)
    await broker.start()
    await controller.start()
    try:
        assert set(broker.handlers) | set(controller.handlers) | OF_MEMBERS == set(RIGHTS)
    finally:
        await controller.stop()
        await broker.stop()


def test_every_right_has_an_attempt_that_must_be_refused() -> None:
    assert set(attempts(Target("b", "h:1"))) == set(RIGHTS)
    assert set(RIGHTS) > SHOWN_IN_PART


def test_rights_are_made_of_known_words() -> None:
    for code, right in [*RIGHTS.items(), *((page, right) for page, right in PAGES.items() if right is not None)]:
        assert (right.subject in SUBJECTS, right.verb in VERBS, right.action in ACTIONS) == (True,) * 3, code
    assert set(ROLES) == set(ACTIONS)


def test_the_page_shows_the_table() -> None:
    lines = PAGE.read_text().splitlines()
    shown = [line for line in lines if line.startswith("| ") and line[2].isdigit()]
    assert shown == [
        f"| {code} | {request_name(code)} | {right.subject} | {right.verb} | {right.action} |"
        for code, right in sorted(RIGHTS.items())
    ]


def test_the_page_shows_the_pages() -> None:
    shown = [line for line in PAGE.read_text().splitlines() if line.startswith("| `/")]
    assert shown == [
        f"| `{page.partition(' ')[0]}`{page.partition(' ')[1] + page.partition(' ')[2]} "
        + ("| everybody | | |" if right is None else f"| {right.subject} | {right.verb} | {right.action} |")
        for page, right in PAGES.items()
    ]


def test_no_other_module_serves_pages() -> None:
    """The only HTTP server of a deployable is the one that checks rights; WebSockets only use it for the handshake."""
    known = {"runtime/admin.py", "runtime/http_port.py"}
    words = ("aiohttp import web", "aiohttp.web", "http.server", "PageConnections", "start_http_server", "wsgiref")
    served = {
        relative(path)
        for package in (
            "broker",
            "controller",
            "grpc_proxy",
            "lightmq",
            "mqtt_bridge",
            "mqtt_proxy",
            "remoting",
            "runtime",
        )
        for path in (ROOT / package).rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert served == known

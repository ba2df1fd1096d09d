"""Sessions and the count of failed sign-ins: `console.web.sessions`, `console.web.attempts`."""

from __future__ import annotations

import pytest

from console.viewers import ADMIN, Viewer
from console.web.attempts import ADDRESSES_MAX, DELAY_MS, DELAYED_PER_ADDRESS_MAX, SignInAttempts
from console.web.sessions import ConsoleSessions, proves_csrf

VIEWER = Viewer("boss", ADMIN, "127.0.0.1", "boss")


def always() -> bool:
    return True


def test_every_sign_in_has_a_cookie_of_its_own() -> None:
    sessions = ConsoleSessions(idle_ms_max=100, ms_max=1_000, limit=10)
    first, one = sessions.begin(VIEWER, 0, always)
    second, other = sessions.begin(VIEWER, 0, always)
    assert first != second
    assert one.csrf != other.csrf
    assert proves_csrf(one, one.csrf)
    assert not proves_csrf(one, other.csrf)
    assert not proves_csrf(one, "\ud800")
    assert sessions.find(first, 1) is one
    sessions.end(first)
    assert sessions.find(first, 1) is None
    assert sessions.find(second, 1) is other


def test_a_session_ends_when_it_is_idle_and_when_it_is_old() -> None:
    sessions = ConsoleSessions(idle_ms_max=100, ms_max=250, limit=10)
    cookie, _ = sessions.begin(VIEWER, 0, always)
    assert [sessions.find(cookie, at) is not None for at in (99, 198, 249, 250)] == [True, True, True, False]
    cookie, _ = sessions.begin(VIEWER, 0, always)
    assert sessions.find(cookie, 100) is None
    assert len(sessions) == 0


def test_a_session_ends_with_what_it_began_with() -> None:
    valid = [True]
    sessions = ConsoleSessions(idle_ms_max=100, ms_max=1_000, limit=10)
    cookie, _ = sessions.begin(VIEWER, 0, lambda: valid[0])
    assert sessions.find(cookie, 1) is not None
    valid[0] = False
    assert sessions.find(cookie, 1) is None


def test_the_one_idle_longest_goes_first() -> None:
    sessions = ConsoleSessions(idle_ms_max=100, ms_max=1_000, limit=2)
    cookies = [sessions.begin(VIEWER, 0, always)[0] for _ in range(2)]
    sessions.find(cookies[0], 1)
    sessions.begin(VIEWER, 2, always)
    assert [sessions.find(cookie, 3) is not None for cookie in cookies] == [True, False]


def test_an_address_that_fails_too_often_is_told_so_until_its_window_is_over() -> None:
    attempts = SignInAttempts(failures_max=2, window_ms=1_000)
    assert [attempts.failed("10.0.0.1", at) for at in (0, 10, 400, 600)] == [0, 0, 600, 400]
    assert attempts.failed("10.0.0.2", 600) == 0
    assert [attempts.failed("10.0.0.1", at) for at in (1_000, 1_001, 1_002)] == [0, 0, 998]


def test_failures_that_were_too_many_are_told_of_once() -> None:
    """Also those of a window whose end came before its number was taken."""
    attempts = SignInAttempts(failures_max=2, window_ms=1_000)
    assert attempts.take_unlogged("10.0.0.1") == 0
    for at in range(7):
        attempts.failed("10.0.0.1", at)
    attempts.failed("10.0.0.1", 1_000)
    assert (attempts.unlogged("10.0.0.1"), attempts.take_unlogged("10.0.0.1")) == (5, 5)
    assert attempts.take_unlogged("10.0.0.1") == 0


def test_answers_to_too_many_failures_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each address, and only so many of one address and of all."""
    monkeypatch.setattr("console.web.attempts.DELAYED_MAX", DELAYED_PER_ADDRESS_MAX + 2)
    attempts = SignInAttempts(failures_max=1, window_ms=60_000)
    for host in ("10.0.0.1", "10.0.0.2"):
        attempts.failed(host, 0)
    assert [attempts.delay_ms("10.0.0.1", 0) for _ in range(DELAYED_PER_ADDRESS_MAX)] == [
        DELAY_MS * turn for turn in range(1, DELAYED_PER_ADDRESS_MAX + 1)
    ]
    assert attempts.delay_ms("10.0.0.1", 0) == 0
    assert [attempts.delay_ms("10.0.0.2", 10) for _ in range(3)] == [DELAY_MS, 2 * DELAY_MS, 0]
    attempts.released("10.0.0.1")
    last_ms = DELAY_MS * DELAYED_PER_ADDRESS_MAX
    assert attempts.delay_ms("10.0.0.1", last_ms - 1) == DELAY_MS + 1
    attempts.released("10.0.0.1")
    assert attempts.delay_ms("10.0.0.1", 10 * last_ms) == DELAY_MS
    attempts.failed("10.0.0.1", 100_000)
    assert attempts.delay_ms("10.0.0.1", 100_000) == 0, "those that wait do so beyond the window"


def test_an_ipv6_network_is_one_address_and_memory_is_bounded() -> None:
    attempts = SignInAttempts(failures_max=1, window_ms=1_000)
    assert attempts.failed("2001:db8::1", 0) == 0
    assert attempts.failed("2001:db8::ffff:1", 1) > 0
    assert attempts.failed("2001:db8:0:1::1", 1) == 0
    assert attempts.failed("::ffff:10.0.0.1", 1) == 0
    for number in range(ADDRESSES_MAX):
        attempts.failed(f"host-{number}", 2)
    assert attempts.failed(f"host-{ADDRESSES_MAX - 1}", 3) > 0
    assert attempts.failed("2001:db8::1", 3) == 0
    assert attempts.failed("host-0", 3) == 0

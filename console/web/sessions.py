"""Sessions of the console: a random cookie for each sign-in, forgotten after a time, idle or not.

The table holds hashes of the cookies, so a dump of memory or a log of it signs nobody in. Each session has a token
against cross-site requests (CSRF), which the page sends as a header and another site cannot know. A session ends when
what it began with is no longer valid: the key's secret was changed, the token renewed.
Invariant: a sign-in always makes a new session, whatever cookie came with it, so nobody can be given one in advance.
At most `limit` sessions; the one idle longest goes first. Loop rule: on the loop's thread; time is passed in.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from console.viewers import Viewer

RANDOM_BYTES = 32


@dataclass(slots=True)
class ConsoleSession:
    """Somebody signed in, from when to when; times in ms of the clock passed in."""

    viewer: Viewer
    csrf: str
    """What requests that change something must carry."""
    created_ms: int
    used_ms: int
    still_valid: Callable[[], bool]
    """Whether what it began with is still valid."""


class ConsoleSessions:
    """All sessions of one server; times are in ms of a clock that does not jump."""

    def __init__(self, *, idle_ms_max: int, ms_max: int, limit: int) -> None:
        self._idle_ms_max = idle_ms_max
        self._ms_max = ms_max
        self._limit = limit
        self._sessions: OrderedDict[bytes, ConsoleSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, viewer: Viewer, now_ms: int, still_valid: Callable[[], bool]) -> tuple[str, ConsoleSession]:
        """Make a session; return its cookie and the session."""
        cookie = secrets.token_urlsafe(RANDOM_BYTES)
        session = ConsoleSession(viewer, secrets.token_urlsafe(RANDOM_BYTES), now_ms, now_ms, still_valid)
        self._sessions[_key(cookie)] = session
        while len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)
        return cookie, session

    def find(self, cookie: str, now_ms: int) -> ConsoleSession | None:
        """Return the session of a cookie and note its use; None when there is none or it has ended."""
        key = _key(cookie)
        session = self._sessions.get(key)
        if session is None:
            return None
        if now_ms >= self.expires_ms(session) or not session.still_valid():
            del self._sessions[key]
            return None
        session.used_ms = now_ms
        self._sessions.move_to_end(key)
        return session

    def end(self, cookie: str) -> None:
        """End the session of a cookie, if there is one."""
        self._sessions.pop(_key(cookie), None)

    def expires_ms(self, session: ConsoleSession) -> int:
        """Return when a session ends if it is not used again, by the clock passed in."""
        return min(session.used_ms + self._idle_ms_max, session.created_ms + self._ms_max)


def proves_csrf(session: ConsoleSession, given: str) -> bool:
    """Whether a request carries the session's token against cross-site requests."""
    return hmac.compare_digest(session.csrf.encode(), given.encode("utf-8", "surrogatepass"))


def _key(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()

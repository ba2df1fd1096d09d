"""Who sends a request, and whether a page of this server made it: what every request to the API passes first.

    cookie          a session; what changes something must carry its token against cross-site requests (CSRF) as well
    Authorization   for programs: `Bearer TOKEN` or `Basic key:secret`, checked anew with each request

A request that a browser makes for another site is refused by its Origin or Sec-Fetch-Site header, whatever it proves:
browsers add cookies and remembered passwords on their own. Guesses are counted per address in every form, and answered
with 429, late and one after the other, when there are too many; what is right is let in all the same and at once
(`attempts`). The first failures of an address are logged one by one, the others of a window as one number behind it.
Behind a reverse proxy the address is the one that it names in X-Forwarded-For, if `console.trusted_proxies` has the
proxy's.
Invariants: nothing is served over the network in the clear unless the configuration says so; a refusal tells nothing
about which part of a proof was wrong. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from console.api.problems import ApiProblem
from console.config import ConsoleConfig
from console.tokens import TokenFile, hash_of
from console.viewers import Identities, Viewer, role_of
from console.web.attempts import SignInAttempts
from console.web.sessions import ConsoleSession, ConsoleSessions, proves_csrf
from remoting.protocol.web_host import is_same_origin
from remoting.server.server import credentials
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Registry

ValidCheck = Callable[[], bool]
COOKIE = "lightmq_session"
CSRF_HEADER = "X-CSRF-Token"
TOKEN_USERS = {"admin": "administrator", "monitor": "observer"}
"""The name of who signs in with a token, by its role."""
OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site of requests by our page, or by the person in front of the browser."""
LOCAL = "local"
"""The address of a peer that has none."""
FORWARDED_HEADER = "X-Forwarded-For"
ADDRESS_CHARACTERS_MAX = 64
"""Longest address that is kept of one that a proxy names."""
SECRET_CHARACTERS_MIN = 16
"""Length of a secret that cannot be guessed, if it is random; a shorter one is let in and warned of."""
REASONS = ("unproven", "too_many", "cross_site", "csrf", "insecure")


@dataclass(frozen=True, slots=True)
class Proved:
    """A viewer, and the session if there is one."""

    viewer: Viewer
    session: ConsoleSession | None = None


class TooManyFailures(ApiProblem):
    """A wrong token or secret of an address that has failed too often; the answer waits."""

    def __init__(self, text: str, window_ms: int, delay_ms: int, released: Callable[[], None]) -> None:
        """`window_ms`: how long the address is answered so; `delay_ms`: 0 for an answer at once, the last on its
        connection."""
        super().__init__(429, "too_many", text, {"Retry-After": str(-(-window_ms // 1_000))})
        self._delay_ms = delay_ms
        self._released = released

    async def delay(self) -> bool:
        """Wait until the answer is due; return whether the connection stays open behind it."""
        if not self._delay_ms:
            return False
        try:
            await asyncio.sleep(self._delay_ms / 1_000)
        finally:
            self._released()
        return True


class ConsoleGate:
    """Decides who sends a request."""

    def __init__(
        self,
        config: ConsoleConfig,
        identities: Identities,
        tokens: TokenFile | None,
        clock: Clock,
        registry: Registry,
    ) -> None:
        """`tokens`: None where nobody signs in with one."""
        self.sessions = ConsoleSessions(
            idle_ms_max=config.session_idle_ms_max, ms_max=config.session_ms_max, limit=config.sessions_max
        )
        self._attempts = SignInAttempts(
            failures_max=config.sign_in_failures_max, window_ms=config.sign_in_window_ms
        )  # fmt: skip
        self._allow_insecure = config.allow_insecure
        self._trusted = tuple(ipaddress.ip_network(each) for each in config.trusted_proxies)
        self._identities = identities
        self._tokens = tokens
        self._clock = clock
        self._log = get_logger("console")
        refused = registry.counter(
            "rocketmq_console_refused_total", "Requests to the console refused before they were served, by reason",
            labels=("reason",),
        )  # fmt: skip
        self._refused = {reason: refused.child(reason) for reason in REASONS}
        registry.gauge("rocketmq_console_sessions", "People signed in", function=lambda: len(self.sessions))

    def now_ms(self) -> int:
        """Return the time of sessions, which never jumps."""
        return self._clock.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return the time of day in ms since 1970."""
        return self._clock.now_ms()

    def check_way(self, request: web.Request) -> None:
        """Raise ApiProblem (403) for a request that other machines could read on its way."""
        if self._allow_insecure or request.secure or is_loopback(request.remote or LOCAL):
            return
        raise self.refusal(
            "insecure", 403,
            "the console is served over TLS or on this machine only: set console.tls.certificate and console.tls.key, "
            "or console.allow_insecure behind a proxy that adds TLS",
        )  # fmt: skip

    def check_site(self, request: web.Request, *, needs_origin: bool = False) -> None:
        """Raise ApiProblem (403) for a request that another site made; `needs_origin`: only browsers are served."""
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site", OWN_SITES[0])
        same = not needs_origin if origin is None else is_same_origin(origin, request.host)
        if not same or site not in OWN_SITES:
            raise self.refusal("cross_site", 403, "the request comes from a page of another site")

    def prove(self, request: web.Request) -> Proved:
        """Return who sends a request. Raises ApiProblem: 401, 403 (CSRF), 429."""
        authorization = request.headers.get("Authorization", "")
        if authorization:
            return Proved(self._program(request, authorization))
        cookie = request.cookies.get(COOKIE, "")
        session = self.sessions.find(cookie, self.now_ms()) if cookie else None
        if session is None:
            raise self.refusal("unproven", 401, "sign in first")
        if request.method not in ("GET", "HEAD") and not proves_csrf(session, request.headers.get(CSRF_HEADER, "")):
            raise self.refusal("csrf", 403, f"the header {CSRF_HEADER} is missing or wrong; load the page again")
        return Proved(session.viewer, session)

    def lasts(self, request: web.Request, proved: Proved) -> bool:
        """Whether what a stream began with still holds; a stream that is open is a use of its session."""
        if proved.session is None:
            return True
        return self.sessions.find(request.cookies.get(COOKIE, ""), self.now_ms()) is proved.session

    def sign_in(
        self, request: web.Request, *, token: str = "", user: str = "", secret: str = ""
    ) -> tuple[str, ConsoleSession]:
        """Begin a session; return its cookie and itself. Raises ApiProblem: 401, 429."""
        host = self._host_of(request)
        if token:
            viewer = self._by_token(token, host)
            if viewer is not None:
                self._log.info("console_sign_in", user=viewer.user, role=viewer.role, address=host)
                return self.sessions.begin(viewer, self.now_ms(), self._token_holds(viewer.role, hash_of(token)))
        elif self._identities.knows_secret(user, secret):
            viewer = Viewer(user, role_of(self._identities, user), host, user)
            self._log.info("console_sign_in", user=user, role=viewer.role, address=host)
            if len(secret) < SECRET_CHARACTERS_MIN:
                self._log.warning("console_secret_short", user=user, characters_min=SECRET_CHARACTERS_MIN)
            return self.sessions.begin(viewer, self.now_ms(), self._key_holds(viewer, self._identities.digest(user)))
        raise self._failed(host)

    def refusal(self, reason: str, status: int, text: str) -> ApiProblem:
        """Return the error of a refused request, which is counted."""
        self._refused[reason].value += 1
        return ApiProblem(status, reason, text)

    def _program(self, request: web.Request, authorization: str) -> Viewer:
        host = self._host_of(request)
        scheme, _, rest = authorization.partition(" ")
        key, secret = credentials(authorization)
        if secret:
            if self._identities.knows_secret(key, secret):
                return Viewer(key, role_of(self._identities, key), host, key)
        elif scheme.lower() == "bearer":
            viewer = self._by_token(rest.strip(), host)
            if viewer is not None:
                return viewer
        raise self._failed(host)

    def _by_token(self, token: str, host: str) -> Viewer | None:
        role = None if self._tokens is None else self._tokens.role(token)
        return None if role is None else Viewer(TOKEN_USERS[role], role, host)

    def _token_holds(self, role: str, known_hash: str) -> ValidCheck:
        tokens = self._tokens
        assert tokens is not None
        return lambda: tokens.holds(role, known_hash)

    def _key_holds(self, viewer: Viewer, digest: bytes | None) -> ValidCheck:
        """Whether a key has the secret and the role that it had at the sign-in."""
        key, identities, role = viewer.user, self._identities, viewer.role
        return lambda: digest is not None and identities.digest(key) == digest and role_of(identities, key) == role

    def _failed(self, host: str) -> ApiProblem:
        window_ms = self._attempts.failed(host, self.now_ms())
        if not window_ms:
            self._log.warning("console_sign_in_failed", address=host)
            return self.refusal("unproven", 401, "that is not a valid token, or not the secret of a known access key")
        if self._attempts.unlogged(host) == 1:
            asyncio.get_running_loop().call_later(window_ms / 1_000, self._log_more, host)
        self._refused["too_many"].value += 1
        return TooManyFailures(
            "too many failed sign-ins from this address; this one was wrong too",
            window_ms, self._attempts.delay_ms(host, self.now_ms()), lambda: self._attempts.released(host),
        )  # fmt: skip

    def _log_more(self, host: str) -> None:
        more = self._attempts.take_unlogged(host)
        if more:
            self._log.warning("console_sign_in_failed", address=host, more=more)

    def _host_of(self, request: web.Request) -> str:
        """Return the client's address: the last one that no trusted proxy has, of those that proxies have noted."""
        host = request.remote or LOCAL
        noted = [each for line in request.headers.getall(FORWARDED_HEADER, ()) for each in line.split(",")]
        while noted and self._trusts(host):
            host = noted.pop().strip()[:ADDRESS_CHARACTERS_MAX]
        return host

    def _trusts(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._trusted)


def is_loopback(host: str) -> bool:
    """Whether a peer is on this machine."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == LOCAL

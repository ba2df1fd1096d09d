"""`/session`: sign in, see who is signed in, sign out.

    POST /session {"token": ...} | {"user": ..., "secret": ...}  -> the session, and its cookie
    GET /session                                                 -> the session
    DELETE /session                                              -> signed out

Invariant: a sign-in replaces the session of the cookie that came with it. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from console.api.problems import bad
from console.web.gate import COOKIE, ConsoleGate
from console.web.serving import PREFIX, ApiRoutes, as_json, decoded, read_json, telling_problems
from console.web.sessions import ConsoleSession

BODY_BYTES_MAX = 4_096


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody shows: a token, or name and secret of an access key."""

    token: str = ""
    user: str = ""
    secret: str = ""


class SignedIn(msgspec.Struct):
    """A session as its owner sees it."""

    user: str
    role: str
    csrf: str
    """For the header X-CSRF-Token of requests that change something."""
    expires_ms: int
    """When it ends if it is not used, in ms since 1970; 0 for a program, which has no session."""


class SignInRoutes:
    """Begins, shows and ends sessions."""

    def __init__(self, gate: ConsoleGate, api: ApiRoutes) -> None:
        self._gate = gate
        self._api = api

    def attach(self, application: web.Application) -> None:
        """Add what is served here to an application that has not started."""
        for method, serve in (("POST", self.begin), ("GET", self.show), ("DELETE", self.end)):
            application.router.add_route(method, f"{PREFIX}/session", telling_problems(serve))

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Begin a session and set its cookie. 400, 401, 403, 429."""
        self._gate.check_way(request)
        self._gate.check_site(request)
        shown: SignIn = decoded(await read_json(request, BODY_BYTES_MAX), SignIn)
        if bool(shown.token) == bool(shown.user or shown.secret):
            raise bad("show either a token, or user and secret")
        cookie, session = self._gate.sign_in(request, token=shown.token, user=shown.user, secret=shown.secret)
        before = request.cookies.get(COOKIE)
        if before:
            self._gate.sessions.end(before)
        response = as_json(self._shown(session))
        response.set_cookie(COOKIE, cookie, path="/", httponly=True, samesite="Strict", secure=request.secure)
        return response

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Show who is signed in; for programs without a session who they are."""
        proved = self._api.prove(request)
        if proved.session is None:
            return as_json(SignedIn(proved.viewer.user, proved.viewer.role, "", 0))
        return as_json(self._shown(proved.session))

    async def end(self, request: web.Request) -> web.StreamResponse:
        """End the session of the cookie, which is removed."""
        self._api.prove(request)
        self._gate.sessions.end(request.cookies.get(COOKIE, ""))
        response = web.Response(status=204)
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=request.secure)
        return response

    def _shown(self, session: ConsoleSession) -> SignedIn:
        ends_ms = self._gate.wall_ms() + self._gate.sessions.expires_ms(session) - self._gate.now_ms()
        return SignedIn(session.viewer.user, session.viewer.role, session.csrf, ends_ms)

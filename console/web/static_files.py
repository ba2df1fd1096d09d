"""The page and its files, from the package itself: nothing is loaded from elsewhere, nothing outside is served.

All files are found when the server is made; a request names one of them or gets 404, so no path can lead elsewhere. A
file that was changed since is read again. Browsers keep files and ask whether they are still current (ETag).
Invariant: every answer of the console has the headers of `SECURITY`. Loop rule: on the loop's thread; files are small.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from console.api.problems import ApiProblem
from console.web.gate import ConsoleGate
from console.web.serving import telling_problems

FOLDER = Path(__file__).resolve().parents[1] / "static"
PREFIX = "/console/"
INDEX = "index.html"
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
TYPES = {
    ".css": "text/css", ".html": "text/html", ".ico": "image/x-icon", ".js": "text/javascript",
    ".json": "application/json", ".mjs": "text/javascript", ".png": "image/png", ".svg": "image/svg+xml",
    ".txt": "text/plain", ".woff2": "font/woff2",
}  # fmt: skip
"""Suffixes that are served; other files are not."""
PACKED_MIN_BYTES = 1_024


@dataclass(slots=True)
class _File:
    path: Path
    content_type: str
    seen: tuple[int, int] = (0, 0)
    raw: bytes = b""
    packed: bytes = b""
    tag: str = ""

    def read(self) -> None:
        """Take over the file as it is now."""
        state = self.path.stat()
        seen = (state.st_mtime_ns, state.st_size)
        if seen == self.seen:
            return
        self.raw = self.path.read_bytes()
        text = self.content_type.startswith(("text/", "application/", "image/svg"))
        packed = gzip.compress(self.raw, 6, mtime=0) if text and len(self.raw) >= PACKED_MIN_BYTES else b""
        self.packed = packed if len(packed) < len(self.raw) else b""
        self.tag = hashlib.sha256(self.raw).hexdigest()[:32]
        self.seen = seen


class StaticFiles:
    """The files of the page, found once, by the names they are asked by."""

    def __init__(self, gate: ConsoleGate) -> None:
        self._gate = gate
        folder = FOLDER
        self._files = {
            str(path.relative_to(folder)): _File(path, content_type)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and (content_type := TYPES.get(path.suffix, ""))
        }

    def attach(self, application: web.Application) -> None:
        """Add what is served here to an application that has not started."""
        router = application.router
        for path in ("/", "/console"):
            router.add_get(path, self._to_the_page)
        router.add_get(PREFIX, telling_problems(self.serve))
        router.add_get(PREFIX + "{name:.+}", telling_problems(self.serve))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Return a file, packed for browsers that take it, or 304 for one that has it. 404."""
        self._gate.check_way(request)
        name = request.match_info.get("name", INDEX)
        file = self._files.get(name.removeprefix("static/")) if name == INDEX or name.startswith("static/") else None
        if file is None:
            raise ApiProblem(404, "not_found", "there is no such file")
        file.read()
        headers = {"ETag": f'"{file.tag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if any(tag.value == file.tag for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        charset = "; charset=utf-8" if not file.content_type.startswith("image/") else ""
        headers["Content-Type"] = file.content_type + charset
        if file.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=file.packed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=file.raw, headers=headers)

    async def _to_the_page(self, _request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(PREFIX)


async def secure_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers to what belongs to the console."""
    if request.path.startswith((PREFIX, "/api/")) or request.path in ("/", "/console"):
        for name, value in SECURITY.items():
            response.headers.setdefault(name, value)

"""Who may see the administration pages of a part that has no port for signed requests: an MQTT proxy, a bridge.

Their keys and their list are of the same kind as those of brokers and controllers, and the same `authorize()` decides;
MQTT users are no administrators. Invariant: without keys nobody of another machine sees more than a probe does.
Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from remoting.access.key_policy import KeyPolicy
from remoting.access.rights import page_actions
from remoting.server.access import Access, parse_access_keys
from remoting.server.authorizer import Authorizer
from remoting.server.page_access import PageAccess
from runtime.files import WatchedFile
from runtime.logs import get_logger


class AdminKeys:
    """Keys and, where there is one, the access list, which is looked at while the part runs."""

    def __init__(self, keys: Sequence[str], access_list: Path | None) -> None:
        """LocalMisuse for a key that is none."""
        policy = None if access_list is None else KeyPolicy(access_list, get_logger("admin"), WatchedFile)
        access = Access(parse_access_keys(keys), keys_count=policy is not None)
        self.guard = PageAccess(access, Authorizer(policy), page_actions())
        self._policy = policy
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow the list."""
        if self._policy is not None:
            self._watching = asyncio.get_running_loop().create_task(self._policy.keep_current())

    async def stop(self) -> None:
        """Leave it."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

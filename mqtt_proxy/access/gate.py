"""Access control of one proxy as a whole: who a CONNECT is, what it may do, and files that change while it runs.

Invariants: the access list in force is a whole, valid one. At the start a list that is no use denies everything until
it is mended; later it leaves in force what was. Either is an error in the log that names the lines, and a counter.
Loop rule: made anywhere, started and used on one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mqtt_proxy.access.auth import Authenticator, Method
from mqtt_proxy.access.authority import Authority
from mqtt_proxy.access.exchange import Exchange, Exchanges
from mqtt_proxy.access.methods.password_method import PasswordMethod
from mqtt_proxy.metrics import AccessCounters
from remoting.access import acl_file
from remoting.access.rules import Identity, RuleSet, Shown, Unproven, Verdict
from remoting.protocol.errors import LightMQError
from runtime.clock import Clock
from runtime.files import WatchedFile
from runtime.logs import get_logger

LOOK_INTERVAL_S = 1.0
"""How often changed files are looked for; a change takes effect after two looks at most."""


class Gate:
    """What the bridge asks: `at_hand`, `authenticate` and `authorize`."""

    def __init__(
        self,
        methods: Sequence[Method],
        acl: Path | None,
        *,
        clock: Clock,
        counters: AccessCounters,
        partly: bool = True,
    ) -> None:
        """Reads the access list `acl`; `methods` say who somebody is; `partly` as in `Authority`."""
        self._log = get_logger("mqtt_proxy.access")
        self._counters = counters
        self._authenticator = Authenticator(methods, counters)
        users = next((one for one in methods if isinstance(one, PasswordMethod)), None)
        self._exchanges = (
            Exchanges(None, counters) if users is None else Exchanges(users.stored, counters, users.like_scram)
        )
        self._watched: list[WatchedFile[Any]] = self._authenticator.files()
        self.authority = Authority(RuleSet(open=True), clock=clock, counters=counters, partly=partly)
        self._looking: asyncio.Task[None] | None = None
        self._reloads: set[asyncio.Task[None]] = set()
        if acl is not None:
            self._first_acl(acl)

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """See `Authenticator.at_hand`."""
        return self._authenticator.at_hand(shown)

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """The identity of a CONNECT, or why there is none."""
        return await self._authenticator.authenticate(shown)

    def begin_exchange(self, method: str, shown: Shown) -> Exchange | None:
        """An enhanced authentication by this method; None when it is not offered."""
        return self._exchanges.begin(method, shown)

    def authorize(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """See `Authority.authorize`."""
        return self.authority.authorize(identity, action, topic, qos=qos, retain=retain)

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """See `Authority.write_mask`."""
        return self.authority.write_mask(identity, topic)

    def read_mask(self, identity: Identity, topic: bytes) -> int:
        """See `Authority.read_mask`."""
        return self.authority.read_mask(identity, topic)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the rules."""
        self.authority.on_change(listener)

    def start(self) -> None:
        """Look for changed files from now on."""
        if self._watched:
            self._looking = asyncio.get_running_loop().create_task(self._watch_files())

    def reload(self) -> None:
        """Read all files again now, changed or not: what SIGHUP asks for."""
        task = asyncio.get_running_loop().create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def close(self) -> None:
        """Stop looking, and the threads that check passwords."""
        tasks = [*self._reloads, *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._authenticator.close()

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for watched in self._watched:
                await watched.refresh()

    async def _reload(self) -> None:
        self._authenticator.refresh()
        for watched in self._watched:
            await watched.refresh(now=True)

    def _first_acl(self, path: Path) -> None:
        watched = WatchedFile(path, acl_file.load, applied=self._acl_read, failed=self._acl_failed)
        self._watched.append(watched)
        try:
            self.authority.rules = watched.first()
        except LightMQError as error:
            self.authority.rules = RuleSet()
            self._counters.reloads.child("acl", "unusable").value += 1
            self._log.error("mqtt_acl_unusable", problem=str(error), consequence="everything is denied")
        else:
            self._counters.reloads.child("acl", "read").value += 1
            self._log.info("mqtt_acl_read", path=str(path), rules=self.authority.rules.count)

    def _acl_read(self, rules: RuleSet) -> None:
        self._counters.reloads.child("acl", "read").value += 1
        self._log.info("mqtt_acl_read", rules=rules.count)
        self.authority.replace(rules)

    def _acl_failed(self, error: LightMQError) -> None:
        self._counters.reloads.child("acl", "kept").value += 1
        self._log.error("mqtt_acl_unusable", problem=str(error), consequence="the rules from before stay in force")

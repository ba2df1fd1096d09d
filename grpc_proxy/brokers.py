"""The broker groups behind the proxy, each with a connection to its master.

    one broker by its address, one group by its name, or every group that the controllers name

Groups are added as the controllers name them, and stay until the proxy ends: one whose master is lost is connected
again when it has another. While it has none, the connection is to the replica that stands in for it, if one does: what
that replica refuses counts as lost, as with no connection. What is the same at every group is done at all of them
(`everywhere`); what can be done at any is done at one that can be reached.
Invariant: the groups are in the order of their names, so every proxy chooses alike. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence

from grpc_proxy.config import GrpcConfig
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import CallRejected
from remoting.client.masters import RouteWatch
from remoting.client.uplink import Uplink
from remoting.protocol.bodies.controller_body import PushedRoutes
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, RequestTimeout

FIRST_DELAY_DIVISOR = 20
OTHERS_WAIT_S = 2.0
"""How long the start waits for the other groups once one is connected."""
Pushed = Callable[[BrokerLink, Command], None]


class BrokerGroups:
    """Connections to broker groups, by name."""

    def __init__(self, config: GrpcConfig, dial: Dial, *, present: Connection | None = None) -> None:
        """`present` leads to a broker in this process."""
        self._config = config
        self._dial = dial
        self._present = present
        self._links: dict[str, BrokerLink] = {}
        self._ordered: tuple[BrokerLink, ...] = ()
        self._pushed: list[Pushed] = []
        self._changed = asyncio.Event()
        self._watch: RouteWatch | None = None
        if present is None and not config.broker and not config.broker_name:
            self._watch = RouteWatch(config.controllers, self._routes_received, dial=dial)
        else:
            self._add(config.broker_name)

    def __len__(self) -> int:
        return len(self._ordered)

    @property
    def links(self) -> tuple[BrokerLink, ...]:
        """Every group, in the order of their names."""
        return self._ordered

    @property
    def up(self) -> int:
        """How many groups are connected."""
        return sum(link.up for link in self._ordered)

    def on_push(self, callback: Pushed) -> None:
        """Call with each command that a broker sends on its own."""
        self._pushed.append(callback)

    def named(self, name: str) -> BrokerLink | None:
        """The group of this name, if there is one; without a name the only one there is."""
        if not name:
            return self._ordered[0] if len(self._ordered) == 1 else None
        return self._links.get(name)

    def require(self, name: str, code: int, what: str) -> BrokerLink:
        """The broker group that `what` names. CallRejected with the code if there is none of the name."""
        link = self.named(name)
        if link is None:
            raise CallRejected(code, f"{what} names no broker group that is served: {name[:64]!r}")
        return link

    def reachable(self, among: Sequence[BrokerLink] | None = None) -> Sequence[BrokerLink]:
        """Those of some groups, or of all, that are connected and answer in time; if none does, those connected, and
        otherwise all."""
        links = self._ordered if among is None else among
        return [link for link in links if link.preferred] or [link for link in links if link.up] or links

    async def request(self, caller: GrpcCaller | None, code: int, fields: dict[str, str]) -> Command:
        """Ask one group after the other until one answers. Raises as `BrokerLink.request`."""
        lost: ConnectionLost | TimeoutError | None = None
        for link in self.reachable():
            try:
                return await link.request(caller, code, fields)
            except (ConnectionLost, RequestTimeout) as error:
                lost = error
        raise lost or ConnectionLost("no broker group is known")

    async def everywhere(
        self, caller: GrpcCaller, code: int, fields: dict[str, str], body: bytes = b"",
        *, among: Collection[str] | None = None, needed: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Have every group, or those of these names, do the same.

        A group that cannot be reached gets to know it when the client repeats it. Raises the first refusal, and what
        was lost if no group answered, or not one of those needed.
        """
        links = self.reachable([link for link in self._ordered if among is None or link.name in among])
        names = [link.name for link in links]
        asked = (link.request(caller, code, fields, body) for link in links)
        found = await asyncio.gather(*asked, return_exceptions=True)
        failed = {name: one for name, one in zip(names, found, strict=True) if isinstance(one, BaseException)}
        for each in failed.values():
            if not isinstance(each, (ConnectionLost, RequestTimeout)):
                raise each
        missing = [name for name in needed if name in failed or name not in names]
        if missing or len(failed) == len(names):
            text = f"the broker group {''.join(missing[:1])!r} cannot be reached"
            raise next(iter(failed.values()), ConnectionLost(text))

    async def start(self) -> None:
        """Connect; return when one group is connected, and the others if they can be."""
        if self._watch is not None:
            self._watch.start()
        for link in self._ordered:
            link.start()
        while not self.up:
            await self._change()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OTHERS_WAIT_S):
                while self.up < len(self):
                    await self._change()

    async def stop(self) -> None:
        """Close every connection."""
        if self._watch is not None:
            await self._watch.stop()
        await asyncio.gather(*(link.stop() for link in self._ordered))

    def learn(self, name: str) -> None:
        """Note the name of the broker that is served by its address."""
        if self._watch is None:
            (link,) = self._ordered
            link.name = name
            self._links = {name: link}

    def _add(self, name: str) -> BrokerLink:
        config = self._config
        uplink = Uplink.configured(
            self._dial, config.broker, config.controllers, name, present=self._present,
            pause_first_ms=max(1, config.reconnect_delay_ms_max // FIRST_DELAY_DIVISOR),
            pause_ms_max=config.reconnect_delay_ms_max, stays=True,
        )  # fmt: skip
        link = BrokerLink(uplink, name=name, timeout_ms=config.request_timeout_ms)
        link.on_push(lambda command: self._push(link, command))
        link.on_up(self._changed.set)
        self._links[name] = link
        self._ordered = tuple(self._links[each] for each in sorted(self._links))
        return link

    def _routes_received(self, routes: PushedRoutes) -> None:
        """Connect to the groups that are new."""
        for name in sorted(set(routes.groups) - set(self._links)):
            self._add(name).start()

    def _push(self, link: BrokerLink, command: Command) -> None:
        for callback in self._pushed:
            callback(link, command)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

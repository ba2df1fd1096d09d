"""What controllers say unasked: roles to brokers (1008, from the leader), routes to who subscribed (9061, from each).

Invariant: one push per turn of the loop carries all groups that changed since a subscriber heard last; a group that is
gone is pushed with no brokers. A push is never a promise: brokers and clients poll as well.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from controller.control_plane.controller_api import master_header, set_body
from controller.control_plane.masters import GroupMasters
from controller.name_server.name_server import NameServer
from controller.name_server.state import Group
from controller.replicas.group import GroupView
from remoting.protocol.bodies.controller_body import (
    PushedGroup,
    PushedRoutes,
    RouteSubscription,
    to_fields,
)
from remoting.protocol.bodies.route_body import MASTER_ID, decode_body, encode_body
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Dial, Handler, Peer
from runtime.logs import get_logger

TOPICS_MAX = 10_000
"""Topics one subscription may name; one that names more gets every group."""
DIALS_MAX = 16
"""Fresh connections to brokers at a time; a push that would need one more is left to the broker's poll."""


class RolePushes:
    """Tells the brokers of a group who their master is."""

    def __init__(self, masters: GroupMasters, dial: Dial) -> None:
        self._masters = masters
        self._dial = dial
        self._dialing: set[asyncio.Task[None]] = set()
        self._log = get_logger("controller")
        self.pushed = 0
        self.failed = 0

    def push(self, view: GroupView) -> None:
        """Tell every live replica, over the connection of its heartbeats or a fresh one."""
        for broker_id in self._masters.live.alive(view.name):
            life = self._masters.live.life((view.name, broker_id))
            address = view.addresses.get(broker_id)
            if life is not None and life.channel is not None and self._hears_pushes(view.name, broker_id):
                cast("Peer", life.channel).send(role_command(view))
                self.pushed += 1
            elif address and len(self._dialing) < DIALS_MAX:
                task = asyncio.get_running_loop().create_task(self._push_fresh(address, view))
                self._dialing.add(task)
                task.add_done_callback(self._dialing.discard)

    async def stop(self) -> None:
        """Cancel the pushes under way and wait for their end."""
        tasks = list(self._dialing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hears_pushes(self, name: str, broker_id: int) -> bool:
        """Ours do, and name their boot; RocketMQ's brokers hear of roles at the port they listen on, nowhere else."""
        group = self._masters.machine.groups.get(name)
        replica = group.replicas.get(broker_id) if group is not None else None
        return replica is not None and bool(replica.boot_id)

    async def _push_fresh(self, address: str, view: GroupView) -> None:
        try:
            connection = await self._dial(address)
            connection.oneway(role_command(view))
            await connection.close()
            self.pushed += 1
        except (LightMQError, OSError) as error:
            self.failed += 1
            self._log.info("role_push_failed", broker=view.name, address=address, error=str(error))


class RoutePushes:
    """Tells subscribers which groups have new addresses."""

    def __init__(self, name_server: NameServer, groups: Callable[[], Mapping[str, GroupView]]) -> None:
        self._name_server = name_server
        self._groups = groups
        self._subscribers: dict[Peer, tuple[frozenset[str], dict[str, PushedGroup]]] = {}
        self._due = False
        self.pushed = 0

    def __len__(self) -> int:
        return len(self._subscribers)

    def handlers(self) -> dict[int, Handler]:
        """The table's entry of code 9060."""
        return {RequestCode.SUBSCRIBE_ROUTES: self.subscribe}

    def subscribe(self, peer: Peer, command: Command) -> Command:
        """Answer the routes as they are now and push what changes from now on."""
        topics = decode_body(command.body or b"{}", RouteSubscription).topics
        wanted = frozenset(topics if len(topics) <= TOPICS_MAX else ())
        groups = self._current(wanted)
        if peer not in self._subscribers:
            peer.on_close(lambda _reason: self._subscribers.pop(peer, None))
        self._subscribers[peer] = (wanted, groups)
        return command.reply(body=encode_body(PushedRoutes(groups)))

    def changed(self) -> None:
        """Something may be different: look at the end of this turn of the loop."""
        if not self._due and self._subscribers:
            self._due = True
            asyncio.get_running_loop().call_soon(self._push)

    def _push(self) -> None:
        self._due = False
        everything = self._current(frozenset())
        for peer, (wanted, told) in list(self._subscribers.items()):
            now = everything if not wanted else self._current(wanted)
            news = {name: group for name, group in now.items() if told.get(name) != group}
            news |= {
                name: PushedGroup(group.cluster, {}, group.epoch)
                for name, group in told.items()
                if name not in now and group.brokers
            }
            if news:
                self._subscribers[peer] = (wanted, {**told, **news})
                body = encode_body(PushedRoutes(news))
                peer.send(Command(RequestCode.ROUTES_CHANGED, flag=FLAG_ONEWAY, body=body))
                self.pushed += 1

    def _current(self, topics: frozenset[str]) -> dict[str, PushedGroup]:
        metadata, managed = self._name_server.metadata, self._groups()
        names = set(metadata.groups) | set(managed)
        if topics:
            names = {name for topic in topics for name in metadata.topics.get(topic, ())}
        return {name: pushed_group(metadata.groups.get(name), managed.get(name)) for name in sorted(names)}


def pushed_group(group: Group | None, view: GroupView | None) -> PushedGroup:
    """One group's addresses: those the controllers agreed on, else those that registered."""
    if view is not None:
        brokers = {each: address for each, address in view.addresses.items() if address and each != view.master}
        if view.master is not None:
            brokers[MASTER_ID] = view.master_address
        return PushedGroup(view.cluster, dict(sorted(brokers.items())), view.master_epoch)
    assert group is not None
    master = group.members.get(MASTER_ID)
    epoch = master.data_version.state_version if master is not None else 0
    return PushedGroup(group.cluster, {each: group.members[each].address for each in sorted(group.members)}, epoch)


def role_command(view: GroupView) -> Command:
    """1008: who is master now, and who is in sync."""
    fields = to_fields(msgspec.structs.replace(master_header(view), broker_name=view.name))
    return Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, flag=FLAG_ONEWAY, fields=fields, body=set_body(view))

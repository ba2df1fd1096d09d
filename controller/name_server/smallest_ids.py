"""Tells the brokers of a group when the smallest id among them changes (905, NOTIFY_MIN_BROKER_ID_CHANGE).

The broker with the smallest id stands in for a master that is missing, where the group allows it, so a change is news
to all of them: the one that stands in must cease, or another one must begin. A message goes to each member over the
connection that it registered or sent its last heartbeat on. It may be lost: brokers ask for the members too (901).

Invariant: one message a member and change, only in groups that enable an acting master; a connection that has ended is
not kept. Loop thread only.
"""

from __future__ import annotations

from controller.name_server.name_server import NameServer
from controller.name_server.state import BrokerKey
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Peer


class SmallestIds:
    """The smallest id of each group that enables an acting master, as its members were told."""

    def __init__(self, name_server: NameServer) -> None:
        self.pushed = 0
        """Messages sent since the start."""
        self._name_server = name_server
        self._told: dict[str, tuple[int, str]] = {}
        """Group -> (smallest id, its address)."""
        self._peers: dict[BrokerKey, Peer] = {}
        name_server.on_members(self._changed)

    def reachable(self, key: BrokerKey, peer: Peer) -> None:
        """A live broker has registered, or sent a heartbeat, over this connection."""
        self._peers[key] = peer

    def lost(self, key: BrokerKey, peer: Peer) -> None:
        """The connection has ended."""
        if self._peers.get(key) is peer:
            del self._peers[key]

    def _changed(self, broker_name: str) -> None:
        group = self._name_server.metadata.groups.get(broker_name)
        if group is None or not group.enable_acting_master or not group.members:
            self._told.pop(broker_name, None)
            return
        smallest = min(group.members)
        now = smallest, group.members[smallest].address
        before = self._told.get(broker_name)
        if now == before:
            return
        self._told[broker_name] = now
        fields = {"minBrokerId": str(smallest), "brokerName": broker_name, "minBrokerAddr": now[1]}
        if before is not None:
            fields["offlineBrokerAddr"] = before[1]
        for member in group.members.values():
            peer = self._peers.get((group.cluster, member.address))
            if peer is not None:
                peer.send(Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, flag=FLAG_ONEWAY, fields=dict(fields)))
                self.pushed += 1

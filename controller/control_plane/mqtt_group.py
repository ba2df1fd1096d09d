"""Which broker group has MQTT: its sessions, retained messages and what proxies follow (9063, 9064).

The first proxy or bridge that asks decides it, by the name in its configuration or without one: the first group by
name, one that is away included. From then on the name is held in the replicated log, and whoever is configured for
another group is refused in words, so that one client id never has two sessions and no subscriber misses what another
group has. An operator moves it (9064), from the name that he saw.
Invariant: the name is answered when a majority has it on disk; it is never decided while a controller may be of a
release that would leave it out. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.control_plane.masters import GroupMasters
from controller.replicas.group import PlaceMqtt
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer


class MqttGroupRequests:
    """The group that has MQTT, for proxies, bridges and operators."""

    def __init__(self, masters: GroupMasters, groups: Callable[[], Iterable[str]]) -> None:
        """`groups`: the names of all broker groups, those that are away included."""
        self._masters = masters
        self._groups = groups

    async def tell(self, _peer: Peer, command: Command) -> Command:
        """MQTT_GROUP: the group that has MQTT; `brokerName`, if given, is the one that the asking part is to serve."""
        await self._masters.proposer.barrier()
        wanted, held = command.fields.get("brokerName", ""), self._masters.machine.mqtt_group
        if not held:
            held = await self._decided(wanted)
        if held and wanted not in ("", held):
            raise Refused(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"MQTT is at the broker group {held!r}, not at {wanted!r}: sessions and retained messages are there. "
                f"Set broker_name to {held!r} or leave it empty; to move MQTT: lightmq cluster mqtt",
            )
        return command.reply(fields={"brokerName": held})

    async def move(self, _peer: Peer, command: Command) -> Command:
        """MOVE_MQTT: to the group `brokerName`, from `heldName`, which is empty where none has it."""
        wanted = command.fields.get("brokerName", "")
        self._require_known(wanted)
        outcome = await self._masters.propose(PlaceMqtt(wanted, command.fields.get("heldName", "")))
        if outcome.code != 0:
            raise Refused(outcome.code, outcome.remark)
        return command.reply(fields={"brokerName": wanted})

    async def _decided(self, wanted: str) -> str:
        known = sorted(self._groups())
        if not known:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "no broker group is known yet")
        if wanted:
            self._require_known(wanted)
        outdated = self._masters.proposer.outdated
        if outdated:  # down, or of a release that does not know of it: it is left to the configuration for now
            return ""
        # Where another one was faster the outcome is a refusal, and the name is theirs.
        await self._masters.propose(PlaceMqtt(wanted or known[0]))
        return self._masters.machine.mqtt_group

    def _require_known(self, name: str) -> None:
        known = sorted(self._groups())
        if name not in known:
            remark = f"no broker group {name!r} is known; known: {', '.join(known) or 'none'}"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

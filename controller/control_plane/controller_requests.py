"""Who the controllers are, and changes of it at run time (9076, 9077), answered by the leader.

    9077    fields `add`: a controller as `n1@host:port@raftport`, or `remove`: the id of one

Invariant: a change is answered when a majority has
it on disk; one at a time; one that the controllers could not survive is refused. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from controller.consensus.dledger_engine import DledgerEngine
from controller.consensus.engine import Engine, OutcomeUnknown
from controller.consensus.members import parse_member
from remoting.protocol.bodies.controller_body import (
    ControllerList,
    ControllerState,
    encode_body,
)
from remoting.protocol.errors import LocalMisuse, NotOffered, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer


class ControllerRequests:
    """The members of this controller's group, for operators."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, _peer: Peer, command: Command) -> Command:
        """LIST_CONTROLLERS: all members with their part and how far they are."""
        group, members = self._changing().seen()
        found = [
            ControllerState(
                node_id=each.place.node_id,
                address=f"{each.place.host}:{each.place.port}",
                raft_port=each.place.raft_port,
                role=each.role,
                connected=bool(each.is_connected),
                behind=each.behind or 0,
                directory=each.place.identity,
            )
            for each in members
        ]
        return command.reply(body=encode_body(ControllerList(found, group)))

    async def change(self, _peer: Peer, command: Command) -> Command:
        """CHANGE_CONTROLLERS: add one, which learns before it votes, or remove one."""
        engine, add, remove = self._changing(), command.fields.get("add", ""), command.fields.get("remove", "")
        if bool(add) == bool(remove):
            raise Refused(ResponseCode.INVALID_PARAMETER, "a change names one controller to add or one to remove")
        try:
            if add:
                await engine.change(add=parse_member(add))
            else:
                await engine.change(remove=remove)
        except LocalMisuse as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        except OutcomeUnknown as error:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{error}; see: lightmq cluster controllers list") from error
        return command.reply()

    def _changing(self) -> DledgerEngine:
        if not isinstance(self._engine, DledgerEngine):
            remark = (
                'controllers are changed at run time where there are several with controller.raft_engine = "dledger"; '
                "otherwise stop all, change controller.peers on each and start them"
            )
            raise NotOffered(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return self._engine

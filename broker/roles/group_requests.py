"""What operators ask a broker of a group that elects its master itself: how the group is, and another master.

    1006    the group as this broker knows it: who leads in which term, which members it reaches, who has everything
    1002    another member, named by its broker id, becomes the master in place of this one

These are the requests that controllers answer for their groups. Invariant: a change is answered with the new master
once that one leads, with a refusal otherwise. Loop thread only.
"""

from __future__ import annotations

from broker.roles.election_manager import ElectionManager
from broker.roles.election_members import MODE
from broker.roles.master import HandingOver
from broker.roles.member_state import MemberView
from broker.roles.steps import KnownGroup
from broker.roles.term import HAND_OVER_S
from remoting.access.rights import ADMIN
from remoting.protocol.bodies.controller_body import (
    NO_BROKER,
    ElectMasterHeader,
    GroupState,
    MasterHeader,
    ReplicaState,
    SyncStateData,
    encode_body,
    from_fields,
    to_fields,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer


class GroupRequests:
    """Answers operators on behalf of one member."""

    def __init__(self, member: MemberView, authorizer: Authorizer) -> None:
        self._member, self._authorizer = member, authorizer

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler, in every role."""
        return {Code.CONTROLLER_GET_SYNC_STATE_DATA: self._shown, Code.CONTROLLER_ELECT_MASTER: self._asked}

    def state(self) -> GroupState:
        """The group as this broker knows it; only its master knows who has everything."""
        member, manager = self._member, self._election()
        group, leader = member.config.broker_name, manager.elector.leader
        complete = self._in_sync() if manager.elector.leads else frozenset()
        members = [
            ReplicaState(group, each, address, manager.lines.reaches(name))
            for each, (name, address) in enumerate(manager.members.addresses.items(), 1)
        ]
        return GroupState(
            manager.members.id_of(leader) if leader else None,
            manager.members.addresses[leader] if leader else None,
            manager.elector.vote.term,
            0,
            [each for each in members if each.broker_id in complete],
            [each for each in members if each.broker_id not in complete],
            mode=MODE,
        )

    def _in_sync(self) -> frozenset[int]:
        """The master, and who has had everything within `lag_limit_ms`: one that writes what just came is not late."""
        master, serving = self._member.master, self._member.serving
        if master is None or serving is None:
            return frozenset()
        leader, end, now_ms = master.leader, serving.store.end_position, self._member.replicas.streams.now_ms()
        known = [each for each in leader.replicas() if each.acknowledged >= 0 and not each.is_learner]
        return frozenset(
            {leader.broker, *(each.broker for each in known if each.lag_ms(end, now_ms) <= leader.settings.lag_ms)}
        )

    def _election(self) -> ElectionManager:
        manager = self._member.manager
        assert isinstance(manager, ElectionManager)
        return manager

    def _shown(self, _peer: Peer, command: Command) -> Command:
        table = {self._member.config.broker_name: self.state()}
        return command.reply(body=encode_body(SyncStateData(table)))

    def _asked(self, peer: Peer, command: Command) -> None:
        self._authorizer.authorize(peer, command, ADMIN, f"request {command.code}")
        header = from_fields(command.fields, ElectMasterHeader)
        if header.broker_id == NO_BROKER or not header.designate_elect:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, "this group elects its master itself: name the broker that is to be it"
            )
        later(peer, command, self._moved(command, header.broker_id))

    async def _moved(self, command: Command, to: int) -> Command:
        member, state = self._member, self.state()
        if not self._election().elector.leads or not member.gate.serving:
            remark = (
                f"this broker is not the master of {member.config.broker_name}: ask {state.master_address or 'later'}"
            )
            raise Refused(ResponseCode.CONTROLLER_INVALID_MASTER, remark)
        complete = [each.broker_id for each in state.in_sync_replicas]
        if to == state.master_broker_id or to not in complete:
            remark = f"broker {to} is the master, or lacks something: these have everything: {complete}"
            raise Refused(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, remark)
        view = await self._transfer(to)
        if view.master != to:
            remark = f"broker {view.master} at {view.address} became the master, not broker {to}"
            raise Refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark)
        header = MasterHeader(view.epoch, 0, view.master, view.address)
        return command.reply(fields=to_fields(header))

    async def _transfer(self, to: int) -> KnownGroup:
        """Let another member be the master in place of this one; requests wait meanwhile.

        Raises Refused when it leads still, or nobody is known to.
        """
        member, manager, serving = self._member, self._election(), self._member.serving
        assert serving is not None
        assert member.master is not None
        try:
            await HandingOver(member.master, member.gate, serving.settle, manager, to).run()
        finally:
            manager.queue.resume()
            if member.serving is serving and manager.elector.leads:
                member.gate.resume()
        view = manager.steps.view
        if view is None or view.master in (None, manager.steps.broker_id):
            raise Refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, f"no other broker leads after {HAND_OVER_S} s")
        return view

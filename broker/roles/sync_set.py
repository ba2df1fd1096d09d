"""A master's part in keeping the set of replicas in sync: what it proposes, and what each outcome means for it.

    check --> Proposal --> the controllers --> learn | refused | unanswered

Invariant: a proposal whose outcome is not certain stays required until a set is learnt; after every outcome that is
confirmed which the set then allows. Loop rule: the loop's thread. Pure: time and connections are those of the
`ReplicaStreams` that it is given, so the simulation runs this code.
"""

from __future__ import annotations

from typing import Any

from broker.replication.leader import Leader, Proposal
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.steps import KnownGroup
from remoting.protocol.frames.codes import ResponseCode

CERTAIN = frozenset(
    {
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    }
)
"""Answers by which the controllers have decided against a set. After any other error, a busy controller's among them,
they may have committed it or may do so yet."""


class SyncSetKeeper:
    """Of one master in one epoch."""

    def __init__(self, leader: Leader, streams: ReplicaStreams, log: Any) -> None:
        self.changes = 0
        """Sets learnt."""
        self._leader, self._streams, self._log = leader, streams, log

    def check(self, kept: int) -> Proposal | None:
        """What to propose while the log here is kept up to an end; None while the set is right or a proposal open."""
        return self._leader.check(kept, self._streams.now_ms())

    def learn(self, view: KnownGroup) -> bool:
        """The controllers have committed a set; False when it is not news."""
        leader, streams = self._leader, self._streams
        if view.epoch != leader.epoch or not leader.learn(view.members, view.set_epoch, streams.now_ms()):
            return False
        self.changes += 1
        self._log.info("sync_state_set", members=sorted(view.members), set_epoch=view.set_epoch)
        streams.close_strangers("replicas out of sync report their state again")
        streams.confirm()
        return True

    def refused(self, proposal: Proposal, code: int, remark: str) -> None:
        """The leading controller answered with an error."""
        if code not in CERTAIN:
            self.unanswered(proposal, remark)
            return
        self._log.info("sync_state_set_refused", members=sorted(proposal.members), remark=remark)
        self._leader.members.refused(proposal)
        self._streams.confirm()

    def unanswered(self, proposal: Proposal, why: str) -> None:
        """Nobody knows what became of it."""
        self._log.warning("sync_state_set_unanswered", members=sorted(proposal.members), error=why)
        self._leader.members.unanswered(proposal)
        self._streams.confirm()

    def in_doubt(self) -> None:
        """This broker stood still: what members sent before proves nothing, so they connect again."""
        for stream in list(self._streams.open.values()):
            stream.abort("the master stood still")

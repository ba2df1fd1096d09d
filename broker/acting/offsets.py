"""Offsets of RocketMQ's consumer groups while a replica stands in for the master.

    15 UPDATE_CONSUMER_OFFSET     into the journal, answered when it is on the disk; pulls bring offsets too
    14 QUERY_CONSUMER_OFFSET      the larger one of the journal's and the log's; only for what the journal has

A master merges them (`broker.groups.merging`). What it would not take over is refused: an offset of a queue that is not
known here, or that the group pops. Invariant: a commit is answered after it is on the disk. Loop thread
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.acting.given import GivenMessages
from broker.acting.journal import ActingJournal
from broker.acting.kinds import OFFSETS
from broker.groups.groups import GroupOffsets, configuration_in, require_pull
from broker.groups.request_modes import RequestModes
from broker.requests import number, text
from broker.store.state import state_kinds
from broker.topics.replica import ReplicaTopics
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

CommitKey = tuple[str, str, int]
"""(group, topic, queue index)."""


class ActingOffsets:
    """The offsets that one replica keeps for a master."""

    def __init__(
        self,
        journal: ActingJournal,
        given: GivenMessages,
        store: Callable[[], LogStore | None],
        authorizer: Authorizer,
    ) -> None:
        """`given`: what groups pop here. `store`: the open log, None between two roles."""
        self._journal, self._given, self._store, self._authorizer = journal, given, store, authorizer

    def find(self, command: Command) -> Handler | None:
        """What answers a request while this broker stands in; None for what others answer."""
        if command.code == Code.UPDATE_CONSUMER_OFFSET:
            return self.commit
        if command.code == Code.QUERY_CONSUMER_OFFSET and (kept := self._journal.of(OFFSETS)) and _key(command) in kept:
            return self.query
        return None

    def commit(self, peer: Peer, command: Command) -> None:
        """15: keep a group's offset for a master; answered when it is on the disk here."""
        key, offset = self._allowed(peer, command), number(command.fields, "commitOffset")
        if offset < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOffset {offset} is negative")
        self._require_pulled(*key)

        def done(refused: Refused | None) -> None:
            if not command.is_oneway:
                peer.send(command.reply() if refused is None else command.reply(refused.code, refused.remark))

        self._journal.add(OFFSETS, key, (offset,), done)

    def keep(self, key: CommitKey, offset: int) -> bool:
        """Keep an offset for a master, without an answer; False when the journal is full."""
        if (offset,) > self._journal.of(OFFSETS).get(key, (-1,)):
            try:
                self._journal.add(OFFSETS, key, (offset,), lambda _error: None)
            except Refused:
                return False
        return True

    def query(self, peer: Peer, command: Command) -> Command:
        """14: the offset a group committed here, or a larger one that its master has confirmed before."""
        key = self._allowed(peer, command)
        (offset,), store = self._journal.of(OFFSETS)[key], self._store()
        if store is not None:
            found = GroupOffsets(store).get(*key)
            if found is not None and found[1] <= store.confirm_position:
                offset = max(offset, found[0])
        return command.reply(fields={"offset": str(offset)})

    def _require_pulled(self, group: str, topic: str, index: int) -> None:
        """Refused for what the next master would not take over: a queue that is not known, or that the group pops."""
        store = self._store()
        if store is None:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the log is not open: try again")
        topics = ReplicaTopics(store)
        settings = topics.get(topic)
        if topics.find(topic, index) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"the queue {topic}/{index} is not known to this replica")
        found = store.state.get(state_kinds.GROUP, group.encode())
        config = None if found is None else configuration_in(found[0])
        require_pull(config, group, topic, RequestModes(store))
        if settings is not None and self._given.begun(group, topic, settings.queue_count):
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"the group [{group}] consumes the topic [{topic}] by POP")

    def _allowed(self, peer: Peer, command: Command) -> CommitKey:
        key = _key(command)
        group, topic, _index = key
        self._authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        return key


def _key(command: Command) -> CommitKey:
    fields = command.fields
    return text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")

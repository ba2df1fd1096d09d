"""A replica's part in standing in for its master: its presence at the name servers, and what it serves meanwhile.

    replica, fenced   present at the name servers; stands in, or not, as `StandIn` decides at each request
    master            absent: the master registers by itself; what was kept here is merged into its log

Nothing that is written here is in the log, and nothing is written to the log. Messages and work that is due at a time
wait for a master: they are refused as at any replica.

Invariant: no request of a client is answered here unless this broker stands in at that moment. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.acting.abroad import OtherGroups
from broker.acting.deliveries import ActingDeliveries
from broker.acting.escape import EscapeBridge
from broker.acting.given import GivenMessages
from broker.acting.hand_over import HandOver, Merge
from broker.acting.journal import ActingJournal
from broker.acting.locks import ActingLocks
from broker.acting.offsets import ActingOffsets, CommitKey
from broker.acting.pops import ActingPops
from broker.acting.presence import GroupPresence
from broker.acting.quorum import LockQuorum
from broker.acting.revival import ActingRevival
from broker.acting.routes import NameServerRoutes
from broker.acting.transactions import ActingTransactions
from broker.acting.view import Place
from broker.registration import topic_body
from broker.store.state import state_kinds
from broker.topics.topics import settings_in
from remoting import clock
from remoting.protocol.addresses import split_address
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode as Code

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore
    from broker.transactions.feature import CheckQuestions
    from remoting.client.controllers import Controllers
    from remoting.protocol.bodies.controller_body import TopicConfig
    from remoting.protocol.frames.commands import Command
    from remoting.server.authorizer import Authorizer
    from remoting.transport.contracts import Dial, Handler


class ActingReplica:
    """What a member of a group does for a master that is missing."""

    def __init__(
        self,
        config: BrokerConfig,
        controllers: Controllers,
        *,
        store: Callable[[], LogStore | None],
        epoch: Callable[[], int],
        master_heard: Callable[[], bool],
        master: Callable[[], str],
        authorizer: Authorizer,
        connect: Dial,
        log: Any,
    ) -> None:
        """`controllers`: the name servers; `store`: the open log; `master_heard`: whether its stream continues.

        `master`: the address of another broker that is the master, as known now; empty while there is none.
        """
        self.served = 0
        """Requests handed to a handler."""
        self._store = store
        self.presence = GroupPresence(
            config, controllers, epoch=epoch, topics=self._topics, master_heard=master_heard, log=log
        )
        self.journal = ActingJournal(config.data_directory, log)
        given = GivenMessages(self.journal)
        self.offsets = ActingOffsets(self.journal, given, store, authorizer)
        self._transactions = ActingTransactions(self.journal, store, authorizer, config, log)
        self._pops = ActingPops(
            self.journal, given, store, authorizer, broker_name=config.broker_name, now_ms=clock.now_ms
        )
        self._deliveries = ActingDeliveries(
            self.journal,
            given,
            self._pops,
            store,
            authorizer,
            config,
            acts=self.presence.acts,
            now_ms=clock.now_ms,
            log=log,
        )
        self._locks = ActingLocks(
            self.journal, store, authorizer, term=lambda: (epoch(), self.presence.begun), now_ms=_now_ms,
            quorum=self._quorum(config, connect, log), broker_name=config.broker_name,
        )  # fmt: skip
        self.find_route = NameServerRoutes(controllers, config.replication.request_timeout_ms, log).find_route
        """Where a topic's queues are, in all broker groups. Raises ConnectionLost."""
        others = OtherGroups(config, controllers, connect, log)
        revival = ActingRevival(self._pops, given, self.journal, others, now_ms=clock.now_ms)
        self._escape = EscapeBridge(
            self.journal, others, revival, store=store, acts=self.presence.acts, now_ms=clock.now_ms
        )
        self._escapes = config.replication.escape
        self._hand_over = HandOver(self.journal, lambda: "" if self.presence.acts() else master(), connect, log)

    def start(self) -> None:
        """Begin to be present."""
        self.presence.start()
        if self._escapes:
            self._escape.start()

    async def stop(self) -> None:
        """Be present no more."""
        await self._escape.stop()
        await self.presence.stop()
        self._locks.cancel()
        await self._hand_over.stop()

    def stand_by(self, place: Place | None) -> None:
        """Be a replica with this id and address from now on, and give a master what was kept for it."""
        self.presence.become(place)
        if place is not None:
            self._deliveries.address = split_address(place[1])
        self._hand_over.start()

    def step_aside(self) -> None:
        """Another role is about to begin."""
        self.presence.become(None)
        self._deliveries.maintain()
        self._locks.cancel()
        self._hand_over.cancel()

    def lead(self, merges: Mapping[int, Merge]) -> None:
        """This broker is the master now: it takes over what it kept itself, by the requests' codes."""
        store = self._store()
        assert store is not None, "a master has its log open"
        self._hand_over.merge_into(store, merges)

    def keep(self, key: CommitKey, offset: int) -> bool:
        """Keep an offset that came with a pull, which is not answered; False while this broker does not stand in."""
        return self.presence.acts() and self.offsets.keep(key, offset)

    def find(self, command: Command) -> Handler | None:
        """What answers a request now; None for what an acting replica does not answer, and while this one is none."""
        if command.code == Code.AGREE_LOCKS:
            return self._locks.agree
        if not self.presence.acts():
            return None
        parts = self.offsets, self._transactions, self._locks, self._pops, self._deliveries
        handler = next((found for part in parts if (found := part.find(command)) is not None), None)
        self.served += handler is not None
        return handler

    def maintain(self, now_ms: int, questions: CheckQuestions) -> None:
        """While this broker stands in, ask the producers that are connected here about transactions that are open;
        afterwards let no pop wait here."""
        self._deliveries.maintain()
        if self.presence.acts():
            self._transactions.maintain(now_ms, questions)

    def _quorum(self, config: BrokerConfig, connect: Dial, log: Any) -> LockQuorum | None:
        """Who must agree to locks; None where nobody has to. Raises LocalMisuse."""
        settings = config.replication
        if not settings.lock_in_strict_mode:
            return None
        size = len(settings.members) or settings.group_size
        if not size:
            raise LocalMisuse(
                "broker.replication.lock_in_strict_mode needs broker.replication.group_size, the number of brokers of "
                "this group: more than half of them must agree to a lock"
            )
        return LockQuorum(size, self.presence.others, connect, log)

    def _topics(self) -> dict[str, TopicConfig]:
        """The topics that the log has so far and are confirmed."""
        store = self._store()
        if store is None:
            return {}
        known = [
            settings_in(bytes(value))
            for _name, (value, position) in list(store.state.items(state_kinds.TOPIC))
            if position < store.confirm_position
        ]
        return {config.name: topic_body(config) for config in known}


def _now_ms() -> int:
    return clock.monotonic_ns() // 1_000_000

"""How producers end transactions while a replica stands in for the master (37), and the question after it (39).

The outcome goes into the journal and is answered when it is on the disk; the next master carries it out
(`broker.transactions.merging`). What transactions there are is read from the replica's log: a half message that is not
confirmed here is not known, and the producer is asked about it by the next master.

Invariant: of two outcomes of one transaction the first counts, in the log as in the journal, and the other one is
refused. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.acting.journal import ActingJournal
from broker.acting.kinds import TRANSACTIONS
from broker.requests import number, text
from broker.transactions.feature import (
    CHECKS_PER_PASS_MAX,
    OUTCOMES,
    STEPS_PER_PASS_MAX,
    UNKNOWN,
    CheckQuestions,
    authorize_decision,
    is_asked,
)
from broker.transactions.transactions import HalfQueue, contradiction
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore


class ActingTransactions:
    """The transactions of a log that this broker does not write."""

    def __init__(
        self,
        journal: ActingJournal,
        store: Callable[[], LogStore | None],
        authorizer: Authorizer,
        config: BrokerConfig,
        log: Any,
    ) -> None:
        """`store`: the open log, None between two roles."""
        self._journal, self._store, self._authorizer = journal, store, authorizer
        self._config, self._log = config, log
        self._read: tuple[LogStore, int] | None = None
        self._halves: HalfQueue | None = None

    def find(self, command: Command) -> Handler | None:
        """What answers a request while this broker stands in; None for what others answer."""
        return self.end if command.code == Code.END_TRANSACTION else None

    def end(self, peer: Peer, command: Command) -> None:
        """37: commit or roll back; answered when that is on the disk here. 0, not known yet, leaves it open."""
        fields = command.fields
        offset, position = number(fields, "tranStateTableOffset"), number(fields, "commitLogOffset")
        group, wanted = text(fields, "producerGroup"), number(fields, "commitOrRollback")
        halves = self._current()
        if halves is None:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the log is not open: try again")
        authorize_decision(self._authorizer, peer, command, halves, offset)
        if wanted not in OUTCOMES and wanted != UNKNOWN:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOrRollback {wanted} is not 0, 8 or 12")

        def done(refused: Refused | None) -> None:
            if not command.is_oneway:
                peer.send(command.reply() if refused is None else command.reply(refused.code, refused.remark))

        if wanted == UNKNOWN:
            done(None)
        else:
            self._keep(halves, offset, position, group, OUTCOMES[wanted], done)

    def maintain(self, now_ms: int, questions: CheckQuestions) -> None:
        """Ask producers about transactions that are open for too long, while this broker stands in: as a master does.
        What a master would give up waits for one."""
        halves, interval_ms = self._current(), self._config.transaction_check_interval_ms
        if halves is None:
            return
        for _ in range(STEPS_PER_PASS_MAX):
            if not halves.take_up():
                break
        for half in halves.table.take_due(now_ms, CHECKS_PER_PASS_MAX):
            if self._journal.get(TRANSACTIONS, (half.offset,)) is None and is_asked(half, self._config, now_ms):
                questions.ask(halves, half)
            halves.table.ask_again(half, now_ms + interval_ms)

    def _current(self) -> HalfQueue | None:
        """The half messages of the log, as it is now; None while it is closed."""
        store = self._store()
        if store is None:
            self._read = self._halves = None
        elif self._read != (store, store.end_position):
            self._read = store, store.end_position
            self._halves = HalfQueue(store, self._config.transaction_check_after_ms, self._log)
        return self._halves

    def _keep(
        self,
        halves: HalfQueue,
        offset: int,
        position: int,
        group: str,
        outcome: bytes,
        done: Callable[[Refused | None], None],
    ) -> None:
        ended, target = halves.outcome(offset), halves.table.present(offset)
        if ended is None:
            position = halves.pending(offset, position, group).position
            kept = self._journal.get(TRANSACTIONS, (target,))
            ended = None if kept is None else kept[2].encode()
        if ended is not None and (refused := contradiction(offset, ended, outcome)) is not None:
            raise refused
        # One that has this outcome in the log is kept too: that record may not be confirmed, and be cut off.
        self._journal.add(TRANSACTIONS, (target,), (position, group, outcome.decode()), done)

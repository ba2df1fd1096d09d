"""Outcomes of transactions that another broker of the group took while it stood in for the master (9097).

The body is JSON: [[offset in the hidden queue, log position, producer group, "C" or "R"], ...], as its producer named
the half message. Each is carried out as if the producer had said it here, at most once: one that has this outcome
already is passed over. One that cannot be carried out, because the transaction has the other outcome, is not known, or
its topic takes no messages, is left out, counted and logged; what is still open then is asked about again.

Invariant: an outcome never changes; the answer comes when all of it is confirmed. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from broker.requests import merged_items
from remoting.access.rights import REGISTER
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.requests import RequestTools
    from broker.transactions.transactions import Transactions

Item = tuple[int, int, str, Literal["C", "R"]]
"""(offset in the hidden queue, log position, producer group, outcome)."""


class OutcomeMerge:
    """Carries out what producers decided elsewhere."""

    def __init__(self, tools: RequestTools, transactions: Transactions) -> None:
        self._tools = tools
        self._transactions = transactions

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.MERGE_TRANSACTIONS: self.requested}

    def requested(self, peer: Peer, command: Command) -> None:
        """9097: merge; answered when the outcomes are confirmed."""
        self._tools.authorizer.authorize(peer, command, REGISTER, self._tools.config.broker_name)
        self._tools.answers.reply_at(self.take(command.body), peer, command.reply())

    def take(self, body: bytes) -> int:
        """Merge what the body of such a request has; returns the position to wait for.

        Raises:
            Refused: this broker does not know all half messages yet, or there are too many items.
            RemoteViolation: the body cannot be read.
            StoreError: some of it may not be carried out; try again.
        """
        items: list[Item] = merged_items(body, Item)
        if not self._tools.is_sure:
            raise Refused(ResponseCode.SYSTEM_BUSY, "what this broker had when it became the master is not confirmed")
        return self._merge(items)

    def _merge(self, items: Iterable[Item]) -> int:
        position = 0
        for offset, at, group, outcome in items:
            self._transactions.halves.topic_of(offset)  # sees all up to it
            try:
                end, refused = self._transactions.end(offset, at, group, outcome.encode())
            except Refused as error:
                end, refused = 0, error
            position = max(position, end)
            if refused is not None:
                self._tools.metrics.dropped.child("outcome_not_merged").value += 1
                self._tools.log.warning("outcome_not_merged", offset=offset, outcome=outcome, reason=refused.remark)
        return position

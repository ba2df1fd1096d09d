"""Transactions as one feature: END_TRANSACTION (37), the question to producers (39), and what expires.

A half message without an outcome is asked about `transaction_check_after_ms` after it was stored and then at every
`transaction_check_interval_ms`: one connected producer of its group gets the message and answers with END_TRANSACTION.
After `transaction_checks_max` questions, or when it is older than `transaction_age_s_max`, it goes to the topic
`TRANS_CHECK_MAX_TIME_TOPIC`. Only producers that may publish the message are asked; without one the question is
counted and logged, and put again later. A decision is judged by the topic of the message, also of one that has ended.
Questions are counted in memory: a new master starts from zero.
Invariant: a question follows only what is confirmed; bounded work in one pass. Loop thread only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.requests import Feature, RequestTools, number, text
from broker.rocketmq.stored_message import ipv4_host, origin_of
from broker.store.errors import StoreError
from broker.store.index.absence import Absence
from broker.store.placed import property_value
from broker.transactions.merging import OutcomeMerge
from broker.transactions.transactions import (
    COMMITTED,
    EXPIRED,
    OUTCOME_NAMES,
    ROLLED_BACK,
    Half,
    HalfQueue,
    Transactions,
)
from remoting.access import visibility
from remoting.access.rights import PUBLISH
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.protocol.records.record import header_of
from remoting.protocol.records.rocketmq_form import stored_message
from remoting.protocol.records.stored_message import offset_message_id
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.groups.groups import Clients
    from broker.publishing.placement import Placement
    from broker.requests import BrokerIdentity
    from broker.topics.feature import TopicFeature
    from remoting.server.authorizer import Authorizer
    from runtime.metrics import Registry

UNKNOWN, COMMIT, ROLL_BACK = 0, 8, 12
"""Values of `commitOrRollback`."""
OUTCOMES = {COMMIT: COMMITTED, ROLL_BACK: ROLLED_BACK}
CHECKS_PER_PASS_MAX = 1_000
STEPS_PER_PASS_MAX = 20
CHECK_TIMES = b"TRANSACTION_CHECK_TIMES"
MILLISECONDS = 1_000


class CheckQuestions:
    """Asks producers how their open transactions end."""

    def __init__(
        self,
        clients: Clients,
        identity: BrokerIdentity,
        cluster_name: str,
        registry: Registry,
        authorizer: Authorizer,
        log: Any,
    ) -> None:
        """`clients`: the producers that are connected; `identity`: what the questions name as the broker."""
        self._clients, self._identity = clients, identity
        self._authorizer, self._log = authorizer, log
        self._origin = origin_of(cluster_name)
        self._checks = registry.counter(
            "rocketmq_transaction_checks_total", "Questions to producers about open transactions", ("result",)
        )

    def ask(self, halves: HalfQueue, half: Half) -> None:
        """Send the half message to one of its producers that may publish it, to another one each time.

        Whoever names a producer group in a heartbeat counts as its producer, but the question has the message in it.
        """
        producers = [client for client in self._clients.producers_of(half.group) if client.peer.writable]
        if not producers:
            self._checks.child("no_producer").value += 1
            return
        record = halves.record(half)
        if isinstance(record, Absence):
            self._checks.child("unreadable").value += 1
            return
        resources, may_receive = visibility.of_image(record), self._authorizer.may_receive
        producers = [one for one in producers if all(may_receive(one.receiver, PUBLISH, each) for each in resources)]
        if not producers:
            self._checks.child("not_permitted").value += 1
            self._log.warning("transaction_check_withheld", group=half.group, offset=half.offset, topic=resources[0])
            return
        half.checks += 1
        unique = property_value(record, UNIQUE_KEY).decode("utf-8", "replace")
        host = ipv4_host(self._identity.host, self._identity.port)
        fields = {
            "topic": bytes(record.topic).decode("utf-8", "replace"),
            "tranStateTableOffset": str(half.offset),
            "commitLogOffset": str(half.position),
            "msgId": unique,
            "transactionId": unique,
            "offsetMsgId": offset_message_id(host, half.position),
        }
        counted = (*self._origin, (CHECK_TIMES, b"%d" % half.checks))
        body = stored_message(record, header_of(record).producer_seq & 0xFFFF, half.offset, host, counted)
        code = RequestCode.CHECK_TRANSACTION_STATE
        producer = producers[half.checks % len(producers)]
        producer.peer.send(Command(code, flag=FLAG_ONEWAY, fields=fields, body=body))
        self._checks.child("asked").value += 1


def authorize_decision(authorizer: Authorizer, peer: Peer, command: Command, halves: HalfQueue, offset: int) -> None:
    """Refuse a decision unless its sender may publish the message, whatever topic the request names.

    Raises:
        Refused: NO_PERMISSION; or, as for a message that never was, SYSTEM_ERROR where its topic is not known any more,
            because then nobody may learn its outcome.
    """
    record, topic = halves.known(offset), command.fields.get("topic")
    if authorizer.trusts(peer, command):
        return
    if record is not None:
        for resource in visibility.of_image(record):
            authorizer.authorize(peer, command, PUBLISH, resource)
        return
    if topic:
        authorizer.authorize(peer, command, PUBLISH, topic)
    raise halves.absent(halves.table.present(offset))


def is_asked(half: Half, config: BrokerConfig, now_ms: int) -> bool:
    """Whether the producers of an open transaction are asked once more; else it is given up."""
    age_ms = now_ms - half.stored_ms
    return half.checks < config.transaction_checks_max and age_ms < config.transaction_age_s_max * MILLISECONDS


class TransactionFeature(Feature):
    """What producers ask of transactions, and what they are asked."""

    def __init__(
        self, tools: RequestTools, *, topics: TopicFeature, placement: Placement, clients: Clients, registry: Registry
    ) -> None:
        config = tools.config
        self._tools = tools
        self._questions = CheckQuestions(
            clients, tools.identity, config.cluster_name, registry, tools.authorizer, tools.log
        )
        self.messages = Transactions(
            tools.store,
            topics.table,
            placement,
            topics.hidden,
            pending_max=config.limits.transactions_max,
            check_after_ms=config.transaction_check_after_ms,
            log=tools.log,
        )
        self.merge = OutcomeMerge(tools, self.messages)
        tools.store.retention.carried.keep(self.messages.keep_from)
        self._refused = registry.counter(
            "rocketmq_transaction_decisions_refused_total", "Decisions about transactions that were refused"
        )
        self._declare(registry)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.END_TRANSACTION: self.end_transaction} | self.merge.handlers()

    def end_transaction(self, peer: Peer, command: Command) -> None:
        """37: commit or roll back; answered when that is confirmed. 0, not known yet, leaves it open."""
        fields = command.fields
        offset, position = number(fields, "tranStateTableOffset"), number(fields, "commitLogOffset")
        group, wanted = text(fields, "producerGroup"), number(fields, "commitOrRollback")
        authorize_decision(self._tools.authorizer, peer, command, self.messages.halves, offset)
        if wanted not in OUTCOMES and wanted != UNKNOWN:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOrRollback {wanted} is not 0, 8 or 12")
        reply = command.reply()
        if wanted == UNKNOWN:
            _send(peer, command, reply)
            return
        try:
            position, refused = self.messages.end(offset, position, group, OUTCOMES[wanted])
        except Refused:  # most decisions are one-way and have no reply
            self._refused.value += 1
            raise
        if refused is not None:
            self._refused.value += 1
            reply = command.reply(refused.code, refused.remark, refused.fields)
        answers = self._tools.answers
        answers.when_confirmed(position, peer, reply, lambda: _send(peer, command, reply))

    def configure(self) -> None:
        """Take over how many transactions may be open, and when the first question follows."""
        config = self._tools.config
        self.messages.configure(config.limits.transactions_max, config.transaction_check_after_ms)

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Ask producers about transactions open for too long, and move those without an answer."""
        for _ in range(STEPS_PER_PASS_MAX):
            if not self.messages.halves.take_up():
                break
        expired, config = 0, self._tools.config
        for half in self.messages.table.take_due(now_ms, CHECKS_PER_PASS_MAX):
            if is_asked(half, config, now_ms):
                self._questions.ask(self.messages.halves, half)
                self.messages.table.ask_again(half, now_ms + config.transaction_check_interval_ms)
                continue
            try:
                self.messages.expire(half)
                expired += 1
            except (Refused, StoreError, LocalMisuse) as error:
                self._tools.log.error("transaction_not_moved", offset=half.offset, error=str(error))
                self.messages.table.ask_again(half, now_ms + config.transaction_check_interval_ms)
        return {"transaction_expired": expired}

    def status(self) -> dict[str, int]:
        """How many transactions are open."""
        return {"transactions": len(self.messages.table)}

    def _declare(self, registry: Registry) -> None:
        messages = self.messages
        registry.gauge(
            "rocketmq_transactions", "Transactions that are neither committed nor rolled back",
            function=lambda: len(messages.table),
        )  # fmt: skip
        ended = registry.counter("rocketmq_transactions_ended_total", "Transactions that ended", ("outcome",))
        for outcome in (COMMITTED, ROLLED_BACK, EXPIRED):
            name = OUTCOME_NAMES[outcome].replace(" ", "_")
            ended.child(name, function=partial(messages.counts.__getitem__, outcome))


def _send(peer: Peer, command: Command, reply: Command) -> None:
    if not command.is_oneway:
        peer.send(reply)

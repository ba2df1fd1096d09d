"""STAGE, COMMIT_BATCH, ABORT_BATCH, LEDGER (9020-9023): the broker's half of an exactly-once sink.

Spark tasks stage rows that nobody sees; the driver commits exactly the attempts that won. A staged row is placed once
when it arrives, so that a topic that cannot be written to, or a delay that is too long, fails the task and not the
commit. A repeated STAGE frame may carry the field `first` (rows of this attempt staged before the frame): what is
there already is then not staged twice. COMMIT_BATCH with `prepare` shows nothing and keeps what it names; with a plan
it decides the batch for other broker groups too, and every later answer about that batch says the plan that counts.
Invariant: STAGE and COMMIT_BATCH are answered when what they did is confirmed; a commit also when every topic created
before it has its route. Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.api.access import PUBLISH
from broker.api.append import admit_retained, authorize_body, entry_message, refusal_of
from broker.meta import hot
from broker.meta.ledger import CommitRun, Handle, Plan
from broker.meta.stages import Attempt, AttemptKey
from broker.store.errors import StoreError
from broker.store.store_message import StoreMessage
from remoting.access.resources import of_sink
from remoting.protocol.append_body import KIND_BATCH, AppendEntry, decode_entries
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.protocol.sink_body import (
    NO_BATCH,
    AbortBatch,
    BatchCommitted,
    CommitBatch,
    Ledger,
    LedgerState,
    Planned,
    StageHandle,
    StageReply,
    decode,
    encode,
)
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker


def stage(broker: Broker, peer: Peer, command: Command) -> None:
    """Keep rows of one attempt where no reader sees them; answers how many the attempt has in all."""
    key = _attempt_key(command)
    authorize_body(broker, peer, command)
    broker.authorizer.authorize(peer, command, PUBLISH, of_sink(key.sink))
    if broker.retained_quota.active:
        admit_retained(broker, decode_entries(command.body))
    last, position = broker.ledger.last_batch(key.sink)
    if key.batch <= last:
        # The batch is visible already: nothing may be added, and nothing needs to be.
        count = sum(entry.count for entry in decode_entries(command.body))
        broker.reply_at(position, peer, command.reply(body=encode(StageReply(count))))
        return
    attempt = broker.stages.open(key, broker.clock.now_ms())
    staged = broker.stages.staged(key)
    first = int(command.fields.get("first", staged))
    if not 0 <= first <= staged:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"first is {first}, the attempt has {staged} rows")
    messages = None
    if staged == first:
        messages = hot.core.staged(command.body, broker.placement.way, (attempt.queue_id,))
    if messages is None:
        messages = _staged(broker, _behind(decode_entries(command.body), staged - first), attempt)
    try:
        end = broker.store.append(messages).end_position if messages else broker.store.end_position
    except StoreError as error:
        raise refusal_of(broker.metrics, error) from error
    reply = command.reply(body=encode(StageReply(broker.stages.staged(key))))
    broker.reply_at(end, peer, reply)


def _staged(broker: Broker, entries: list[AppendEntry], attempt: Attempt) -> list[StoreMessage]:
    """The entries as messages of the attempt's hidden queue, each placed once to see that it can be."""
    messages = []
    place, hide = broker.placement.place_staged, broker.stages.stage
    for entry in entries:
        kind, queue_index = entry.kind, entry.queue_index
        message = place(entry_message(entry), kind, queue_index)
        if kind != KIND_BATCH:
            message.flags = entry.flags
        messages.append(hide(message, kind, queue_index, attempt))
    return messages


def _behind(entries: list[AppendEntry], rows: int) -> list[AppendEntry]:
    """The entries behind so many rows, which are staged already; they end where an entry ends."""
    at = 0
    while rows > 0 and at < len(entries):
        rows -= entries[at].count
        at += 1
    if rows < 0:
        raise Refused(ResponseCode.INVALID_PARAMETER, "the rows that are staged already end inside a batch")
    return entries[at:] if at else entries


def commit_batch(broker: Broker, peer: Peer, command: Command) -> None:
    """Make the listed attempts visible, all or nothing; a batch that is committed already is left alone."""
    request = decode(CommitBatch, command.body)
    broker.authorizer.authorize(peer, command, PUBLISH, of_sink(request.sink))
    handles = _numbers(request.handles)
    if request.prepare:
        end = broker.ledger.prepare(request.sink, request.batch, handles)
        broker.reply_at(end, peer, command.reply(body=encode(BatchCommitted(already=False, count=0))))
        return
    waiting = broker.commits.get(request.sink)
    if waiting is not None and waiting.batch != request.batch:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"batch {waiting.batch} of sink {request.sink!r} is being committed")
    plan = [(part.group, _numbers(part.handles)) for part in request.plan]
    run = waiting or broker.ledger.begin(request.sink, request.batch, handles, plan)
    if run is None:
        last, position = broker.ledger.last_batch(request.sink)
        decided = _planned(broker.ledger.plan(request.sink)) if last == request.batch else []
        answer = BatchCommitted(already=True, count=0, plan=decided)
        broker.reply_at(position, peer, command.reply(body=encode(answer)))
        return
    _run_commit(broker, peer, command, run)


def abort_batch(broker: Broker, peer: Peer, command: Command) -> None:
    """Drop what is staged for a batch, unless its commit has begun; NO_BATCH ends the sink with its ledger."""
    request = decode(AbortBatch, command.body)
    broker.authorizer.authorize(peer, command, PUBLISH, of_sink(request.sink))
    end = 0
    if request.batch == NO_BATCH:
        end = broker.ledger.forget(request.sink)
    elif request.sink not in broker.commits:
        broker.ledger.abort(request.sink, request.batch)
    broker.reply_at(end, peer, command.reply())


def ledger(broker: Broker, peer: Peer, command: Command) -> None:
    """The last committed batch of a sink, and what of it is at other groups."""
    request = decode(Ledger, command.body)
    broker.authorizer.authorize(peer, command, PUBLISH, of_sink(request.sink))
    last, position = broker.ledger.last_batch(request.sink)
    state = LedgerState(last, _planned(broker.ledger.plan(request.sink)))
    broker.reply_at(position, peer, command.reply(body=encode(state)))


def _run_commit(broker: Broker, peer: Peer, command: Command, run: CommitRun) -> None:
    """Append group after group, one per loop turn, and answer when the last one is confirmed."""
    try:
        if not run.finished:
            broker.commits[run.sink] = run
            broker.ledger.step(run)
    except StoreError as error:
        broker.commits.pop(run.sink, None)
        raise refusal_of(broker.metrics, error) from error
    except BaseException:
        broker.commits.pop(run.sink, None)
        raise
    if not run.finished:
        asyncio.get_running_loop().call_soon(_continue_commit, broker, peer, command, run)
        return
    if broker.commits.pop(run.sink, None) is not None:
        broker.metrics.commits.value += 1
        broker.metrics.messages_in.value += run.total
    reply = command.reply(body=encode(BatchCommitted(already=False, count=run.total, plan=_planned(run.plan))))
    broker.reply_found_at(run.position, list(broker.publication.pending), peer, reply)


def _continue_commit(broker: Broker, peer: Peer, command: Command, run: CommitRun) -> None:
    try:
        _run_commit(broker, peer, command, run)
    except Refused as refused:
        peer.send(command.reply(refused.code, refused.remark, refused.fields))


def _numbers(handles: list[StageHandle]) -> list[Handle]:
    return [(handle.partition, handle.attempt, handle.count) for handle in handles]


def _planned(plan: Plan) -> list[Planned]:
    return [Planned(group, [StageHandle(*handle) for handle in handles]) for group, handles in plan]


def _attempt_key(command: Command) -> AttemptKey:
    try:
        return AttemptKey(
            command.fields["sink"],
            int(command.fields["batch"]),
            int(command.fields["partition"]),
            int(command.fields["attempt"]),
        )
    except (KeyError, ValueError) as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"STAGE needs the fields sink, batch, partition, attempt: {error}"
        ) from error

"""STAGE, COMMIT_BATCH, ABORT_BATCH, LEDGER, CHECK_PUBLISH (9020-9024): the broker's half of an exactly-once sink.

Spark tasks stage rows that are not visible; the driver commits exactly the attempts that won. A staged row is placed
once when it arrives, so that a topic that cannot be written to, or a delay that is too long, fails the task and not the
commit. A repeated STAGE frame may have the field `first` (rows of this attempt staged before the frame): rows that are
staged already are then not staged twice. COMMIT_BATCH with `prepare` makes nothing visible and keeps the attempts it
names; with a plan it decides the batch for other broker groups too, and every later answer about that batch has the
plan that was decided.

CHECK_PUBLISH, with the fields `topic` (as in images) and `sink`, each optional, answers before there are any rows
whether they would be refused, by the same authorize() with the same resources as STAGE and APPEND_MANY.

Invariant: STAGE and COMMIT_BATCH are answered when their records are confirmed; a commit also when every topic created
before it has its route. Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.publishing.append import admit_retained, authorize_body
from broker.requests import Feature, RequestTools, refusal_of
from broker.sink.ledger import AttemptKey, CommitRun, Handle, Plan, SinkLedger, Stages
from broker.store.errors import StoreError
from broker.store.placed import Placed
from remoting.access.rights import PUBLISH, of_sink
from remoting.native import core as native
from remoting.protocol.bodies.sink_body import (
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
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import image_views
from remoting.protocol.records.record import RecordView
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.publishing.placement import Placement
    from broker.retained.feature import RetainedQuota
    from broker.topics.feature import TopicFeature


class SinkFeature(Feature):
    """The broker half of exactly-once sinks."""

    def __init__(
        self, tools: RequestTools, topics: TopicFeature, *, placement: Placement, quota: RetainedQuota
    ) -> None:
        config, limits = tools.config, tools.config.limits
        self.stages = Stages(
            tools.store,
            topics.hidden,
            expiry_ms=config.stage_expiry_s * 1_000,
            attempts_max=limits.stage_attempts_max,
            now_ms=tools.identity.started_ms,
        )
        self.ledger = SinkLedger(
            tools.store,
            self.stages,
            placement,
            group_bytes_max=limits.commit_group_bytes_max,
            sinks_max=limits.sinks_max,
            refused=self._refused,
        )
        self._tools = tools
        self._placement = placement
        self._quota = quota
        self._publication = topics.publication
        self._commits: dict[str, CommitRun] = {}
        self._interrupted: dict[str, str] = {}
        """Sink -> why a commit that a stop interrupted is not finished yet."""

    def configure(self) -> None:
        """Take over how many sinks there may be."""
        self.ledger.sinks_max = self._tools.config.limits.sinks_max

    def _refused(self, reason: str) -> None:
        self._tools.metrics.refused.child(reason).value += 1

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.STAGE: self.stage,
            Code.COMMIT_BATCH: self.commit_batch,
            Code.ABORT_BATCH: self.abort_batch,
            Code.LEDGER: self.ledger_state,
            Code.CHECK_PUBLISH: self.check_publish,
        }

    def start(self) -> None:
        """Finish the commits that a stop interrupted, once their rows can be read: part of them is visible already."""
        if self._tools.is_sure:
            self._finish()
        else:
            self._tools.store.when_confirmed(self._tools.identity.started_position, self._finish)

    def _finish(self, failed: Exception | None = None) -> None:
        if failed is not None:  # this broker is no longer the master, or cannot write
            return
        for run in self.ledger.unfinished():
            if run.sink in self._commits:  # its driver came back first, and goes on with it
                continue
            told = self._interrupted.pop(run.sink, "")
            try:
                while not run.finished:
                    self.ledger.step(run)
                self._tools.log.info("commit_finished", sink=run.sink, batch=run.batch, rows=run.total)
            except LightMQError as error:
                self._interrupted[run.sink] = str(error)
                if str(error) != told:
                    self._tools.log.error("commit_not_finished", sink=run.sink, batch=run.batch, error=str(error))

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Drop the attempts that were not committed in time; try again what an interrupted commit could not do."""
        if self._interrupted:
            self._finish()
        return {"stage_expired": self.ledger.expire(now_ms)}

    def status(self) -> dict[str, int]:
        """How many attempts are staged."""
        return {"staged_attempts": len(self.stages)}

    def stage(self, peer: Peer, command: Command) -> None:
        """Stage rows of one attempt, hidden from readers; answers how many rows the attempt has in all."""
        key = _attempt_key(command)
        authorize_body(self._tools.authorizer, peer, command)
        self._tools.authorizer.authorize(peer, command, PUBLISH, of_sink(key.sink))
        if self._quota.active:
            admit_retained(self._quota, self._tools.metrics, image_views(command.body))
        last, position = self.ledger.last_batch(key.sink)
        if key.batch <= last:
            # The batch is visible already: no rows may be added.
            count = sum(image.count for image in image_views(command.body))
            self._tools.answers.reply_at(position, peer, command.reply(body=encode(StageReply(count))))
            return
        self.ledger.admit(key.sink)
        attempt = self.stages.open(key, self._tools.clock.now_ms())
        staged = self.stages.staged(key)
        first = int(command.fields.get("first", staged))
        if not 0 <= first <= staged:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"first is {first}, the attempt has {staged} rows")
        images = command.body[_behind(image_views(command.body), staged - first) :] if staged > first else command.body
        with self._placement.choice.placing.by(peer, command):
            number, count = self._placement.check(images)
        hidden = Placed(native.core.hidden(images, 0), [(attempt.queue_id,)] * number, count)
        try:
            end = self._tools.store.append(hidden).end_position if number else self._tools.store.end_position
        except StoreError as error:
            raise refusal_of(self._tools.metrics, error) from error
        reply = command.reply(body=encode(StageReply(self.stages.staged(key))))
        self._tools.answers.reply_at(end, peer, reply)

    def commit_batch(self, peer: Peer, command: Command) -> None:
        """Make the listed attempts visible, all or none; does nothing for a batch that is committed already."""
        request = decode(CommitBatch, command.body)
        self._tools.authorizer.authorize(peer, command, PUBLISH, of_sink(request.sink))
        handles = _numbers(request.handles)
        if request.prepare:
            end = self.ledger.prepare(request.sink, request.batch, handles)
            self._tools.answers.reply_at(end, peer, command.reply(body=encode(BatchCommitted(already=False, count=0))))
            return
        waiting = self._commits.get(request.sink)
        if waiting is not None and waiting.batch != request.batch:
            raise Refused(
                ResponseCode.SYSTEM_BUSY, f"batch {waiting.batch} of sink {request.sink!r} is being committed"
            )
        plan = [(part.group, _numbers(part.handles)) for part in request.plan]
        run = waiting or self.ledger.begin(request.sink, request.batch, handles, plan, request.digest)
        if run is None:
            last, position = self.ledger.last_batch(request.sink)
            answer = BatchCommitted(already=True, count=0)
            if last == request.batch:  # what an earlier one was is not known any more
                answer.plan = _planned(self.ledger.plan(request.sink))
                answer.digest = self.ledger.digest(request.sink)
            self._tools.answers.reply_at(position, peer, command.reply(body=encode(answer)))
            return
        self._run_commit(peer, command, run)

    def abort_batch(self, peer: Peer, command: Command) -> None:
        """Drop what is staged for a batch, unless its commit has begun; NO_BATCH ends the sink with its ledger."""
        request = decode(AbortBatch, command.body)
        self._tools.authorizer.authorize(peer, command, PUBLISH, of_sink(request.sink))
        end = 0
        if request.batch == NO_BATCH:
            end = self.ledger.forget(request.sink)
        elif request.sink not in self._commits:
            self.ledger.abort(request.sink, request.batch)
        self._tools.answers.reply_at(end, peer, command.reply())

    def ledger_state(self, peer: Peer, command: Command) -> None:
        """The last committed batch of a sink, and the part of it at other groups."""
        request = decode(Ledger, command.body)
        self._tools.authorizer.authorize(peer, command, PUBLISH, of_sink(request.sink))
        last, position = self.ledger.last_batch(request.sink)
        state = LedgerState(last, _planned(self.ledger.plan(request.sink)), self.ledger.digest(request.sink))
        self._tools.answers.reply_at(position, peer, command.reply(body=encode(state)))

    def check_publish(self, peer: Peer, command: Command) -> Command:
        """Success when everything named is allowed, else NO_PERMISSION with the first that is not."""
        if topic := command.fields.get("topic"):
            self._tools.authorizer.authorize(peer, command, PUBLISH, topic)
        if sink := command.fields.get("sink"):
            self._tools.authorizer.authorize(peer, command, PUBLISH, of_sink(sink))
        return command.reply()

    def _run_commit(self, peer: Peer, command: Command, run: CommitRun) -> None:
        """Append one group per loop turn, and answer when the last one is confirmed."""
        try:
            if not run.finished:
                self._commits[run.sink] = run
                self.ledger.step(run)
        except StoreError as error:
            self._commits.pop(run.sink, None)
            raise refusal_of(self._tools.metrics, error) from error
        except BaseException:
            self._commits.pop(run.sink, None)
            raise
        if not run.finished:
            asyncio.get_running_loop().call_soon(self._continue_commit, peer, command, run)
            return
        if self._commits.pop(run.sink, None) is not None:
            self._tools.metrics.commits.value += 1
            self._tools.metrics.messages_in.value += run.total
        answer = BatchCommitted(already=False, count=run.total, plan=_planned(run.plan), digest=run.digest)
        reply = command.reply(body=encode(answer))
        self._tools.answers.reply_when_found(run.position, list(self._publication.pending), peer, reply)

    def _continue_commit(self, peer: Peer, command: Command, run: CommitRun) -> None:
        try:
            self._run_commit(peer, command, run)
        except Refused as refused:
            peer.send(command.reply(refused.code, refused.remark, refused.fields))


def _behind(images: list[RecordView], rows: int) -> int:
    """Where the images begin behind the first `rows`, which are staged already; Refused inside an image."""
    at = end = 0
    while rows > 0 and at < len(images):
        rows -= images[at].count
        end += images[at].total
        at += 1
    if rows < 0:
        raise Refused(ResponseCode.INVALID_PARAMETER, "the rows that are staged already end inside a batch")
    return end


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

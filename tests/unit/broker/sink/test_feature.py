"""STAGE, COMMIT_BATCH, ABORT_BATCH, LEDGER over the wire: exactly once, also when answers are lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.config import LimitsConfig
from broker.sink.feature import SinkFeature
from broker.sink.ledger import AttemptKey
from broker.store.errors import StoreFull
from broker.topics.topics import TopicSettings
from remoting.native import core as native
from remoting.protocol.bodies.append_body import decode_append_reply
from remoting.protocol.bodies.pull_body import STATUS_NO_SUCH_QUEUE, decode_multi_pull_reply, encode_multi_pull
from remoting.protocol.bodies.sink_body import (
    AbortBatch,
    BatchCommitted,
    BatchDigest,
    CommitBatch,
    Ledger,
    LedgerState,
    Planned,
    StageHandle,
    StageReply,
    decode,
    encode,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.image import QUEUE_INDEX_ANY, encode_image
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import FLAG_MQTT, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView
from remoting.protocol.records.stored_message import iter_stored
from tests.support.batches import make_rows
from tests.support.clock import ManualClock
from tests.unit.broker.rocketmq.test_pull import pulling
from tests.unit.broker.rocketmq.test_stored_message import entry_of, make_topic


def staging(running, batch: int, *topics: bytes, attempt: int = 0, **more: str) -> Command:
    fields = {"sink": "s", "batch": str(batch), "partition": "0", "attempt": str(attempt), **more}
    return Command(RequestCode.STAGE, fields=fields, body=running.publish(*topics))


async def ask(connection, code, body, kind):
    reply = await connection.request(Command(code, body=encode(body)))
    assert reply.code == 0, reply.remark
    return decode(kind, reply.body)


def visible(running, topic: bytes) -> int:
    queue_id = running.store.queues.find(names.light_queue_name(topic))
    return 0 if queue_id is None else running.store.reading.bounds(queue_id)[1]


async def test_staged_rows_are_visible_only_after_the_commit_and_once(running) -> None:
    connection = running.connect()
    reply = await connection.request(staging(running, 0, b"out/x", b"out/x"))
    assert decode(StageReply, reply.body).count == 2
    assert visible(running, b"out/x") == 0
    (hidden,) = running.broker.topics.hidden
    pulled = await connection.request(Command(RequestCode.MULTI_PULL, body=encode_multi_pull([(hidden, 0, 9, 9_999)])))
    assert decode_multi_pull_reply(pulled.body)[0].status == STATUS_NO_SUCH_QUEUE
    digest, other = BatchDigest(2, 3, 4, 1, "query"), BatchDigest(9, 9, 9, 1)
    commit = CommitBatch("s", 0, [StageHandle(0, 0, 2)], digest=digest)
    answer = await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted)
    assert answer == BatchCommitted(False, 2, digest=digest)
    commit.digest = other
    answer = await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted)
    assert answer == BatchCommitted(True, 0, digest=digest), "what was committed, for the driver to compare"
    assert visible(running, b"out/x") == 2
    assert await ask(connection, RequestCode.LEDGER, Ledger("s"), LedgerState) == LedgerState(0, [], digest)


async def test_a_repeated_frame_stages_nothing_twice(running) -> None:
    connection = running.connect()
    for _ in range(2):
        reply = await connection.request(staging(running, 0, b"out/x", b"out/x", first="0"))
        assert decode(StageReply, reply.body).count == 2
    reply = await connection.request(staging(running, 0, b"out/x", first="2"))
    assert decode(StageReply, reply.body).count == 3
    wrong = await connection.request(staging(running, 0, b"out/x", first="9"))
    assert wrong.code == ResponseCode.INVALID_PARAMETER


async def test_a_commit_of_many_groups_answers_every_caller_and_is_complete(running) -> None:
    connection = running.connect()
    running.broker.sink.ledger._group_bytes_max = 1_000
    await connection.request(staging(running, 0, *[b"out/x"] * 30))
    commit = encode(CommitBatch("s", 0, [StageHandle(0, 0, 30)]))
    requests = [connection.request(Command(RequestCode.COMMIT_BATCH, body=commit)) for _ in range(2)]
    replies = await asyncio.gather(*requests)
    assert [decode(BatchCommitted, reply.body).count for reply in replies] == [30, 30]
    assert visible(running, b"out/x") == 30
    assert running.registry.values()["rocketmq_sink_commits_total"] == 1


async def test_staging_what_is_committed_or_cannot_be_written(running) -> None:
    connection = running.connect()
    await connection.request(staging(running, 3, b"out/x"))
    await ask(connection, RequestCode.COMMIT_BATCH, CommitBatch("s", 3, [StageHandle(0, 0, 1)]), BatchCommitted)
    late = await connection.request(staging(running, 3, b"out/x"))
    assert decode(StageReply, late.body).count == 1
    assert len(running.broker.sink.stages) == 0
    system = encode_image(flags=0, queue_index=0, born_ms=0, topic=b"SCHEDULE_TOPIC_XXXX", body=b"x")
    for code, fields in ((RequestCode.APPEND_MANY, {}), (RequestCode.STAGE, staging(running, 4).fields)):
        refused = await connection.request(Command(code, fields=fields, body=system))
        assert refused.code == ResponseCode.NO_PERMISSION
    assert running.broker.topics.table.get("SCHEDULE_TOPIC_XXXX") is None
    invalid = await connection.request(staging(running, 4, b"out/+"))
    assert invalid.code == ResponseCode.MESSAGE_ILLEGAL
    missing = await connection.request(Command(RequestCode.STAGE, body=running.publish(b"a")))
    assert missing.code == ResponseCode.INVALID_PARAMETER


def numbered(*rows: tuple[int, bytes]) -> bytes:
    """Rows of the RocketMQ topic "t" that name their queues, with a key each."""
    entries = [
        encode_image(
            flags=0, queue_index=index, born_ms=1, topic=b"t", keys=b"k", tags=b"T",
            properties=((b"unit", b"celsius"),), body=body,
        )
        for index, body in rows
    ]  # fmt: skip
    return b"".join(entries)


@pytest.mark.parametrize("twin", ["pure", "compiled"])
async def test_rows_go_to_the_queues_they_name_or_are_refused(running, monkeypatch, twin: str) -> None:
    """By both requests and both twins; also when the topic lost the queue between staging and commit."""
    if twin == "compiled" and native.choice.name != twin:
        pytest.skip(f"no compiled twin: {native.choice.reason}")
    monkeypatch.setattr(native, "core", native.pure_core() if twin == "pure" else native.compiled_core())
    connection, topics = running.connect(), running.broker.topics.table
    topics.put(TopicSettings(name="t", read_queue_count=4, write_queue_count=3))
    ids = topics.queue_ids("t")
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}

    def ends() -> list[int]:
        return [running.store.reading.bounds(queue_id)[1] for queue_id in ids]

    body = numbered((2, b"a"), (0, b"b"), (QUEUE_INDEX_ANY, b"c"), (2, b"d"), (QUEUE_INDEX_ANY, b"e"))
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=body))
    assert decode_append_reply(reply.body)[1] == [(ids[2], 0), (ids[0], 0), (ids[0], 1), (ids[2], 1), (ids[1], 0)]
    for code in (RequestCode.APPEND_MANY, RequestCode.STAGE):
        reply = await connection.request(Command(code, fields=fields, body=numbered((1, b"f"), (3, b"g"))))
        assert (reply.code, reply.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "queueId 3 of topic [t] is not in 0..2",
        )
    assert ends() == [2, 1, 2, 0]
    rows = numbered((2, b"h"), (1, b"i"), (2, b"j"))
    reply = await connection.request(Command(RequestCode.STAGE, fields=fields, body=rows))
    assert decode(StageReply, reply.body).count == 3
    commit = Command(RequestCode.COMMIT_BATCH, body=encode(CommitBatch("s", 0, [StageHandle(0, 0, 3)])))
    topics.put(TopicSettings(name="t", read_queue_count=4, write_queue_count=2))
    refused = await connection.request(commit)
    assert (refused.code, refused.remark) == (ResponseCode.INVALID_PARAMETER, "queueId 2 of topic [t] is not in 0..1")
    assert ends() == [2, 1, 2, 0]
    topics.put(TopicSettings(name="t", read_queue_count=4, write_queue_count=3))
    reply = await connection.request(Command(RequestCode.COMMIT_BATCH, body=commit.body))
    assert decode(BatchCommitted, reply.body).count == 3
    assert ends() == [2, 2, 4, 0]
    views = [RecordView(one) for one in running.store.reading.read(ids[2], 0, 9, 9_999).records]
    assert [bytes(one.body) for one in views] == [b"a", b"d", b"h", b"j"]


def delayed_row(topic: bytes, delay: bytes, *, retain: bool = False) -> bytes:
    """A row as Spark sends it, without a client id, that is to be delivered later."""
    properties = ((MQTT_TOPIC_KEY, topic), (b"delay-ms", delay))
    return encode_image(
        flags=FLAG_MQTT | (5 if retain else 1), queue_index=0xFFFF, born_ms=1, topic=parent_topic(topic),
        properties=properties, body=b"x",
    )  # fmt: skip


async def test_a_delayed_row_counts_from_its_commit_and_is_shown_once(running) -> None:
    """The commit and the wait are one group of the log; a delay that is too long fails the task."""
    connection = running.connect()
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}

    async def stage(*entries: bytes) -> Command:
        return await connection.request(Command(RequestCode.STAGE, fields=fields, body=b"".join(entries)))

    refused = await stage(delayed_row(b"out/x", b"999999999999"))
    assert (refused.code, "exceeds" in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert (await stage(delayed_row(b"out/x", b"500"), delayed_row(b"out/x", b"0", retain=True))).code == 0
    running.clock.advance_ms(2_000)
    await running.restart()
    connection = running.connect()
    for already in (False, True):
        commit = CommitBatch("s", 0, [StageHandle(0, 0, 2)])
        assert (await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted)).already is already
        assert visible(running, b"out/x") == 1
        assert running.broker.delayed.messages.waiting == 1
    await running.restart()
    running.clock.advance_ms(499)
    running.broker.delayed.messages.due(running.clock.now_ms())
    await running.settle()
    assert visible(running, b"out/x") == 1
    running.clock.advance_ms(1)
    while running.broker.delayed.messages.due(running.clock.now_ms()):
        await running.settle()
    assert visible(running, b"out/x") == 2


async def test_retained_rows_count_for_the_quota(running) -> None:
    """The quota applies to a sink too."""
    running.config = replace(running.config, limits=LimitsConfig(retained_messages_max=1))
    await running.restart()
    connection = running.connect()
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}
    entries = [delayed_row(b"out/%d" % n, b"0", retain=True) for n in range(2)]
    staged = await connection.request(Command(RequestCode.STAGE, fields=fields, body=b"".join(entries[:1])))
    assert staged.code == 0
    refused = await connection.request(Command(RequestCode.STAGE, fields=fields, body=b"".join(entries)))
    assert refused.code != 0, refused
    assert running.broker.sink.stages.staged(AttemptKey("s", 0, 0, 0)) == 1


async def test_a_batch_of_two_groups_is_prepared_here_or_decided_here(running) -> None:
    """A prepared attempt shows nothing and stays; the plan of a decided batch is in every later answer."""
    connection = running.connect()
    await connection.request(staging(running, 0, b"out/x", attempt=5))
    handles = [StageHandle(0, 5, 1)]
    prepare = CommitBatch("s", 0, handles, prepare=True)
    for _ in range(2):
        assert await ask(connection, RequestCode.COMMIT_BATCH, prepare, BatchCommitted) == BatchCommitted(False, 0)
    assert (await connection.request(Command(RequestCode.ABORT_BATCH, body=encode(AbortBatch("s", 0))))).code == 0
    assert visible(running, b"out/x") == 0
    plan = [Planned("broker-b", [StageHandle(2, 9, 7)])]
    commit = CommitBatch("s", 0, handles, plan)
    decided = await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted)
    assert decided == BatchCommitted(False, 1, plan)
    repeated = CommitBatch("s", 0, [StageHandle(0, 6, 1)], [Planned("broker-c", [])])
    assert await ask(connection, RequestCode.COMMIT_BATCH, repeated, BatchCommitted) == BatchCommitted(True, 0, plan)
    assert await ask(connection, RequestCode.LEDGER, Ledger("s"), LedgerState) == LedgerState(0, plan)
    await ask(connection, RequestCode.COMMIT_BATCH, CommitBatch("s", 2, []), BatchCommitted)
    older = await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted)
    assert older == BatchCommitted(True, 0), "of an older batch nothing is known any more"


async def test_an_aborted_batch_cannot_be_committed(running) -> None:
    connection = running.connect()
    await connection.request(staging(running, 0, b"out/x"))
    assert (await connection.request(Command(RequestCode.ABORT_BATCH, body=encode(AbortBatch("s", 0))))).code == 0
    commit = Command(RequestCode.COMMIT_BATCH, body=encode(CommitBatch("s", 0, [StageHandle(0, 0, 1)])))
    assert (await connection.request(commit)).code == ResponseCode.ILLEGAL_OPERATION
    assert visible(running, b"out/x") == 0


async def test_a_finished_sink_leaves_nothing_behind(running) -> None:
    """Its rows stay, its ledger and what else was staged is deleted, also over a restart."""
    connection = running.connect()
    await connection.request(staging(running, 0, b"out/x"))
    await connection.request(staging(running, 1, b"out/x"))
    await ask(connection, RequestCode.COMMIT_BATCH, CommitBatch("s", 0, [StageHandle(0, 0, 1)]), BatchCommitted)
    forget = Command(RequestCode.ABORT_BATCH, body=encode(AbortBatch("s", -1)))
    for _ in range(2):
        assert (await connection.request(forget)).code == 0
        assert len(running.broker.sink.stages) == 0
        await running.restart()
        connection = running.connect()
        assert (await ask(connection, RequestCode.LEDGER, Ledger("s"), LedgerState)).last_batch == -1
        assert visible(running, b"out/x") == 1


async def test_a_sink_whose_commit_has_begun_is_not_finished(running) -> None:
    connection = running.connect()
    running.broker.sink.ledger._group_bytes_max = 1_000
    await connection.request(staging(running, 0, *[b"out/x"] * 30))
    running.broker.sink.ledger.step(running.broker.sink.ledger.begin("s", 0, [(0, 0, 30)]))
    forget = Command(RequestCode.ABORT_BATCH, body=encode(AbortBatch("s", -1)))
    assert (await connection.request(forget)).code == ResponseCode.SYSTEM_BUSY


async def test_staged_batches_count_their_messages_and_are_shown_once(running) -> None:
    connection = running.connect()
    await make_topic(connection, "out")
    rows = [make_rows(5), make_rows(3, first=5), make_rows(1, first=8)]
    entries = [entry_of(each, topic=b"out") for each in rows]
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}

    async def stage(first: int, *sent: bytes) -> Command:
        body = b"".join(sent)
        return await connection.request(Command(RequestCode.STAGE, fields={**fields, "first": str(first)}, body=body))

    assert decode(StageReply, (await stage(0, entries[0])).body).count == 5
    assert decode(StageReply, (await stage(0, *entries[:2])).body).count == 8, "what was staged is not staged again"
    assert decode(StageReply, (await stage(8, entries[2])).body).count == 9
    (queue_id,) = running.broker.topics.table.queue_ids("out")
    assert running.store.reading.bounds(queue_id) == (0, 0)
    await running.restart()
    connection = running.connect()
    wrong = CommitBatch("s", 0, [StageHandle(0, 0, 3)])
    refused = await connection.request(Command(RequestCode.COMMIT_BATCH, body=encode(wrong)))
    assert (refused.code, "has 9 rows" in refused.remark) == (ResponseCode.ILLEGAL_OPERATION, True)
    commit = CommitBatch("s", 0, [StageHandle(0, 0, 9)])
    assert await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted) == BatchCommitted(False, 9)
    assert await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted) == BatchCommitted(True, 0)
    assert running.store.reading.bounds(queue_id) == (0, 9)
    records = running.store.reading.read(queue_id, 0, 100, 1 << 20).records
    assert [(RecordView(each).count, RecordView(each).flags & FLAG_STAGED) for each in records] == [
        (5, 0),
        (3, 0),
        (1, 0),
    ]
    pulled = await connection.request(pulling("out"))
    assert [message.body for message in iter_stored(pulled.body)] == [b"body %d" % n for n in range(9)]


async def test_a_repeated_frame_that_would_cut_a_batch_is_refused(running) -> None:
    connection = running.connect()
    await make_topic(connection, "out")
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}
    body = b"".join([entry_of(make_rows(5), topic=b"out")])
    assert (await connection.request(Command(RequestCode.STAGE, fields=fields, body=body))).code == 0
    cut = await connection.request(Command(RequestCode.STAGE, fields={**fields, "first": "2"}, body=body))
    assert (cut.code, "inside a batch" in cut.remark) == (ResponseCode.INVALID_PARAMETER, True)


async def test_a_large_commit_of_batches_takes_several_groups_and_continues_after_a_restart(tmp_path) -> None:
    from tests.unit.broker.conftest import BrokerBench

    bench = BrokerBench(tmp_path / "data", ManualClock(), limits=LimitsConfig(commit_group_bytes_max=1_500))
    connection = bench.connect()
    await make_topic(connection, "out")
    entries = [entry_of(make_rows(7, first=7 * n), topic=b"out") for n in range(6)]
    fields = {"sink": "s", "batch": "4", "partition": "0", "attempt": "0"}
    await connection.request(Command(RequestCode.STAGE, fields=fields, body=b"".join(entries)))
    run = bench.broker.sink.ledger.begin("s", 4, [(0, 0, 42)])
    bench.broker.sink.ledger.step(run)
    assert 0 < run.done < 42
    assert run.done % 7 == 0
    await bench.restart()
    (resumed,) = bench.broker.sink.ledger.unfinished()
    assert resumed.done == run.done
    while not resumed.finished:
        bench.broker.sink.ledger.step(resumed)
    await bench.settle()
    (queue_id,) = bench.broker.topics.table.queue_ids("out")
    assert bench.store.reading.bounds(queue_id) == (0, 42)
    pulled = await bench.connect().request(pulling("out", maxMsgNums="100"))
    assert [message.body for message in iter_stored(pulled.body)] == [b"body %d" % n for n in range(42)]
    bench.store.close()


async def test_an_interrupted_commit_that_cannot_be_finished_is_tried_again(tmp_path, monkeypatch) -> None:
    """A commit whose driver came back is left to it."""
    from tests.unit.broker.conftest import BrokerBench

    bench = BrokerBench(tmp_path / "data", ManualClock(), limits=LimitsConfig(commit_group_bytes_max=1_500))
    connection = bench.connect()
    await make_topic(connection, "out")
    entries = [entry_of(make_rows(7, first=7 * n), topic=b"out") for n in range(6)]
    fields = {"sink": "s", "batch": "4", "partition": "0", "attempt": "0"}
    await connection.request(Command(RequestCode.STAGE, fields=fields, body=b"".join(entries)))
    sink = bench.broker.sink
    run = sink.ledger.begin("s", 4, [(0, 0, 42)])
    sink.ledger.step(run)
    assert not run.finished

    def full(_run) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(sink.ledger, "step", full)
        sink._finish()
    sink._commits["s"] = run
    sink.maintain(1)
    assert len(sink.ledger.unfinished()) == 1
    del sink._commits["s"]
    sink._interrupted["s"] = "no room"
    sink.maintain(2)
    await bench.settle()
    assert sink.ledger.unfinished() == []
    assert bench.store.reading.bounds(*bench.broker.topics.table.queue_ids("out")) == (0, 42)
    bench.store.close()


ALLOWED = {"out/x", "orders", "$sink/etl"}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"topic": "out/x", "sink": "etl"}, ""),
        ({"topic": "orders"}, ""),
        ({}, ""),
        ({"topic": "out/y", "sink": "etl"}, "'out/y'"),
        ({"topic": "out/x", "sink": "other"}, "'$sink/other'"),
        ({"sink": "a/b"}, "$sink/"),
    ],
)
async def test_the_refusals_of_rows(running, fields: dict[str, str], word: str) -> None:
    """Topic first, then sink; without a request there is no refusal; a name with a slash is one level."""
    running.judge_by(lambda _identity, action, what: action == "publish" and what in ALLOWED)
    reply = await running.connect().request(Command(RequestCode.CHECK_PUBLISH, fields=dict(fields)))
    assert reply.code == (ResponseCode.NO_PERMISSION if word else 0)
    assert word in (reply.remark or "")


async def test_without_a_list_everything_is_allowed(running) -> None:
    """And the check creates no topic."""
    reply = await running.connect().request(Command(RequestCode.CHECK_PUBLISH, fields={"topic": "brand-new"}))
    assert reply.code == 0
    assert running.broker.topics.table.get("brand-new") is None


async def test_an_attempt_that_is_not_committed_is_dropped(running) -> None:
    sink = running.broker.sink
    assert isinstance(sink, SinkFeature)
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}
    staged = Command(RequestCode.STAGE, fields=fields, body=running.publish(b"a"))
    assert (await running.connect().request(staged)).code == 0
    assert (sink.status(), len(running.broker.topics.hidden)) == ({"staged_attempts": 1}, 1)
    sink.start()
    assert sink.maintain(running.clock.now_ms()) == {"stage_expired": 0}
    assert sink.maintain(running.clock.now_ms() + running.config.stage_expiry_s * 1_000) == {"stage_expired": 1}
    assert (sink.status(), running.broker.topics.hidden) == ({"staged_attempts": 0}, set())


async def test_sinks_that_never_come_back_do_not_take_all_memory(tmp_path) -> None:
    """Each leaves the number of its last batch: there is a limit for new ones, and those that are known go on."""
    from tests.unit.broker.conftest import BrokerBench

    bench = BrokerBench(tmp_path / "data", ManualClock(), limits=LimitsConfig(sinks_max=2))
    try:
        connection = bench.connect()

        async def write(sink: str, batch: int) -> Command:
            staged = await connection.request(staging(bench, batch, b"rows/1", sink=sink))
            if staged.code:
                return staged
            body = encode(CommitBatch(sink, batch, [StageHandle(0, 0, 1)]))
            return await connection.request(Command(RequestCode.COMMIT_BATCH, body=body))

        assert [(await write(sink, 7)).code for sink in ("a", "b", "a")] == [0, 0, 0]
        refused = await write("c", 7)
        assert refused.code == ResponseCode.FLOW_CONTROL
        assert "the last batches of 2 sinks are remembered here" in (refused.remark or "")
        assert bench.registry.values()["rocketmq_requests_refused_total{sinks}"] == 1
        await bench.restart()
        connection = bench.connect()
        assert (await write("c", 8)).code == ResponseCode.FLOW_CONTROL
        assert (await write("b", 8)).code == 0
        reply = await connection.request(Command(RequestCode.ABORT_BATCH, body=encode(AbortBatch("a", -1))))
        assert reply.code == 0
        assert (await write("c", 8)).code == 0
        assert visible(bench, b"rows/1") == 4
    finally:
        bench.store.close()

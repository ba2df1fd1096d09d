"""STAGE, COMMIT_BATCH, ABORT_BATCH, LEDGER over the wire: exactly once, also when answers are lost."""

from __future__ import annotations

import asyncio

from remoting.protocol import names
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.pull_body import STATUS_NO_SUCH_QUEUE, decode_multi_pull_reply, encode_multi_pull
from remoting.protocol.sink_body import (
    AbortBatch,
    BatchCommitted,
    CommitBatch,
    Ledger,
    LedgerState,
    StageHandle,
    StageReply,
    decode,
    encode,
)


def staging(running, batch: int, *topics: bytes, attempt: int = 0, **more: str) -> Command:
    fields = {"sink": "s", "batch": str(batch), "partition": "0", "attempt": str(attempt), **more}
    return Command(RequestCode.STAGE, fields=fields, body=running.publish(*topics))


async def ask(connection, code, body, kind):
    reply = await connection.request(Command(code, body=encode(body)))
    assert reply.code == 0, reply.remark
    return decode(kind, reply.body)


def visible(running, topic: bytes) -> int:
    queue_id = running.store.find_queue(names.light_queue_name(topic))
    return 0 if queue_id is None else running.store.bounds(queue_id)[1]


async def test_staged_rows_are_seen_only_after_the_commit_and_once(running) -> None:
    connection = running.connect()
    reply = await connection.request(staging(running, 0, b"out/x", b"out/x"))
    assert decode(StageReply, reply.body).count == 2
    assert visible(running, b"out/x") == 0
    (hidden,) = running.broker.stages.hidden
    pulled = await connection.request(Command(RequestCode.MULTI_PULL, body=encode_multi_pull([(hidden, 0, 9, 9_999)])))
    assert decode_multi_pull_reply(pulled.body)[0].status == STATUS_NO_SUCH_QUEUE
    commit = CommitBatch("s", 0, [StageHandle(0, 0, 2)])
    assert await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted) == BatchCommitted(False, 2)
    assert await ask(connection, RequestCode.COMMIT_BATCH, commit, BatchCommitted) == BatchCommitted(True, 0)
    assert visible(running, b"out/x") == 2
    assert (await ask(connection, RequestCode.LEDGER, Ledger("s"), LedgerState)).last_batch == 0


async def test_a_repeated_frame_stages_nothing_twice(running) -> None:
    connection = running.connect()
    for _ in range(2):
        reply = await connection.request(staging(running, 0, b"out/x", b"out/x", first="0"))
        assert decode(StageReply, reply.body).count == 2
    reply = await connection.request(staging(running, 0, b"out/x", first="2"))
    assert decode(StageReply, reply.body).count == 3
    wrong = await connection.request(staging(running, 0, b"out/x", first="9"))
    assert wrong.code == ResponseCode.INVALID_PARAMETER


async def test_a_commit_of_many_groups_answers_every_caller_and_stays_whole(running) -> None:
    connection = running.connect()
    running.broker.ledger._group_bytes_max = 1_000
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
    assert len(running.broker.stages) == 0
    invalid = await connection.request(staging(running, 4, b"out/+"))
    assert invalid.code == ResponseCode.MESSAGE_ILLEGAL
    missing = await connection.request(Command(RequestCode.STAGE, body=running.publish(b"a")))
    assert missing.code == ResponseCode.INVALID_PARAMETER


async def test_an_aborted_batch_cannot_be_committed(running) -> None:
    connection = running.connect()
    await connection.request(staging(running, 0, b"out/x"))
    assert (await connection.request(Command(RequestCode.ABORT_BATCH, body=encode(AbortBatch("s", 0))))).code == 0
    commit = Command(RequestCode.COMMIT_BATCH, body=encode(CommitBatch("s", 0, [StageHandle(0, 0, 1)])))
    assert (await connection.request(commit)).code == ResponseCode.ILLEGAL_OPERATION
    assert visible(running, b"out/x") == 0

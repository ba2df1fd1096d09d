"""What there is to see of a migration: lag of each queue, and a comparison of every copied message with its original.

Reads both clusters and changes nothing. Messages are compared field by field: body, flag, retries, born time and host,
and properties, which include tags, keys and unique id, without those that a broker adds to every message. Loop thread
only.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from broker.migration.returned import RETURNED_KEY
from lightmq.migrate.copier import PULL_COUNT_MAX
from lightmq.migrate.returner import DROPPED_KEYS
from remoting.protocol.errors import Refused
from remoting.protocol.records.rocketmq_form import ORIGIN_KEYS

if TYPE_CHECKING:
    from broker.migration.followers import FollowerReport
    from lightmq.migrate.copier import QueueCopier
    from lightmq.migrate.migration import Migration
    from remoting.protocol.records.stored_message import StoredMessage

NOT_FOLLOWED = "no migration follows"
"""None has told the broker of itself lately: it does not run, or cannot reach the broker."""
MERGED = "coarse: its oldest part is no longer mapped message by message"
ADDED_KEYS = ORIGIN_KEYS | {b"WAIT", b"INNER_MULTI_QUEUE_OFFSET", RETURNED_KEY}


async def lags(migration: Migration) -> list[dict[str, Any]]:
    """A row for each queue: messages copied, messages that either side still has to get, and why it stands still."""
    rows = []
    told = await migration.follower_reports()
    for copier in sorted(migration.copiers, key=_order):
        row = _row(copier)
        row["reason"] = _reason(copier, told.get(copier.queue.target_broker))
        try:
            await copier.load()
            there = copier.reader(at_source=True)
            begin, end = await there.min_offset(), await there.max_offset()
            is_returned = bool(copier.offsets.back.runs)
            here_end = await copier.reader(at_source=False).max_offset() if is_returned else 0
        except Refused as refused:
            rows.append({**row, "state": refused.remark})
            continue
        copied = copier.offsets
        row["copied"] = sum(run.count for run in copied.forth.runs)
        row["returned"] = sum(run.count for run in copied.back.holding)
        row["lag"] = max(0, end - max(begin, copied.copied or 0)) + copied.waiting(here_end)
        rows.append({**row, "state": "behind" if row["lag"] else "up to date"})
    return rows


async def verified(migration: Migration) -> list[dict[str, Any]]:
    """The rows of `lags` with what a comparison of all messages that both sides still have found."""
    rows = await lags(migration)
    for row, copier in zip(rows, sorted(migration.copiers, key=_order), strict=True):
        compared, digest, difference = await _compared(copier)
        row["compared"], row["digest"] = compared, digest
        row["state"], row["reason"] = difference or "equal", ""
    return rows


async def _compared(copier: QueueCopier) -> tuple[int, str, str]:
    """(messages, their digest at the source, the first difference or nothing)."""
    there = copier.reader(at_source=True)
    here = copier.reader(at_source=False)
    compared, digest = 0, hashlib.sha256()
    begin_there, begin_here = await there.min_offset(), await here.min_offset()
    offsets = copier.offsets
    runs = [(run, _kept) for run in offsets.forth.runs] + [(run, _kept_back) for run in offsets.back.holding]
    for run, kept in runs:
        if run.count != run.span:
            return compared, digest.hexdigest(), MERGED
        skipped = max(0, begin_there - run.source, begin_here - run.target)
        offset = run.source + skipped
        while offset < run.source_end:
            originals = (await there.pull(offset, PULL_COUNT_MAX, 0)).messages
            originals = [one for one in originals if one.queue_offset < run.source_end]
            if not originals:
                return compared, digest.hexdigest(), f"source offset {offset} cannot be read"
            at = offset
            while at < offset + len(originals):
                copies = (await here.pull(run.target + at - run.source, offset + len(originals) - at, 0)).messages
                if not copies:
                    return compared, digest.hexdigest(), f"source offset {at} is missing here"
                for original, copy in zip(originals[at - offset :], copies, strict=False):
                    if kept(original) != kept(copy):
                        return compared, digest.hexdigest(), f"source offset {original.queue_offset} differs here"
                    digest.update(repr(kept(original)).encode())
                    compared += 1
                at += len(copies)
            offset += len(originals)
    return compared, digest.hexdigest(), ""


def _kept(message: StoredMessage) -> tuple[object, ...]:
    properties = sorted((key, value) for key, value in message.properties if key not in ADDED_KEYS and value)
    return message.body, message.flag, message.born_ms, message.born_host, message.reconsume_times, tuple(properties)


def _kept_back(message: StoredMessage) -> tuple[object, ...]:
    properties = sorted(
        (key, value) for key, value in message.properties if key not in ADDED_KEYS | DROPPED_KEYS and value
    )
    return message.body, message.flag, message.reconsume_times, tuple(properties)


def _row(copier: QueueCopier) -> dict[str, Any]:
    queue = copier.queue
    return {
        "topic": queue.topic,
        "source": f"{queue.source_broker}/{queue.source_queue}",
        "target": f"{queue.target_broker}/{queue.target_queue}",
        "copied": 0,
        "returned": 0,
        "lag": 0,
        "state": "",
        "reason": "",
    }


def _reason(copier: QueueCopier, report: FollowerReport | None) -> str:
    """Why the migration that follows does not get on with this queue; empty while it does."""
    if report is None:
        return NOT_FOLLOWED
    queue = (copier.queue.topic, copier.name)
    return next((one.reason for one in report.standing if (one.topic, one.source) == queue), report.failure)


def _order(copier: QueueCopier) -> tuple[str, str, int]:
    return copier.queue.topic, copier.queue.source_broker, copier.queue.source_queue

"""Bugs planted in the shipped rooms, each of which the account of consumer state must show.

A name is what `--plant` takes. Each is one step left out, or one absence taken for another, while a schedule runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from broker.delayed.buckets import DelayBucket, DelayBuckets
from broker.lite import state as lite_state
from broker.pop.ordered import OrderedQueues
from broker.pop.revival import Revival
from broker.requests import RequestTools
from broker.retained.feature import Retained
from broker.shared import groups as shared_groups
from broker.shared.groups import SharedGroups, SharedRecord
from broker.store.index.absence import Absence
from broker.store.state import check_point_table, state_kinds
from broker.store.state.check_point_table import CheckPointTable, FrozenCheckPoints
from broker.store.state.state_kinds import StateChange
from broker.transactions.transactions import HalfEnding, HalfQueue
from broker.wills.feature import StoredWill, Wills, _encode

Patch = Callable[[pytest.MonkeyPatch], None]


def _unread_taken_for_gone(patch: pytest.MonkeyPatch) -> None:
    """Revival ends the check-points of what a new master cannot read yet."""
    real = Revival._found

    def found(self: Revival, due: Any, offset: int) -> Any:
        answer = real(self, due, offset)
        return Absence.GONE if answer is Absence.NOT_YET else answer

    patch.setattr(RequestTools, "is_sure", True)
    patch.setattr(Revival, "_found", found)


def _check_point_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets who has the messages of one queue."""
    real = CheckPointTable.freeze

    def freeze(self: CheckPointTable) -> FrozenCheckPoints:
        frozen = real(self)
        kept = frozen.pages[:-1]
        return FrozenCheckPoints(sum(len(each[1][0]) for each in kept), kept)

    patch.setattr(check_point_table.CheckPointTable, "freeze", freeze)


def _ordered_batch_cut_short(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement ends the messages before it too."""
    real = OrderedQueues.release

    def release(self: OrderedQueues, group: str, queue_id: int, offsets: Any) -> Any:
        batch = self.batch(group, queue_id)
        assert batch is not None
        return real(self, group, queue_id, [each for each in batch.times if each <= max(offsets)])

    patch.setattr(OrderedQueues, "release", release)


def _timer_bucket_removed_early(patch: pytest.MonkeyPatch) -> None:
    """What is in a bucket and was not confirmed when it was last read goes with it."""
    patch.setattr(DelayBucket, "is_empty", lambda self, _next_offset: not len(self._heap))


def _recall_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The next master does not know what was recalled."""
    real = DelayBuckets._add

    def add(self: DelayBuckets, start_ms: int, name: bytes, _recalled: object = None) -> Any:
        return real(self, start_ms, name)

    patch.setattr(DelayBuckets, "_add", add)


def _half_gone_when_unread(patch: pytest.MonkeyPatch) -> None:
    """Half messages that cannot be read yet are passed over."""
    real = HalfQueue.take_up

    def take_up(self: HalfQueue) -> bool:
        has_more = real(self)
        if self.queue_id is not None and not has_more:
            self.table.skip(self._store.reading.next_offset(self.queue_id))
        return has_more

    patch.setattr(HalfQueue, "take_up", take_up)


def _outcome_not_kept(patch: pytest.MonkeyPatch) -> None:
    """How a transaction ended is not in the log."""
    patch.setattr(HalfEnding, "changes", lambda _self, _floor_before: [])


def _shared_past_unacknowledged(patch: pytest.MonkeyPatch) -> None:
    """What was given is written as done."""

    def change(name: str, group: Any) -> StateChange:
        record = SharedRecord(group.queue_id, group.offsets.next, group.offsets.next, [])
        return StateChange(state_kinds.SHARED, name.encode(), shared_groups._encode(record))

    patch.setattr(SharedGroups, "_change", staticmethod(change))


def _will_kept_after_its_message(patch: pytest.MonkeyPatch) -> None:
    """The removal of a will writes it once more."""
    real = Wills.remove

    def remove(self: Wills, will: StoredWill) -> StateChange:
        change = real(self, will)
        return StateChange(change.kind, change.key, _encode(will.record()))

    patch.setattr(Wills, "remove", remove)


def _will_lost_with_its_proxy(patch: pytest.MonkeyPatch) -> None:
    """A new master does not wait for proxies of before."""
    patch.setattr(Wills, "_load", lambda *_arguments: None)


def _lite_offset_lost(patch: pytest.MonkeyPatch) -> None:
    """What a group was given is not taken off what it gets next."""
    patch.setattr(lite_state, "offset_change", lambda *names: _nothing_new(*names))


def _nothing_new(group: str, topic: str, index: int, _offset: int) -> StateChange:
    from broker.groups.groups import offset_change

    return offset_change(group, topic, index, 0)


def _lite_batch_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a group has of a lite topic is not kept."""
    real = lite_state.Ownership.keep

    def keep(self: Any, group: str, deliveries: Iterable[Any], owned: Any, attempt: bytes) -> None:
        deliveries = list(deliveries)
        for each in deliveries:
            del each.offsets[1:]
        real(self, group, deliveries, owned, attempt)

    patch.setattr(lite_state.Ownership, "keep", keep)


def _cleared_comes_back(patch: pytest.MonkeyPatch) -> None:
    """A retained message that was cleared is found again."""
    real = Retained._changed

    def changed(self: Retained, topic: bytes, value: bytes | None, position: int) -> None:
        if value is not None:
            real(self, topic, value, position)

    patch.setattr(Retained, "_changed", changed)


PLANTS: dict[str, Patch] = {
    "unread-taken-for-gone": _unread_taken_for_gone,
    "check-point-not-in-snapshots": _check_point_not_in_snapshots,
    "ordered-batch-cut-short": _ordered_batch_cut_short,
    "timer-bucket-removed-early": _timer_bucket_removed_early,
    "recall-forgotten": _recall_forgotten,
    "half-gone-when-unread": _half_gone_when_unread,
    "outcome-not-kept": _outcome_not_kept,
    "shared-past-unacknowledged": _shared_past_unacknowledged,
    "will-kept-after-its-message": _will_kept_after_its_message,
    "will-lost-with-its-proxy": _will_lost_with_its_proxy,
    "lite-offset-lost": _lite_offset_lost,
    "lite-batch-forgotten": _lite_batch_forgotten,
    "cleared-comes-back": _cleared_comes_back,
}

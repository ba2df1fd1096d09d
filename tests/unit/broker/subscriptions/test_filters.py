"""Wildcard queues live exactly as long as somebody holds them, plus the expiry."""

from __future__ import annotations

import pytest

from broker.subscriptions.filters import Filters
from remoting.protocol.errors import Refused


def make(store, now_ms: int = 0, most: int = 10) -> Filters:
    return Filters(store, expiry_ms=1_000, filters_max=most, now_ms=now_ms)


def test_a_filter_has_one_queue_however_many_hold_it(bench) -> None:
    filters = make(bench.store)
    heard = []
    filters.on_change(heard.append)
    queue_id = filters.acquire(b"plant/+/t")
    assert filters.acquire(b"plant/+/t") == queue_id
    assert filters.match(b"plant/7/t") == [queue_id]
    assert filters.match(b"plant/7/u") == []
    assert heard == [b"plant/+/t"]
    assert filters.holders(b"plant/+/t") == 2


def test_the_queue_expires_only_after_the_last_holder_and_comes_back_new(bench) -> None:
    filters = make(bench.store)
    queue_id = filters.acquire(b"a/#")
    filters.acquire(b"a/#")
    filters.release(b"a/#", 0)
    assert filters.expire(99_999) == 0
    filters.release(b"a/#", 5_000)
    assert filters.expire(5_999) == 0
    assert filters.expire(6_000) == 1
    assert filters.match(b"a/b") == []
    assert filters.acquire(b"a/#") != queue_id


def test_a_filter_survives_a_restart_and_expires_when_nobody_comes_back(bench) -> None:
    queue_id = make(bench.store).acquire(b"a/+")
    filters = make(bench.reopen(), now_ms=10_000)
    assert filters.match(b"a/b") == [queue_id]
    assert filters.expire(10_500) == 0
    assert filters.expire(11_000) == 1
    assert len(make(bench.reopen())) == 0


def test_one_more_than_the_limit_is_refused(bench) -> None:
    filters = make(bench.store, most=1)
    filters.acquire(b"+")
    with pytest.raises(Refused, match="filters_max"):
        filters.acquire(b"#")
    assert filters.holders(b"#") == 0

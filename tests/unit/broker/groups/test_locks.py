"""One client per queue and group, until it is silent for a minute."""

from __future__ import annotations

from broker.groups.client_requests import LOCK_EXPIRY_MS, QueueLocks


def test_lock_renew_refuse_expire_and_unlock() -> None:
    locks = QueueLocks()
    assert locks.lock("g", ("t", 0), "a", 0)
    assert locks.lock("g", ("t", 0), "a", 10)
    assert not locks.lock("g", ("t", 0), "b", 20)
    assert locks.lock("other", ("t", 0), "b", 20)
    assert locks.lock("g", ("t", 0), "b", 10 + LOCK_EXPIRY_MS)
    locks.unlock("g", ("t", 0), "a")
    assert not locks.lock("g", ("t", 0), "a", 20 + LOCK_EXPIRY_MS)
    locks.unlock("g", ("t", 0), "b")
    assert locks.lock("g", ("t", 0), "a", 20 + LOCK_EXPIRY_MS)
    locks.expire(10**9)
    assert locks.lock("g", ("t", 0), "b", 10**9)

"""A long poll ends when a queue grows, exactly at its deadline, or with its peer; never twice."""

from __future__ import annotations

import asyncio

from broker.reading.bounds import ANY_QUEUE, LongPolls


class Peer:
    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}
        self.callbacks: list = []

    def on_close(self, callback) -> None:
        self.callbacks.append(callback)


def make(most: int = 10) -> LongPolls:
    return LongPolls(waiters_max=most, wait_ms_max=60_000)


async def test_growth_wakes_only_requests_for_that_queue() -> None:
    polls, calls = make(), []
    for queue in (1, 2, ANY_QUEUE):
        polls.wait(Peer(), [queue], 10_000, lambda last, queue=queue: calls.append((queue, last)) or True)
    polls.advanced([1, 5])
    assert calls == [(1, False), (ANY_QUEUE, False)]
    assert len(polls) == 1
    polls.wake_all()
    assert calls[-1] == (2, False)
    assert len(polls) == 0


async def test_one_that_did_not_answer_waits_until_the_deadline() -> None:
    polls, done = make(), asyncio.get_running_loop().create_future()
    began = asyncio.get_running_loop().time()
    polls.wait(Peer(), [1], 60, lambda last: last and (done.set_result(None) or True))
    polls.advanced([1])
    await done
    assert 0.055 <= asyncio.get_running_loop().time() - began < 2
    assert len(polls) == 0


async def test_a_disconnected_peer_is_never_answered() -> None:
    polls, peer, calls = make(), Peer(), []
    polls.wait(peer, [1], 10_000, lambda last: calls.append(last) or True)
    polls.wait(peer, [2], 10_000, lambda last: calls.append(last) or True)
    assert len(peer.callbacks) == 1
    peer.callbacks[0]("gone")
    polls.advanced([1, 2])
    assert not calls
    assert len(polls) == 0


async def test_a_peer_that_waits_in_two_roles_is_forgotten_by_both() -> None:
    former, present, peer = make(), make(), Peer()
    for polls in (former, present):
        polls.wait(peer, [1], 10_000, lambda _last: True)
    for callback in peer.callbacks:
        callback("gone")
    assert (len(former), len(present)) == (0, 0)


async def test_without_wait_or_room_the_answer_is_immediate() -> None:
    polls, calls = make(most=0), []
    polls.wait(Peer(), [1], 0, lambda last: calls.append(last) or True)
    polls.wait(Peer(), [1], 100, lambda last: calls.append(last) or True)
    assert calls == [True, True]
    assert polls.overflowed == 1


async def test_those_that_came_first_try_first_and_one_that_finds_nothing_stands_for_those_behind() -> None:
    polls, calls, messages = make(), [], ["m1", "m2"]

    def attempt(name: str) -> bool:
        calls.append(name)
        return bool(messages) and bool(messages.pop())

    for name in ("a", "b", "c", "d"):
        polls.wait(Peer(), [1, ("group", "topic")], 10_000, lambda _last, name=name: attempt(name), "pops of a group")
    polls.wait(Peer(), [1], 10_000, lambda _last: attempt("other") or True, "pops of another")
    polls.advanced([1])
    assert calls == ["a", "b", "c", "other"]
    messages.append("m3")
    polls.advanced([("group", "topic")])
    assert calls[4:] == ["c", "d"]
    assert polls.count("pops of a group") == 1

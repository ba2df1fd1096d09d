"""Commands of unknown fate are repeated under one id; barriers are shared, but never one that began too early."""

from __future__ import annotations

import asyncio
import gc

import msgspec
import pytest

from controller.consensus.engine import TRIES_MAX, Envelope, NotLeading, OutcomeUnknown, Proposer
from controller.replicas.group import Outcome
from remoting.protocol.errors import Refused
from tests.support.replicas import register


class Scripted:
    """An engine with scripted answers."""

    is_leader = True
    leader = "n2"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def barrier(self):
        await self._answer("barrier")

    async def propose(self, data):
        return await self._answer(msgspec.msgpack.decode(data, type=Envelope).request)

    async def _answer(self, what):
        self.requests.append(what)
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else Outcome()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_an_unknown_fate_is_asked_for_again():
    """Under the same request id; the next command has another one."""
    engine = Scripted(OutcomeUnknown(), OutcomeUnknown(), Outcome(7))
    proposer = Proposer(engine, "c")
    assert (await proposer.propose(register(1))).code == 7
    await proposer.propose(register(1))
    assert (engine.requests, proposer.repeats) == ([1, 1, 1, 2], 2)


async def test_a_fate_that_stays_unknown():
    """The caller gets that error, or the current leader."""
    with pytest.raises(Refused, match="did not agree in time"):
        await Proposer(Scripted(*[OutcomeUnknown()] * TRIES_MAX), "c").propose(register(1))
    engine = Scripted(OutcomeUnknown())
    engine.is_leader = False
    with pytest.raises(NotLeading) as caught:
        await Proposer(engine, "c").propose(register(1))
    assert caught.value.leader == "n2"


async def test_barriers_are_shared():
    """Ten readers wait for two: the one that began before they asked may have been too early for them."""
    engine = Scripted()
    engine.gate.clear()
    proposer = Proposer(engine, "c")
    first = asyncio.ensure_future(proposer.barrier())
    while not engine.requests:
        await asyncio.sleep(0)
    others = [asyncio.ensure_future(proposer.barrier()) for _ in range(10)]
    await asyncio.sleep(0)
    engine.gate.set()
    await asyncio.gather(first, *others)
    assert len(engine.requests) == 2
    await proposer.barrier()
    assert len(engine.requests) == 3


async def test_a_barrier_that_fails_fails_its_readers_only():
    """The next one is a new one, also when a reader went away."""
    engine = Scripted(NotLeading("n2"))
    proposer = Proposer(engine, "c")
    with pytest.raises(NotLeading):
        await proposer.barrier()
    engine.gate.clear()
    leaver = asyncio.ensure_future(proposer.barrier())
    stayer = asyncio.ensure_future(proposer.barrier())
    await asyncio.sleep(0)
    leaver.cancel()
    engine.gate.set()
    await stayer


async def test_a_barrier_that_fails_when_all_readers_have_left_is_no_fault_of_the_loop():
    """They were cut off, and then the lead was lost."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    engine = Scripted(NotLeading("n3"))
    engine.gate.clear()
    proposer = Proposer(engine, "c")
    leaver = asyncio.ensure_future(proposer.barrier())
    while not engine.requests:
        await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    engine.gate.set()
    while proposer._barrier is not None and not proposer._barrier.done():
        await asyncio.sleep(0)
    proposer._barrier = None
    gc.collect()
    assert told == []

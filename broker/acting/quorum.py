"""Asks the other replicas whether they agree to locks, for locks in strict mode (9099).

A claim is a JSON object: `consumerGroup`, `clientId`, `mqSet` with `topic`, `queueId` and the fencing `token` of each
queue, and `isGivenUp` for a claim that is taken back. A replica answers with the queues that it agrees to, as pairs of
topic and index, once its own journal has them.

Invariant: all are asked at the same time, and none for longer than `MEMBER_S`: an answer that is missing is a no. Loop
thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from remoting.protocol.errors import LightMQError, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Dial
from remoting.transport.failures import checked

if TYPE_CHECKING:
    from broker.groups.groups import QueueKey

MEMBER_S = 1.0
"""How long a replica may take to answer."""
QUEUES_MAX = 10_000
"""Queues in one claim; more are refused."""


class ClaimedQueue(msgspec.Struct, rename={"queue_id": "queueId"}):
    """A queue with the token that it is claimed with."""

    topic: str
    queue_id: int
    token: int


class LockClaim(msgspec.Struct, rename="camel"):
    """What a replica is to agree to."""

    consumer_group: str
    client_id: str
    mq_set: list[ClaimedQueue]
    is_given_up: bool = False


def claim_of(group: str, client_id: str, tokens: Mapping[QueueKey, int], *, is_given_up: bool = False) -> LockClaim:
    """A claim to these queues."""
    queues = [ClaimedQueue(topic, index, token) for (topic, index), token in tokens.items()]
    return LockClaim(group, client_id, queues, is_given_up)


def decode_claim(body: bytes) -> LockClaim:
    """The claim in a body. Raises RemoteViolation."""
    try:
        claim = msgspec.json.decode(body, type=LockClaim)
    except msgspec.MsgspecError as error:
        raise RemoteViolation(f"the claim cannot be read: {error}") from error
    if len(claim.mq_set) > QUEUES_MAX or not claim.client_id or not claim.consumer_group:
        raise RemoteViolation("the claim has no group, no client, or too many queues")
    return claim


class LockQuorum:
    """The replicas that have to agree."""

    def __init__(self, size: int, others: Callable[[], Collection[str]], dial: Dial, log: Any) -> None:
        """`size`: how many brokers the group is configured to have; `others`: addresses of those alive but this one."""
        self.needed = size // 2 + 1
        """How many have to agree, this broker among them."""
        self._others, self._dial, self._log = others, dial, log

    async def agreed(self, claim: LockClaim) -> set[QueueKey]:
        """The queues to which enough agree. What others agreed to in vain is taken back there."""
        addresses = list(self._others())
        answers = await asyncio.gather(*(self._ask(address, claim) for address in addresses))
        votes: dict[QueueKey, int] = {(each.topic, each.queue_id): 1 for each in claim.mq_set}
        for queues in answers:
            for queue in queues & votes.keys():
                votes[queue] += 1
        return {queue for queue, count in votes.items() if count >= self.needed}

    async def take_back(self, claim: LockClaim) -> None:
        """Tell all that a claim is given up; one that does not hear it waits for the lock to expire."""
        claim.is_given_up = True
        await asyncio.gather(*(self._ask(address, claim) for address in list(self._others())))

    async def _ask(self, address: str, claim: LockClaim) -> set[QueueKey]:
        try:
            async with asyncio.timeout(MEMBER_S):
                connection = await self._dial(address)
                try:
                    command = Command(Code.AGREE_LOCKS, body=msgspec.json.encode(claim))
                    reply = checked(await connection.request(command, int(MEMBER_S * 1_000)))
                finally:
                    await connection.close()
            return set(msgspec.json.decode(reply.body, type=list[tuple[str, int]]))
        except (LightMQError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            self._log.info("lock_not_agreed", replica=address, error=str(error) or "no answer in time")
            return set()

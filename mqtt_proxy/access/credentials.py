"""Checking a password against its argon2id hash without blocking the loop, and caching successes.

Invariants: hashing runs in a small executor behind a bounded, fair queue, never on the loop; peer addresses take turns,
and so do the users of an address; a client that has disconnected before its turn costs no hash, nor does one whose
password has been accepted while it waited. Only successes are cached, under a keyed hash of user, password and stored
hash, so the cache contains no password and a changed password misses by itself; the key is made at the start and never
leaves the memory. The cache is as large as a fleet, so that one that reconnects all at once costs no hash but after a
restart. An unknown user costs the same work as a wrong password. Loop rule: called on one loop; the executor's threads
only hash.

The queue's places and turns are shared between origins, which are peer addresses, and within each between its lanes,
which are users. Origins take turns, the lanes of an origin take turns, a lane is first in, first out. When there is no
place left, the longest lane loses its newest entry: a client that fills the queue takes no place from others.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import argon2

from mqtt_proxy.access import scram
from remoting.access.rules import always
from remoting.transport.origins import origin_of
from runtime.clock import Clock
from runtime.logs import get_logger

T = TypeVar("T")


class _BySize:
    """Names by the number of their entries: the largest is found without a look at every name."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[int, dict[str, None]] = {}

    def change(self, name: str, before: int, after: int) -> None:
        """A name has another number of entries; 0 is none."""
        if before:
            names = self._names[before]
            del names[name]
            if not names:
                del self._names[before]
        if after:
            self._names.setdefault(after, {})[name] = None

    def largest(self) -> str:
        """The name with the most entries, of several the first that came to as many."""
        return next(iter(self._names[max(self._names)]))


class _Origin(Generic[T]):
    """The lanes of one origin, the next one to be served first."""

    __slots__ = ("_by_length", "lanes", "size")

    def __init__(self) -> None:
        self.lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._by_length = _BySize()
        self.size = 0

    def length(self, lane: str) -> int:
        return len(self.lanes.get(lane, ()))

    def longest(self) -> str:
        return self._by_length.largest()

    def add(self, lane: str, entry: T) -> None:
        entries = self.lanes.setdefault(lane, deque())
        entries.append(entry)
        self._grown(lane, len(entries), 1)

    def drop_newest(self, lane: str) -> T:
        entries = self.lanes[lane]
        dropped = entries.pop()
        self._grown(lane, len(entries), -1)
        if not entries:
            del self.lanes[lane]
        return dropped

    def take(self) -> T:
        lane, entries = self.lanes.popitem(last=False)
        taken = entries.popleft()
        self._grown(lane, len(entries), -1)
        if entries:
            self.lanes[lane] = entries
        return taken

    def sift(self, lane: str, unwanted: Callable[[T], bool], swept: list[T]) -> None:
        """Move the unwanted entries of a lane to `swept`."""
        kept: deque[T] = deque()
        before = self.lanes[lane]
        for entry in before:
            (swept if unwanted(entry) else kept).append(entry)
        self._grown(lane, len(kept), len(kept) - len(before))
        if kept:
            self.lanes[lane] = kept
        else:
            del self.lanes[lane]

    def _grown(self, lane: str, length: int, by: int) -> None:
        self._by_length.change(lane, length - by, length)
        self.size += by


class FairQueue(Generic[T]):
    """Entries waiting for their turn."""

    def __init__(self, *, total_max: int, origin_max: int) -> None:
        self._total_max = total_max
        self._origin_max = origin_max
        self._origins: OrderedDict[str, _Origin[T]] = OrderedDict()
        self._by_size = _BySize()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def crowded(self, origin: str) -> bool:
        """Whether an entry is rejected when this origin adds one more."""
        known = self._origins.get(origin)
        return self._size >= self._total_max or (known is not None and known.size >= self._origin_max)

    def put(self, origin: str, lane: str, entry: T) -> T | None:
        """Add an entry; returns the entry rejected for it, which may be the same."""
        if self.crowded(origin):
            dropped = self._make_room(origin, lane)
            if dropped is None:
                return entry
        else:
            dropped = None
        known = self._origins.setdefault(origin, _Origin())
        known.add(lane, entry)
        self._grown(origin, known.size, 1)
        return dropped

    def take(self) -> T:
        """The next entry in turn. IndexError when there is none."""
        if not self._origins:
            raise IndexError("the queue is empty")
        origin, known = self._origins.popitem(last=False)
        taken = known.take()
        self._grown(origin, known.size, -1)
        if known.size:
            self._origins[origin] = known
        return taken

    def sweep(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove every unwanted entry."""
        swept: list[T] = []
        for origin, known in list(self._origins.items()):
            before = known.size
            for lane in list(known.lanes):
                known.sift(lane, unwanted, swept)
            self._grown(origin, known.size, known.size - before)
            if not known.size:
                del self._origins[origin]
        return swept

    def _grown(self, origin: str, size: int, by: int) -> None:
        self._by_size.change(origin, size - by, size)
        self._size += by

    def _make_room(self, origin: str, lane: str) -> T | None:
        """Drop, for a new entry, the newest entry of the origin or lane with the most.

        None when the new one would then have as many: two of equal length must not drop each other in turn.
        """
        own = self._origins.get(origin)
        size = 0 if own is None else own.size
        largest = self._by_size.largest()
        if size >= self._origin_max or size + 1 >= self._origins[largest].size:
            largest = origin
        known = self._origins.get(largest)
        if known is None:
            return None
        longest = known.longest()
        if largest == origin and known.length(longest) <= known.length(lane) + 1:
            return None
        dropped = known.drop_newest(longest)
        self._grown(largest, known.size, -1)
        if not known.size:
            del self._origins[largest]
        return dropped


LARGE_BYTES = 1_024
"""A CONNECT above it counts as large while it waits."""

LARGE_BYTES_MAX = 4 * 1_048_576
"""Bytes of large CONNECTs that may wait; above it a further large one is answered as busy: bounded memory."""

SWEEP_INTERVAL_MS = 1_000
"""How often a full queue is searched for clients that have left, at most: each is asked of the kernel."""

THREADS = 2
"""Threads that hash; each costs the hash's memory (64 MiB by default) while it works."""


LOG = get_logger("mqtt_proxy.auth")


class LargeConnects:
    """How many bytes of large CONNECTs wait for one method of authentication."""

    def __init__(self) -> None:
        self._held_bytes = 0

    def admit(self, size_bytes: int) -> bool:
        """Count a CONNECT that begins to wait; false when there is no room for it. A true is followed by `release`."""
        if size_bytes > LARGE_BYTES:
            if self._held_bytes + size_bytes > LARGE_BYTES_MAX:
                return False
            self._held_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Its wait has ended."""
        if size_bytes > LARGE_BYTES:
            self._held_bytes -= size_bytes


def make_hash(password: str | bytes) -> str:
    """The argon2id hash of a password, for a line of the password file."""
    return argon2.PasswordHasher().hash(password)


def verify(stored: str, password: bytes) -> bool:
    """Whether the password belongs to the hash; takes tens of milliseconds."""
    if stored.startswith(scram.PREFIX):
        return scram.verify_password(stored, password)
    try:
        return argon2.PasswordHasher().verify(stored, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


@dataclass(slots=True, eq=False)
class _Waiting:
    """A verification that waits for its turn, or has it."""

    stored: str | None
    like: str | None
    password: bytes
    wanted: Callable[[], bool]
    fingerprint: bytes
    result: asyncio.Future[str]

    def unwanted(self) -> bool:
        """Whether the result is not needed any more."""
        return self.result.done() or not self.wanted()

    def settle(self, result: str) -> None:
        """Deliver the result if it is still needed."""
        if not self.result.done():
            self.result.set_result(result)


class CredentialCheck:
    """Verifies credentials off the loop, with a cache of successes."""

    def __init__(
        self, clock: Clock, *, waiting_max: int = 8_192, remembered_max: int = 100_000, remembered_s: int = 2_592_000
    ) -> None:
        """`waiting_max`: checks that may wait; `remembered_max`: successes that are cached, each for `remembered_s`
        after its last use."""
        self._clock = clock
        self._remembered_max = remembered_max
        self._remembered_ms = remembered_s * 1_000
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, int] = OrderedDict()
        self._executor: ThreadPoolExecutor | None = None
        self._queue: FairQueue[_Waiting] = FairQueue(total_max=waiting_max, origin_max=waiting_max)
        self._large = LargeConnects()
        self._swept_ms = -SWEEP_INTERVAL_MS
        self._hashing = 0
        self._decoy: str | None = None
        self.hashes = 0
        """Verifications that were started."""

    def remembers(self, username: str, password: bytes, stored: str) -> bool:
        """Whether this was accepted before."""
        return self._remembers(self._fingerprint(username, password, stored))

    async def check(
        self,
        username: str,
        password: bytes,
        stored: str | None,
        *,
        like: str | None = None,
        address: str = "",
        size_bytes: int = 0,
        wanted: Callable[[], bool] = always,
    ) -> str:
        """ "accepted", "denied", "busy" or "left"; `stored` is None for a user that does not exist.

        `like` is the credential whose work an unknown user costs; `address` is the peer's; `size_bytes` is what waits
        with the check; `wanted` is called before work is started, and false means that the peer has disconnected.
        """
        fingerprint = self._fingerprint(username, password, stored or "")
        if stored is not None and self._remembers(fingerprint):
            return "accepted"
        if not self._large.admit(size_bytes):
            return "busy"
        result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(stored, like, password, wanted, fingerprint, result)
        try:
            # Unknown names can be invented at no cost: they share one lane.
            self._put(origin_of(address), f"user {username}" if stored is not None else "unknown", waiting)
            self._begin()
            return await result
        finally:
            self._large.release(size_bytes)

    def close(self) -> None:
        """Stop the threads; waiting verifications are dropped."""
        while self._queue:
            self._queue.take().settle("busy")
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _put(self, origin: str, lane: str, waiting: _Waiting) -> None:
        if self._queue.crowded(origin) and self._now_ms() >= self._swept_ms + SWEEP_INTERVAL_MS:
            self._swept_ms = self._now_ms()
            for left in self._queue.sweep(_Waiting.unwanted):
                left.settle("left")
        dropped = self._queue.put(origin, lane, waiting)
        if dropped is not None:
            dropped.settle("busy")

    def _begin(self) -> None:
        """Start as many hashes as there are threads."""
        while self._queue and self._hashing < THREADS:
            waiting = self._queue.take()
            if waiting.unwanted():
                waiting.settle("left")
                continue
            if waiting.stored is not None and self._remembers(waiting.fingerprint):
                waiting.settle("accepted")
                continue
            self._hashing += 1
            self.hashes += 1
            loop = asyncio.get_running_loop()
            verdict = loop.run_in_executor(self._threads(), self._verify, waiting)
            verdict.add_done_callback(lambda done, waiting=waiting: self._hashed(waiting, done))  # type: ignore[misc]

    def _hashed(self, waiting: _Waiting, done: asyncio.Future[bool]) -> None:
        self._hashing -= 1
        if done.cancelled():
            waiting.settle("busy")
            return
        error = done.exception()
        if error is not None:  # no memory for the hash, for instance
            LOG.error("password_not_checked", error=repr(error))
            waiting.settle("busy")
        elif done.result():
            self._remember(waiting.fingerprint)  # also for a client that has left: it comes again
            waiting.settle("accepted")
        else:
            waiting.settle("denied")
        self._begin()

    def _verify(self, waiting: _Waiting) -> bool:
        if waiting.stored is not None:
            return verify(waiting.stored, waiting.password)
        if self._decoy is None:
            self._decoy = make_hash(secrets.token_hex(16))
        verify(waiting.like or self._decoy, waiting.password)
        return False

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _remembers(self, fingerprint: bytes) -> bool:
        expires_ms = self._verified.get(fingerprint)
        if expires_ms is None:
            return False
        if expires_ms <= self._now_ms():
            del self._verified[fingerprint]
            return False
        self._remember(fingerprint)
        return True

    def _remember(self, fingerprint: bytes) -> None:
        self._verified[fingerprint] = self._now_ms() + self._remembered_ms
        self._verified.move_to_end(fingerprint)
        while len(self._verified) > self._remembered_max:
            self._verified.popitem(last=False)

    def _fingerprint(self, username: str, password: bytes, stored: str) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (username.encode(), password, stored.encode()):
            digest.update(len(part).to_bytes(4, "big"))
            digest.update(part)
        return digest.digest()

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="credentials")
        return self._executor

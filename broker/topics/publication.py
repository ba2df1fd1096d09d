"""Which topics the controllers do not know yet, and the answers that wait until they do.

An answer that makes a topic known to its sender (a send, 17, 34, 200) waits until every controller within reach has
acknowledged the topic's registration, so that a route query that follows it succeeds. Controllers that cannot be
reached are not waited for, and one that does not answer within `wait_ms` is left out until it answers again: messages
are taken although every controller is dead. Topics that were acknowledged without that are counted, by reason.

Invariants: every callback is called once; a topic that no answer has to wait for is not in `pending`, so the usual
question costs one look into an empty dict. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

UNREACHABLE = "unreachable"
TIMEOUT = "timeout"

Then = Callable[[], None]


@dataclass(slots=True)
class Unpublished:
    """One changed topic that some controllers have still to acknowledge."""

    version: int
    links: set[str]
    waiting: list[Then] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class Publication:
    """Topics on their way to the controllers; `link` is a controller's address."""

    def __init__(self, *, wait_ms: int, missed: Callable[[str, int], None]) -> None:
        """`missed(reason, topics)` is told of topics that are acknowledged before every controller has them."""
        self.pending: dict[str, Unpublished] = {}
        self._wait_s = wait_ms / 1_000
        self._missed = missed
        self._links: dict[str, bool] = {}

    def watch(self, link: str) -> None:
        """There is such a controller, and it is waited for until it turns out to be out of reach."""
        if self._wait_s:
            self._links[link] = True

    def unreachable(self, link: str) -> None:
        """Do not wait for this controller any more; it gets everything when it comes back."""
        self._give_up([link], UNREACHABLE)

    def changed(self, name: str, version: int) -> None:
        """A topic was created or changed; `version` is that of the topic table with it."""
        if not self._links:
            return
        links = {link for link, awaited in self._links.items() if awaited}
        known = self.pending.get(name)
        if known is not None:
            known.version, known.links = version, links
        elif links:
            self.pending[name] = Unpublished(version, links)
        if len(links) < len(self._links):
            self._missed(UNREACHABLE, 1)
        if not links:
            self._release([name])

    def acknowledged(self, link: str, versions: Mapping[str, int]) -> None:
        """A controller has these versions of topics; it is waited for from now on."""
        if link in self._links:
            self._links[link] = True
        for name, version in versions.items():
            entry = self.pending.get(name)
            if entry is not None and entry.version <= version:
                entry.links.discard(link)
        self._release(versions)

    def when_published(self, names: Iterable[str], then: Then) -> None:
        """Call `then` when no controller within reach lacks any of the topics; at once when none does."""
        for name in names:
            entry = self.pending.get(name)
            if entry is not None:
                # The rest is asked for then: names that are published by that time cost nothing.
                entry.waiting.append(partial(self.when_published, tuple(names), then))
                if entry.timer is None:
                    loop = asyncio.get_running_loop()
                    entry.timer = loop.call_later(self._wait_s, self._too_late, name)
                return
        then()

    def stop(self) -> None:
        """Release everybody: nothing is registered any more."""
        self._links.clear()
        for entry in self.pending.values():
            entry.links.clear()
        self._release(list(self.pending))

    def _too_late(self, name: str) -> None:
        entry = self.pending.get(name)
        if entry is not None:
            entry.timer = None
            self._give_up(list(entry.links), TIMEOUT)

    def _give_up(self, links: Collection[str], reason: str) -> None:
        touched = []
        for name, entry in self.pending.items():
            if not entry.links.isdisjoint(links):
                entry.links.difference_update(links)
                touched.append(name)
        for link in links:
            if link in self._links:
                self._links[link] = False
        if touched:
            self._missed(reason, len(touched))
        self._release(touched)

    def _release(self, names: Iterable[str]) -> None:
        """Let go of those that no controller lacks any more."""
        for name in list(names):
            entry = self.pending.get(name)
            if entry is None or entry.links:
                continue
            del self.pending[name]
            if entry.timer is not None:
                entry.timer.cancel()
            for then in entry.waiting:
                then()

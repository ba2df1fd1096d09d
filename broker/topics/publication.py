"""Topics that the controllers do not have yet, and the answers that wait until they do.

An answer that announces a topic to its sender (a send, 17, 34, 200) waits until every reachable controller has
acknowledged the topic's registration, so that a route query that follows it succeeds. Unreachable controllers are not
waited for, and one that does not answer within `wait_ms` is left out until it answers again: messages are stored even
with every controller down. Topics announced without that acknowledgement are counted, by reason.

Invariants: every callback is called once; a topic that no answer has to wait for is not in `pending`, so the usual
check costs one look-up in an empty dict. Loop thread only.
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
    """A changed topic that some controllers have not acknowledged yet."""

    version: int
    links: set[str]
    waiting: list[Then] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class Publication:
    """Topics on their way to the controllers; `link` is a controller's address."""

    def __init__(self, *, wait_ms: int, missed: Callable[[str, int], None]) -> None:
        """`missed(reason, topics)` is called for topics that are announced before every controller has them."""
        self.pending: dict[str, Unpublished] = {}
        self._wait_s = wait_ms / 1_000
        self._missed = missed
        self._links: dict[str, bool] = {}

    def watch(self, link: str) -> None:
        """Add a controller; it is waited for until it is unreachable."""
        if self._wait_s:
            self._links[link] = True

    def unreachable(self, link: str) -> None:
        """Stop waiting for this controller; it gets everything when it is reachable again."""
        self._give_up([link], UNREACHABLE)

    def changed(self, name: str, version: int) -> None:
        """A topic was created or changed; `version` is that of the topic table afterwards."""
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
        """Call `then` when every reachable controller has the topics; at once when they have."""
        for name in names:
            entry = self.pending.get(name)
            if entry is not None:
                # The other names are checked then; most are published by that time.
                entry.waiting.append(partial(self.when_published, tuple(names), then))
                if entry.timer is None:
                    loop = asyncio.get_running_loop()
                    entry.timer = loop.call_later(self._wait_s, self._too_late, name)
                return
        then()

    def stop(self) -> None:
        """Release all waiting answers: nothing is registered any more."""
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
        """Call back for the topics that no controller lacks any more."""
        for name in list(names):
            entry = self.pending.get(name)
            if entry is None or entry.links:
                continue
            del self.pending[name]
            if entry.timer is not None:
                entry.timer.cancel()
            for then in entry.waiting:
                then()

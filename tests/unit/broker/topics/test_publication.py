"""Answers wait for every reachable controller, no longer than the limit, and each is released once."""

from __future__ import annotations

import asyncio

import pytest

from broker.topics.topics import TIMEOUT, UNREACHABLE, Publication


class Bench:
    def __init__(self, *links: str, wait_ms: int = 5_000) -> None:
        self.missed: list[tuple[str, int]] = []
        self.released: list[str] = []
        self.publication = Publication(wait_ms=wait_ms, missed=lambda *missed: self.missed.append(missed))
        for link in links:
            self.publication.watch(link)

    def wait(self, *names: str) -> None:
        self.publication.when_published(names, lambda: self.released.append("+".join(names)))


async def test_all_controllers_have_to_acknowledge_the_newest_version() -> None:
    bench = Bench("a", "b")
    bench.publication.changed("t", 1)
    bench.wait("t")
    bench.publication.changed("t", 2)
    bench.publication.acknowledged("a", {"t": 1})
    bench.publication.acknowledged("b", {"t": 2})
    assert bench.released == []
    bench.publication.acknowledged("a", {"t": 2})
    assert bench.released == ["t"]
    assert not bench.publication.pending
    assert not bench.missed


async def test_several_topics_are_waited_for_and_published_ones_cost_nothing() -> None:
    bench = Bench("a")
    bench.wait("known")
    assert bench.released == ["known"]
    bench.publication.changed("t", 1)
    bench.publication.changed("u", 2)
    bench.wait("known", "t", "u")
    bench.publication.acknowledged("a", {"t": 1})
    assert bench.released == ["known"]
    bench.publication.acknowledged("a", {"u": 2})
    assert bench.released == ["known", "known+t+u"]


async def test_an_unreachable_controller_is_not_waited_for_until_it_acknowledges_something() -> None:
    bench = Bench("a", "b")
    bench.publication.changed("t", 1)
    bench.wait("t")
    bench.publication.acknowledged("a", {"t": 1})
    bench.publication.unreachable("b")
    assert bench.released == ["t"]
    assert bench.missed == [(UNREACHABLE, 1)]
    bench.publication.changed("u", 2)
    bench.publication.acknowledged("a", {"u": 2})
    assert not bench.publication.pending
    bench.publication.acknowledged("b", {"t": 1, "u": 2})
    bench.publication.changed("v", 3)
    bench.publication.acknowledged("a", {"v": 3})
    assert set(bench.publication.pending) == {"v"}


async def test_a_late_controller_releases_everything_that_waits_for_it() -> None:
    bench = Bench("a", wait_ms=10)
    bench.publication.changed("t", 1)
    bench.publication.changed("u", 2)
    bench.wait("t")
    async with asyncio.timeout(5):
        while not bench.released:
            await asyncio.sleep(0.005)
    assert bench.missed == [(TIMEOUT, 2)]
    assert not bench.publication.pending
    bench.publication.changed("w", 3)
    bench.wait("w")
    assert bench.released == ["t", "w"]


@pytest.mark.parametrize("links", [(), ("a",)])
async def test_nothing_waits_without_controllers_or_after_the_stop(links) -> None:
    bench = Bench(*links)
    bench.publication.changed("t", 1)
    bench.wait("t")
    bench.publication.stop()
    assert bench.released == ["t"]
    bench.publication.changed("t", 2)
    bench.wait("t")
    assert bench.released == ["t", "t"]
    assert not bench.missed


async def test_no_wait_is_configured() -> None:
    bench = Bench("a", wait_ms=0)
    bench.publication.changed("t", 1)
    bench.wait("t")
    assert bench.released == ["t"]

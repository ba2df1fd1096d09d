from __future__ import annotations

import asyncio

import pytest

from runtime.service import ServiceGroup


class Recorder:
    def __init__(self, name: str, story: list[str], *, fail: str = "", hang: bool = False) -> None:
        self.name, self.story, self.fail, self.hang = name, story, fail, hang

    async def start(self) -> None:
        if self.fail == "start":
            raise OSError("no port")
        self.story.append(f"start {self.name}")

    async def stop(self) -> None:
        if self.hang:
            await asyncio.Event().wait()
        if self.fail == "stop":
            raise RuntimeError("cannot")
        self.story.append(f"stop {self.name}")


async def test_services_start_in_order_and_stop_in_reverse() -> None:
    story: list[str] = []
    ready = False
    group = ServiceGroup()
    group.add("a", Recorder("a", story))
    group.add("b", Recorder("b", story), ready=lambda: ready)
    assert group.readiness() == {"a": False, "b": False}
    await group.start()
    assert group.readiness() == {"a": True, "b": False}
    ready = True
    assert group.readiness() == {"a": True, "b": True}
    await group.stop()
    await group.stop()
    assert group.readiness() == {"a": False, "b": False}
    assert story == ["start a", "start b", "stop b", "stop a"]


async def test_when_one_cannot_start_the_started_ones_are_stopped() -> None:
    story: list[str] = []
    group = ServiceGroup()
    group.add("a", Recorder("a", story))
    group.add("b", Recorder("b", story, fail="start"))
    with pytest.raises(OSError, match="no port"):
        await group.start()
    assert story == ["start a", "stop a"]


async def test_one_that_hangs_or_fails_does_not_keep_the_others_alive() -> None:
    story: list[str] = []
    group = ServiceGroup(stop_deadline_s=0.01)
    group.add("a", Recorder("a", story))
    group.add("b", Recorder("b", story, hang=True))
    group.add("c", Recorder("c", story, fail="stop"))
    await group.start()
    await group.stop()
    assert story[-1] == "stop a"


async def test_one_may_take_longer_to_stop_than_the_others() -> None:
    story: list[str] = []

    class Slow(Recorder):
        async def stop(self) -> None:
            await asyncio.sleep(0.05)
            await super().stop()

    group = ServiceGroup(stop_deadline_s=0.01)
    await group.begin("a", Slow("a", story), stop_deadline_s=10.0)
    await group.begin("b", Slow("b", story))
    await group.stop()
    assert story == ["start a", "start b", "stop a"]


async def test_a_service_can_begin_later_and_is_stopped_first() -> None:
    story: list[str] = []
    group = ServiceGroup()
    await group.begin("a", Recorder("a", story))
    await group.begin("b", Recorder("b", story), ready=lambda: False)
    with pytest.raises(OSError, match="no port"):
        await group.begin("c", Recorder("c", story, fail="start"))
    assert group.readiness() == {"a": True, "b": False, "c": False}
    await group.stop()
    assert story == ["start a", "start b", "stop b", "stop a"]

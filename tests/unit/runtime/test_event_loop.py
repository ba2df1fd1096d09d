from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from runtime import process


def test_run_returns_the_answer_and_uses_uvloop_where_it_is_installed() -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert process.loop_name() in process.run(main())


def test_without_uvloop_the_loop_of_the_standard_library_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert process.loop_name() == "asyncio"
    assert process.loop_factory() is asyncio.new_event_loop


def test_settling_freezes_what_is_alive() -> None:
    before = gc.get_threshold()
    try:
        process.settle_garbage()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] == process.YOUNG_OBJECTS_MAX
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_a_server_refuses_to_run_without_its_asserts() -> None:
    process.refuse_optimised()
    program = "from runtime.process import refuse_optimised; refuse_optimised()"
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"start without -O" in done.stderr

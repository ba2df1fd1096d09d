"""What loops for ever is run by `remoting.background.task`: its death is logged and makes the process unready.

A loop that another coroutine awaits, with its error, is listed here.
"""

from __future__ import annotations

import ast

from tests.support.tree import PACKAGES, ROOT, relative

STARTERS = {"create_task", "ensure_future"}
AWAITED = {
    "console/web/live.py:_write",
    "grpc_proxy/clients.py:write_all",
    "grpc_proxy/receiving.py:_pop",
    "lightmq/cli/bench/over_rocketmq.py:_pull",
    "mqtt_bridge/receiver.py:_store",
    "mqtt_bridge/sender.py:_commit",
    "remoting/client/threads.py:_pump",
}


def _endless(function: ast.AsyncFunctionDef) -> bool:
    """Whether it has a loop without a condition."""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.While)]
    return any(isinstance(loop.test, ast.Constant) for loop in loops)


def _started_elsewhere(source: str) -> list[str]:
    """Names of the endless coroutines of a module that a bare task runs."""
    tree = ast.parse(source)
    endless = {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and _endless(node)}
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STARTERS):
            continue
        work = node.args[0].func if isinstance(node.args[0], ast.Call) else None
        name = work.attr if isinstance(work, ast.Attribute) else getattr(work, "id", "")
        if name in endless:
            found.append(name)
    return found


def test_what_loops_for_ever_is_a_background_task() -> None:
    """A bare task may die without a word for as long as its owner keeps it; those of the list are awaited."""
    modules = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = {f"{relative(path)}:{name}" for path in modules for name in _started_elsewhere(path.read_text())}
    assert found == AWAITED


PLANTED = """
class Watcher:
    def start(self):
        self._task = asyncio.get_running_loop().create_task(self._watch())
        self._once = asyncio.ensure_future(self._look())
    async def _watch(self):
        while True:
            await self._look()
    async def _look(self):
        while self._left:
            self._left.pop()
"""


def test_the_check_can_fail() -> None:
    """A planted loop without an end is found, a finite one is not."""
    assert _started_elsewhere(PLANTED) == ["_watch"]

"""`remoting.clock` is the only module of the product that reads a clock, and nobody keeps what it reads with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support import house

READER = "remoting.clock"
HANDED_OUT = "runtime.clock"
"""Its `SystemClock` is replaced as an object, so it may keep the functions themselves."""
HARMLESS = {"sleep", "struct_time"}
"""What the product may use of `time`: all the rest reads a clock or can."""
OF_DATES = {"now", "utcnow", "today"}
KEPT = {"clock.monotonic_ns", "clock.monotonic_s", "clock.now_ns"}


def clock_reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that read a clock, and what they say."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    times = {each.asname or each.name for node in imports for each in node.names if each.name == "time"}
    dates = {"datetime", "date"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (
                (node.lineno, f"from time import {each.name}") for each in node.names if each.name not in HARMLESS
            )
        elif isinstance(node, ast.ImportFrom) and node.module == "datetime":
            dates |= {each.asname or each.name for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and reads_a_clock(node, times, dates):
            yield node.lineno, ast.unparse(node)


def reads_a_clock(node: ast.Attribute, times: set[str], dates: set[str]) -> bool:
    """Whether it is one of `time`, given the module's names, one of `datetime`, or an event loop's."""
    owner = node.value.func if isinstance(node.value, ast.Call) else node.value
    name = house.last_name(owner)
    if isinstance(node.value, ast.Name) and name in times:
        return node.attr not in HARMLESS
    return (node.attr in OF_DATES and name in dates) or (node.attr == "time" and "loop" in name)


def kept_reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that take a function of `remoting.clock` without calling it where it stands."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == READER:
            yield node.lineno, f"from {READER} import"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in KEPT and id(node) not in called:
            yield node.lineno, f"{ast.unparse(node)} is kept"


def readers_of_the_clock(tree: ast.AST) -> bool:
    """Whether the module imports `remoting.clock`."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "remoting"
        and any(each.name == "clock" for each in node.names)
        for node in ast.walk(tree)
    )


def test_no_module_reads_a_clock_that_cannot_be_replaced() -> None:
    """`time`, `datetime.now` and the loop's own clock cannot be replaced by a simulation."""
    found = []
    for module in house.modules().values():
        if module.name != READER:
            found += [f"{module.name}:{line}: {what}" for line, what in clock_reads(module.tree)]
        if module.name != HANDED_OUT and readers_of_the_clock(module.tree):
            found += [f"{module.name}:{line}: {what}" for line, what in kept_reads(module.tree)]
    assert not found, "read remoting.clock, or take a runtime.clock.Clock:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import time\nx = time.monotonic()",
        "import time as t\nx = t.time_ns",
        "from time import perf_counter as p",
        "import time\nx = time.strftime('%Y')",
        "import datetime\nx = datetime.datetime.now()",
        "import datetime as d\nx = d.date.today()",
        "from datetime import datetime as when\nx = when.utcnow()",
        "x = asyncio.get_running_loop().time()",
        "x = self._loop.time",
    ],
)
def test_every_way_to_a_clock_is_seen(code: str) -> None:
    assert list(clock_reads(ast.parse(code)))


def test_what_reads_no_clock_is_not_blamed() -> None:
    code = (
        "import datetime, time\nfrom remoting import clock\ntime.sleep(1)\ndatetime.time(1)\ngate.now()\ncolumns.time"
    )
    assert not list(clock_reads(ast.parse(code)))


def test_a_kept_function_is_seen() -> None:
    code = "from remoting import clock\nread = clock.monotonic_ns\nread()\nclock.now_ns()"
    assert list(kept_reads(ast.parse(code))) == [(2, "clock.monotonic_ns is kept")]
    assert list(kept_reads(ast.parse("from remoting.clock import now_ns")))

"""A running stack for the demo's parts that connect to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightmq.demo.stack import Ports, Stack


@pytest.fixture(scope="session")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """Ports of a real `lightmq up`, shared by the tests of this folder."""
    stack = Stack(tmp_path_factory.mktemp("demo") / "data")
    try:
        yield stack.start(processes=False)
    finally:
        stack.stop()

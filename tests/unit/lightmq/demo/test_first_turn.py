"""Who waits for a query's first turn goes on when it progressed, idled or ended, and not for another query's."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lightmq.demo.first_turn import FirstTurn


@pytest.mark.parametrize("kind", ["progress", "idle", "terminated"])
def test_any_end_of_the_first_turn_counts(kind: str) -> None:
    listener = FirstTurn()
    query: Any = SimpleNamespace(id="q")
    listener.onQueryStarted(SimpleNamespace(id="q"))
    listener.onQueryIdle(SimpleNamespace(id="another"))
    assert not listener.wait(query, 0)
    say = {
        "progress": lambda: listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(id="q"))),
        "idle": lambda: listener.onQueryIdle(SimpleNamespace(id="q")),
        "terminated": lambda: listener.onQueryTerminated(SimpleNamespace(id="q")),
    }[kind]
    thread = threading.Thread(target=say)
    thread.start()
    assert listener.wait(query, 30)
    thread.join()

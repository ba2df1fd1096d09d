"""Freezing happens on the second task, once."""

from __future__ import annotations

import pytest

from spark_connector import worker


def test_frozen_on_the_second_task(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(worker, "_tasks_by_process", {})
    monkeypatch.setattr(worker.gc, "freeze", lambda: frozen.append(1))
    for expected in (0, 1, 1):
        worker.begin_task()
        assert len(frozen) == expected

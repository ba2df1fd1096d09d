"""Tasks that run as long as their owner does: the death of one is never silent.

    self._task = background.task(self._watch(), "watches the routes")

A task that its owner keeps and nobody awaits may end with an exception that is shown only when the object is
collected, which is at the end of the process. Such a task is made here: an exception that ends it is logged as an
error at once and remembered (`deaths`), so that `/readyz` says for as long as the process runs what it no longer does.
Being cancelled is no death, nor is returning.

Invariant: a coroutine of the product that loops for ever is run by `task` and by nothing else
(`tests/arch/test_background_tasks.py`). Stands below all packages. Loop rule: on a running event loop; what died is
remembered by loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

LOG = logging.getLogger("background")
_deaths: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, str]] = WeakKeyDictionary()


def task(work: Coroutine[Any, Any, None], does: str) -> asyncio.Task[None]:
    """Start `work` on the running loop; `does` completes the sentence that reports its death: "watches the routes"."""
    loop = asyncio.get_running_loop()
    made = loop.create_task(work, name=does)
    made.add_done_callback(partial(_ended, loop))
    return made


def deaths() -> dict[str, str]:
    """What the running loop's tasks no longer do, and the error that ended each; empty while all of them live."""
    return dict(_deaths.get(asyncio.get_running_loop(), {}))


def _ended(loop: asyncio.AbstractEventLoop, ended: asyncio.Task[None]) -> None:
    if ended.cancelled():
        return
    error = ended.exception()
    if error is None:
        return
    _deaths.setdefault(loop, {})[ended.get_name()] = repr(error)
    LOG.error("the task that %s has ended: %r", ended.get_name(), error, exc_info=error)

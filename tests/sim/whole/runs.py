"""A schedule in a process of its own, so that nothing of its killed processes is ever finalized."""

from __future__ import annotations

import os
import pickle
from typing import Any

from tests.sim.whole.schedule import Result, run


def run_apart(seed: int, *, elects: bool = False, plant: Any = None) -> Result:
    """Fork, run a seed, and take its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            result = run(seed, elects=elects, plant=plant)
        except BaseException as error:
            result = Result(seed, "the simulation", repr(error))
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else Result(seed, "the simulation", "its process ended")

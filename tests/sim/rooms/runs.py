"""Schedules in a process of their own, so that nothing of their killed processes is ever finalized."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from typing import Any

from tests.sim.rooms.schedule import Result, run


def run_apart(seeds: Iterable[int], plant: Any = None) -> list[Result]:
    """Fork, run the seeds, with a planted bug up to the first that shows it, and take the results."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        results = []
        try:
            for seed in seeds:
                results.append(run(seed, plant=plant))
                if plant is not None and results[-1].rule:
                    break
        except BaseException as error:
            results.append(Result(seed, "the simulation", repr(error)))
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(results, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    found: list[Result] = pickle.loads(data) if data else [Result(min(seeds), "the simulation", "its process ended")]
    return found

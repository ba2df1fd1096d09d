"""`run_forever()`: keep a streaming query running, restarted from its checkpoint after failures.

Spark ends a query for good when one of its Python processes dies or does not come up within ten seconds (a busy
machine). Its checkpoint has everything that is needed to go on, so the remedy is to start the same query again.

    failure                                                            what happens
    a process of Spark or a broker is gone, a worker was too slow      started again, after a pause that doubles
    more than `restarts_max` of those within `within_s`                given up, with the last error
    wrong options, analysis errors, lost data, errors of `start`       given up at once, with the error itself
    the session was stopped, or its Java is gone                       given up at once, with the error itself

Invariants: the error that is raised is Spark's own; a query that does not go on from a checkpoint is not started a
second time. Thread rule: any thread; one call per query.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

RESTARTS_MAX = 10
"""Restarts within `WITHIN_S` before the query is given up."""
WITHIN_S = 600.0
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
"""Before the first restart within that time, and the longest one: each is twice as long as the one before."""
STOP_CHECK_S = 1
"""How often a running query checks `stop`, where it is given."""
CAUSE_LENGTH_MAX = 300
"""Longer causes are cut in the sentence about a restart; the error itself has all of it."""

SESSION_GONE = (
    "SparkContext was shut down",
    "SparkContext is stopped",
    "stopped SparkContext",
    "Answer from Java side is empty",
    "Error while sending or receiving",
    "An error occurred while trying to connect to the Java server",
)
"""Nothing can be started in such a session again."""
FOR_THE_MOMENT = (
    "failed to connect back",
    "Python worker exited unexpectedly",
    "spark_connector.errors.BrokerUnreachable",
    "spark_connector.errors.BrokerMoved",
    "Illegal size of collection",
)
"""Failures that a start may have too: a worker that was too slow or killed, and Spark's race of two first batches."""
FOR_GOOD = (
    "AnalysisException",
    "ParseException",
    "IllegalArgumentException",
    "spark_connector.errors.OptionError",
    "spark_connector.errors.DataLost",
    "spark_connector.errors.BrokenRecord",
    "spark_connector.decode.errors.",
)
"""Failures that the same query has again however often it is started."""


def run_forever(
    start: Callable[[], StreamingQuery],
    *,
    restarts_max: int = RESTARTS_MAX,
    within_s: float = WITHIN_S,
    say: Callable[[str], object] = print,
    stop: Event | None = None,
) -> None:
    """Start a query and keep it running; returns when it ends without an error (stopped, or `availableNow` is done).

    `start` makes the whole query, from `spark.readStream` to `.start()`, and returns it; it needs a
    `checkpointLocation`. `say` is given one sentence per restart. When `stop` is set the query is stopped too. Raises
    the query's own error when a restart does not help or there were too many.
    """
    restarts: deque[float] = deque()
    known_id: str | None = None
    while stop is None or not stop.is_set():
        try:
            _activate_session()
            query = start()
            known_id = known_id or str(query.id)
            if str(query.id) == known_id:
                _await_end(query, stop)
                return
            query.stop()
        except Exception as error:
            if not is_transient(error):
                raise
            failure = error
        else:
            say("The query has no checkpoint of its own, so a restart does not go on where it was. It is given up.")
            raise failure
        now = time.monotonic()
        while restarts and now - restarts[0] > within_s:
            restarts.popleft()
        if len(restarts) >= restarts_max:
            say(f"The query failed: {cause_of(failure)}. Given up after {restarts_max} restarts in {within_s:g} s.")
            raise failure
        restarts.append(now)
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** (len(restarts) - 1))
        bound = f"restart {len(restarts)} of at most {restarts_max} in {within_s:g} s"
        say(f"The query failed: {cause_of(failure)}. It goes on from its checkpoint in {pause_s:g} s ({bound}).")
        _pause(pause_s, stop)


def is_transient(error: BaseException) -> bool:
    """Whether the same query, started again, may go on: see the table above."""
    from pyspark.errors import StreamingQueryException

    text = _text_of(error)
    if any(one in text for one in SESSION_GONE):
        return False
    if any(one in text for one in FOR_THE_MOMENT):
        return True
    return isinstance(error, StreamingQueryException) and not any(one in text for one in FOR_GOOD)


def cause_of(error: BaseException) -> str:
    """What failed in one line: of a Python traceback the last line, without Spark's frame around it."""
    lines = [line.strip() for line in _text_of(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    found = lines[0]
    raised = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|[a-z]): ", line)]
    if "Traceback (most recent call last):" in _text_of(error) and raised:
        found = raised[-1]
    found = re.sub(r"^\[STREAM_FAILED\].*? terminated with exception: ", "", found)
    found = re.sub(r"\s*SQLSTATE: \w+$", "", found).rstrip(". ")
    return found if len(found) <= CAUSE_LENGTH_MAX else found[:CAUSE_LENGTH_MAX] + "…"


def _text_of(error: BaseException) -> str:
    """The error's text without the plan of the query, which Spark appends and which has the user's own words."""
    return str(error).partition("=== Streaming Query ===")[0]


def _activate_session() -> None:
    """Make the running session this thread's own: in another thread than its maker's Spark finds no Python sink."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with suppress(PySparkRuntimeError):  # there is none: `start` makes it
        if SparkSession.getActiveSession() is None:
            SparkSession.active().createDataFrame([], "unused int")


def _await_end(query: StreamingQuery, stop: Event | None) -> None:
    """Return when the query has ended, raise when it failed; whatever else interrupts the wait ends the query."""
    try:
        if stop is None:
            query.awaitTermination()
            return
        while not query.awaitTermination(STOP_CHECK_S):
            if stop.is_set():
                query.stop()
                return
    except Exception:
        raise
    except BaseException:
        with suppress(Exception):
            query.stop()
        raise


def _pause(pause_s: float, stop: Event | None) -> None:
    if stop is None:
        time.sleep(pause_s)
    else:
        stop.wait(pause_s)

"""What `foreachBatch` is given to write each batch exactly once, in any output mode.

    query = frame.writeStream.outputMode("update").foreachBatch(BatchWriter("alerts", mqttTopic="plant/alerts")).start()

Spark calls it again with the same batch id when a batch is repeated; `txnAppId` and `txnVersion` make that harmless.
Invariant: a batch that the broker has is not sent again; it is computed again, where the broker knows what its rows
were, to compare them: a batch of another checkpoint is refused instead of being taken for one. Thread rule: the
driver's thread of the query; picklable, because Spark Connect sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_connector.errors import OptionError
from spark_connector.options.read_write import parse_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ITS_OWN = frozenset({"txnappid", "txnversion", "sinkid"})


class BatchWriter:
    """Writes one DataFrame per batch under the name `app_id`; one name for one query and its checkpoint.

    `options` are those of `df.write.format("rocketmq")`; OptionError here for a wrong one, before any query starts.
    """

    def __init__(self, app_id: str, **options: object) -> None:
        taken = sorted(name for name in options if name.lower() in ITS_OWN)
        if taken:
            raise OptionError(f"option {taken[0]!r} is set by the batch writer itself, from its name and the batch id")
        self._app_id = app_id
        self._options = {name: _text(value) for name, value in options.items()}
        parse_write(self._given(0))

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write the batch, unless the broker has it. Raises OptionError where the broker has other rows for its id."""
        from spark_connector.writing.replays import SKIP, SOME_RUN, Replayed, check_behind
        from spark_connector.writing.sink import finish_batch, sink_home

        options = self._given(batch_id)
        parsed = parse_write(options)
        if parsed.delivery == "exactly-once":
            home, mine = sink_home(self._app_id, parsed), Replayed(self._app_id, batch_id, None, SOME_RUN)
            check_behind(mine, home.last_batch, parsed)
            is_comparable = home.digest is not None and parsed.replay_mismatch != SKIP
            if batch_id <= home.last_batch and not is_comparable:
                finish_batch(home, mine, parsed)
                return
        frame.write.format("rocketmq").mode("append").options(**options).save()

    def _given(self, batch_id: int) -> dict[str, str]:
        return self._options | {"txnAppId": self._app_id, "txnVersion": str(batch_id)}


def _text(value: object) -> str:
    """As Spark would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

"""One task's rows sent to one broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from spark_connector.brokers.connections import Address
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing.row_encoder import EncodedRows
from spark_connector.writing.sending import AttemptName, RowSender


def send_rows(
    address: Address, batches: Iterable[EncodedRows], attempt: AttemptName | None, options: WriteOptions
) -> int:
    """Send entries to one broker and return the number of rows; raises what `RowSender` and the batches raise."""
    with RowSender("", address, attempt, options) as sender:
        for batch in batches:
            sender.add(batch)
        return sender.finish()

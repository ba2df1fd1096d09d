"""One task's rows sent to one broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from spark_connector.connections import Address
from spark_connector.entries import EncodedRows
from spark_connector.options import WriteOptions
from spark_connector.sending import AttemptName, RowSender


def send_rows(
    address: Address, batches: Iterable[EncodedRows], attempt: AttemptName | None, options: WriteOptions
) -> int:
    """Send entries to one broker and return the number of rows; raises what `RowSender` and the batches raise."""
    with RowSender(address, attempt, options) as sender:
        for batch in batches:
            sender.add(batch)
        return sender.finish()

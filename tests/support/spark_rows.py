"""One task's rows sent to one broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from remoting.protocol.addresses import join_address
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo
from spark_connector import brokers
from spark_connector.brokers import Address, GroupMaster
from spark_connector.options.option_table import ConnectionOptions
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing.row_encoder import EncodedRows
from spark_connector.writing.sink import AttemptName, RowSender


def send_rows(
    address: Address, batches: Iterable[EncodedRows], attempt: AttemptName | None, options: WriteOptions
) -> int:
    """Send entries to one broker and return the number of rows; raises what `RowSender` and the batches raise."""
    with RowSender(GroupMaster("", address, options), attempt, options) as sender:
        for batch in batches:
            sender.add(batch)
        return sender.finish()


def named_masters(addresses: Mapping[str, Address], options: ConnectionOptions) -> dict[str, GroupMaster]:
    """The masters of groups that the name servers know."""
    return {group: GroupMaster(group, address, options) for group, address in addresses.items()}


def tell_groups(monkeypatch: pytest.MonkeyPatch, addresses: Mapping[str, Address]) -> None:
    """Have the name servers name these masters by group, as in the mapping at the time of each request."""

    def broker_groups(_options: ConnectionOptions, _group: str = "") -> ClusterInfo:
        return ClusterInfo(
            {group: BrokerData("", group, {0: join_address(*address)}) for group, address in addresses.items()}
        )

    monkeypatch.setattr(brokers, "broker_groups", broker_groups)

"""Tell a broker's consumer group how far a query has committed, so that its lag shows where operators look for it.

Invariant: only a report; nothing is ever read back. Spark tells of a finished batch when it begins the next one, so
the report is one batch behind. Thread rule: the driver-side process of the query.
"""

from __future__ import annotations

from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from spark_connector.brokers.connections import POOL, check, unreachable
from spark_connector.options.read_write import ReadOptions
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.offsets import Positions


def commit_progress(group: str, positions: Positions, watch: BoundsWatch, options: ReadOptions) -> None:
    """Send the position of every queue, all on the way at once; raises BrokerUnreachable or BrokerRefused."""
    if not watch.addresses:
        watch.read()
    for broker, address in watch.addresses.items():
        try:
            with POOL.borrow(
                address, options.pull_timeout_ms, signer=options.signer, tls=options.client_tls
            ) as connection:
                sent = []
                for key, position in sorted(positions.items()):
                    if key.broker != broker:
                        continue
                    fields = {
                        "consumerGroup": group,
                        "topic": key.topic,
                        "queueId": str(key.queue),
                        "commitOffset": str(position),
                    }
                    sent.append(connection.send(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields)))
                replies = [connection.receive(opaque) for opaque in sent]
        except (OSError, ConnectionLost) as failure:
            POOL.forget(address)
            raise unreachable(address, failure, options) from failure
        for reply in replies:
            check(reply, address)

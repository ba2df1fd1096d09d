"""Whether a write may go where it is meant to go, asked of the brokers while it is planned.

Invariant: the answer is the brokers' own, the same that the rows would get; nothing is changed by asking. Thread rule:
the driver.
"""

from __future__ import annotations

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers.connections import ask, check
from spark_connector.brokers.masters import find_brokers
from spark_connector.options.read_write import WriteOptions


def check_allowed(sink: str | None, options: WriteOptions) -> None:
    """Raise BrokerRefused while the write is planned when it may not go where it is meant to go.

    That is said for a topic that an option names and for the sink's own name; topics of a column are seen with their
    rows. Also raises BrokerUnreachable when nobody answers.
    """
    fields = {"topic": options.mqtt_topic or options.topic or ""}
    if sink is not None and options.delivery != "at-least-once":
        fields["sink"] = sink
    asked = {name: value for name, value in fields.items() if value}
    for address in find_brokers(options).values():
        if not asked:
            return
        reply = ask(address, Command(RequestCode.CHECK_PUBLISH, fields=dict(asked)), options, refusal_is_error=False)
        if reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # an older broker tells the tasks
            check(reply, address)

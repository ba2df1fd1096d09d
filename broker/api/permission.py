"""CHECK_PUBLISH (9024): whether the asker may write to a topic and commit under a sink's name, before it has anything.

Fields `topic` (an MQTT topic or a RocketMQ topic, as in entries) and `sink`, each optional. It answers success or the
refusal that the rows themselves would get. Invariant: the same authorize() with the same resources as APPEND_MANY and
STAGE; nothing is changed. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.access import PUBLISH
from remoting.access.resources import of_sink
from remoting.protocol.commands import Command
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker


def check_publish(broker: Broker, peer: Peer, command: Command) -> Command:
    """Success when all of it is allowed, else NO_PERMISSION with the first thing that is not."""
    if topic := command.fields.get("topic"):
        broker.authorizer.authorize(peer, command, PUBLISH, topic)
    if sink := command.fields.get("sink"):
        broker.authorizer.authorize(peer, command, PUBLISH, of_sink(sink))
    return command.reply()

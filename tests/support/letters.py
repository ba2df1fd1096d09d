"""Dead letters, as a consumer makes them that gives up at once."""

from __future__ import annotations

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command


def give_up(connection: BlockingConnection, group: str, *bodies: bytes, topic: str = "orders") -> None:
    """Send messages to a topic, and let the group put each into its dead letters."""
    for body in bodies:
        fields = {"topic": topic, "producerGroup": "p", "queueId": "0", "properties": "KEYS\x01order-7\x02"}
        sent = checked(connection.request(Command(Code.SEND_MESSAGE, fields=fields, body=body)))
        position = int(sent.fields["msgId"][16:], 16)
        back = {"offset": str(position), "group": group, "delayLevel": "-1", "originMsgId": sent.fields["msgId"]}
        checked(connection.request(Command(Code.CONSUMER_SEND_MSG_BACK, fields=back)))

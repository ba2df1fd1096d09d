"""``lightmq sub``: subscribe over MQTT and print messages, until ``--count`` messages or Ctrl-C.

A message is acknowledged after it is printed, and the command ends when the server has read the acknowledgements. With
``--persistent`` the server keeps the session (and what arrives meanwhile) for the client id after we leave.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lightmq.cli.messages.mqtt_client import CONNECT_TIMEOUT_S, MqttLink, MqttTarget, shown
from lightmq.cli.outcome import CommandFailed, payload_fields

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

Granted = tuple[list[Any], Any]
"""Codes and properties of a SUBACK."""
QUEUE_MAX = 10_000
"""Messages between the network thread and the printing one; a full queue stops reading the socket."""
HERE = MqttTarget()


def subscribe(
    *,
    topic: Annotated[
        list[str], Parameter(name=["--topic", "-t"], negative=(), help="Topic filter; may be given several times.")
    ],
    qos: Annotated[int, Parameter(name=["--qos", "-q"], help="0, 1 or 2.")] = 1,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="Exit after this many messages; 0: never.")] = 0,
    persistent: Annotated[bool, Parameter(negative=(), help="Keep the session; needs --client-id.")] = False,
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative=(), help="Print the topic too.")] = False,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per message.")] = False,
    target: MqttTarget = HERE,
) -> None:
    """Subscribe over MQTT and print the messages."""
    from lightmq.cli.options import check_filter, check_qos

    check_qos(qos)
    for topic_filter in topic:
        check_filter(topic_filter)
    messages: queue.Queue[MQTTMessage | CommandFailed] = queue.Queue(QUEUE_MAX)
    link = MqttLink(target, persistent=persistent)
    link.client.on_message = lambda _client, _data, message: messages.put(message)
    granted: queue.Queue[Granted | CommandFailed] = queue.Queue()

    def lost() -> None:
        granted.put(CommandFailed(link.why_lost))
        messages.put(CommandFailed(link.why_lost))

    link.on_lost = lost
    link.client.on_subscribe = lambda _client, _data, _mid, codes, properties: granted.put((codes, properties))
    link.open()
    try:
        link.client.subscribe([(topic_filter, qos) for topic_filter in topic])
        taken = check_granted(topic, qos, granted, is_v5=target.is_v5)
        sys.stderr.write(f"subscribed to {', '.join(taken)}\n")
        seen = acknowledged = 0
        while not count or seen < count:
            message = messages.get()
            if isinstance(message, CommandFailed):
                raise message
            sys.stdout.buffer.write(render(message, json_output=json_output, verbose=verbose))
            sys.stdout.buffer.flush()
            link.client.ack(message.mid, message.qos)
            acknowledged += message.qos > 0
            seen += 1
        if acknowledged:
            _stop_taking(link, messages)
            # Before all of what the server still sends is read, the socket's end would be a reset: a server that meets
            # it first never reads the acknowledgements, and sends the messages again in the next session.
            link.await_reading(CONNECT_TIMEOUT_S)
    finally:
        _stop_taking(link, messages)
        link.close()


def _stop_taking(link: MqttLink, messages: queue.Queue[MQTTMessage | CommandFailed]) -> None:
    """Take no further message, and free the network thread that may wait for room; the rest stays the session's."""
    link.client.on_message = lambda _client, _data, _message: None
    with contextlib.suppress(queue.Empty):
        while True:
            messages.get_nowait()


def check_granted(
    filters: list[str], qos: int, granted: queue.Queue[Granted | CommandFailed], *, is_v5: bool
) -> list[str]:
    """The filters as they were granted. Raises CommandFailed when one was refused, with the reason of each."""
    from mqtt_bridge.paho_client import CAUSES_OF_3_1_1_SUBACK, in_words

    try:
        answer = granted.get(timeout=CONNECT_TIMEOUT_S)
    except queue.Empty:
        raise CommandFailed(f"the server did not answer SUBSCRIBE within {CONNECT_TIMEOUT_S:.0f} s") from None
    if isinstance(answer, CommandFailed):
        raise CommandFailed(f"SUBSCRIBE was not answered: {answer}")
    codes, properties = answer
    if len(codes) != len(filters):
        raise CommandFailed(f"the server answered {len(codes)} of {len(filters)} filters in SUBACK")
    pairs = list(zip(filters, codes, strict=True))
    refused = [f"{name}: {in_words(code, properties)}" for name, code in pairs if code.is_failure]
    if refused:
        kept = [name for name, code in pairs if not code.is_failure]
        text = f"the server refused to subscribe to {'; '.join(refused)}"
        if kept:
            text += f" (it granted {', '.join(kept)})"
        raise CommandFailed(text if is_v5 else f"{text}; {CAUSES_OF_3_1_1_SUBACK}")
    return [name if code.value == qos else f"{name} with QoS {code.value} instead of {qos}" for name, code in pairs]


def render(message: MQTTMessage, *, json_output: bool, verbose: bool) -> bytes:
    """One line for one message; a payload that is not UTF-8 goes into JSON as ``payload_base64``."""
    if not json_output:
        return (message.topic.encode() + b" " if verbose else b"") + message.payload + b"\n"
    fields = {"topic": message.topic, "qos": message.qos, "retain": message.retain, "dup": message.dup}
    return (
        json.dumps({**fields, **payload_fields(message.payload), **shown(message.properties)}, ensure_ascii=False)
        + "\n"
    ).encode()

"""Publishes of a proxy in the same process, without APPEND_MANY's bytes: objects to store messages to one append.

The same messages come out as from the frame: the same record, queues, limits and refusals; a run of them is refused
alone and leaves nothing behind. Invariant: what was gathered from frames before goes into the log before.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.api.append import refusal_of
from broker.store.errors import StoreError
from broker.store.store_message import Appended, StoreMessage
from remoting.protocol.append_body import mqtt_meta
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.record import FLAG_MQTT, FLAG_RETAIN
from remoting.transport.direct import PlainRun, Stored
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.api.context import Broker


class DirectAppends:
    """The broker's end of `remoting.transport.direct`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._body_bytes_max = broker.config.limits.message_size_bytes_max
        self._properties_bytes_max = broker.config.limits.properties_bytes_max

    @property
    def open(self) -> bool:
        """Whether no policy wants to see who publishes what."""
        return self._broker.authorizer.open

    def append(self, runs: Sequence[PlainRun], stored: Stored) -> None:
        """Append the runs as one; `stored` follows, never in this call."""
        appender = self._broker.appender
        try:
            messages = self._messages(runs)
        except Refused as refused:
            soon(stored, refused)
            return
        except StoreError as error:
            soon(stored, refusal_of(self._broker.metrics, error))
            return
        except LightMQError as error:
            soon(stored, Refused(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return

        def done(_appended: Appended | None, _first: int, refused: Refused | None) -> None:
            if refused is None:
                stored(None)
            else:
                soon(stored, refused)  # a refusal may come while this append is still being made

        appender.add(messages, done)
        appender.flush()

    def _messages(self, runs: Sequence[PlainRun]) -> list[StoreMessage]:
        messages: list[StoreMessage] = []
        add, queues_of = messages.append, self._broker.dispatcher.mqtt
        for client_id, born_ms, publishes in runs:
            for one in publishes:
                topic, body = one.topic, one.payload
                _size, parent_len, props_len, meta = mqtt_meta(topic, client_id)
                if len(body) > self._body_bytes_max or props_len > self._properties_bytes_max:
                    raise self._too_large(len(body), props_len)
                flags = FLAG_MQTT | FLAG_RETAIN | one.qos if one.retain else FLAG_MQTT | one.qos
                add(StoreMessage(queues_of(topic), born_ms, flags, 0, 2, parent_len, 0, 0, props_len, meta, body))
        return messages

    def _too_large(self, body_bytes: int, properties_bytes: int) -> Refused:
        if body_bytes > self._body_bytes_max:
            remark = f"the message body of {body_bytes} bytes exceeds {self._body_bytes_max}"
        else:
            remark = f"{properties_bytes} bytes of properties exceed {self._properties_bytes_max}"
        return Refused(ResponseCode.MESSAGE_ILLEGAL, remark)

"""Publishes of a proxy in the same process, without APPEND_MANY's bytes: objects to store messages to one append.

The same messages come out as from the frame: the same record, queues, limits and refusals; a run of them is refused
alone and leaves nothing behind. Invariant: what was gathered from frames before goes into the log before.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.api import hot
from broker.direct.sessions import DirectSessions
from broker.requests.refusals import refusal_of
from broker.store.errors import StoreError
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.transport.direct import PlainRun, Stored
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.broker import BrokerParts as Broker


class DirectAppends(DirectSessions):
    """The broker's end of `remoting.transport.direct`: publishes here, sessions in what it inherits."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._queues, self._queues_of = broker.subscriptions.dispatcher.cached, broker.subscriptions.dispatcher.mqtt
        self._body_bytes_max = broker.tools.config.limits.message_size_bytes_max
        self._properties_bytes_max = broker.tools.config.limits.properties_bytes_max

    @property
    def open(self) -> bool:
        """Whether no quota wants to see what is retained; the proxy of this process has judged who publishes what."""
        return not self._broker.retained.quota.active

    def append(self, runs: Sequence[PlainRun], stored: Stored) -> None:
        """Append the runs as one; `stored` follows, never in this call."""
        try:
            messages = hot.core.messages(
                runs, self._queues, self._queues_of, self._too_large, self._body_bytes_max, self._properties_bytes_max
            )
        except Refused as refused:
            soon(stored, refused)
        except StoreError as error:
            soon(stored, refusal_of(self._broker.tools.metrics, error))
        except LightMQError as error:
            soon(stored, Refused(ResponseCode.MESSAGE_ILLEGAL, str(error)))
        else:
            self._broker.publishing.appender.now(messages, stored)

    def _too_large(self, body_bytes: int, properties_bytes: int) -> Refused:
        if body_bytes > self._body_bytes_max:
            remark = f"the message body of {body_bytes} bytes exceeds {self._body_bytes_max}"
        else:
            remark = f"{properties_bytes} bytes of properties exceed {self._properties_bytes_max}"
        return Refused(ResponseCode.MESSAGE_ILLEGAL, remark)

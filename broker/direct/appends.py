"""Publishes of a proxy in the same process, without a command: the images of one turn become one append.

The images are those of APPEND_MANY and go through the same placement. Invariant: what was gathered
from frames before goes into the log before. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.direct.sessions import DirectSessions
from broker.requests.answers import refusal_of
from broker.store.errors import StoreError
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.transport.direct import Stored
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.broker import BrokerParts as Broker


class DirectAppends(DirectSessions):
    """The broker's end of `remoting.transport.direct`: publishes here, sessions in what it inherits."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._placement = broker.publishing.placement

    @property
    def open(self) -> bool:
        """Whether no quota wants to see what is retained; the proxy of this process has judged who publishes what."""
        return not self._broker.retained.quota.active

    def append(self, images: bytes, stored: Stored) -> None:
        """Append the images as one; `stored` follows, never in this call."""
        try:
            placed = self._placement.placed(images)
        except Refused as refused:
            soon(stored, refused)
        except StoreError as error:
            soon(stored, refusal_of(self._broker.tools.metrics, error))
        except LightMQError as error:
            soon(stored, Refused(ResponseCode.MESSAGE_ILLEGAL, str(error)))
        else:
            self._broker.publishing.appender.now(placed, stored)

"""Sessions of a proxy in the same process, without frames: requests and answers are the objects the frames would carry.

The rules are those of the frames (`sessions`): the same calls, refusals and confirm position. What is answered already
when a call returns costs no turn of the loop. SUBSCRIBEs of a turn come together: the queues of their exact topics that
do not exist yet are made by one record of the log instead of one each. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from broker.requests.answers import refusal_of
from broker.store.errors import StoreError
from remoting.protocol.bodies.session_body import SessionClose, SessionOpen, SessionOpened, Subscribed, SubscribeRequest
from remoting.protocol.errors import Refused
from remoting.protocol.records import names, topics
from remoting.protocol.records.share_names import inner_filter
from remoting.transport.contracts import Peer
from remoting.transport.direct import Said

if TYPE_CHECKING:
    from broker.broker import BrokerParts as Broker


class DirectSessions:
    """The sessions' part of `remoting.transport.direct.DirectPort`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._requests = broker.sessions.requests

    def session_open(self, peer: Peer, request: SessionOpen, said: Said[SessionOpened]) -> None:
        """Take a client's session for the proxy at `peer`."""
        self._requests.open_session(peer, request, said)

    def session_close(self, request: SessionClose, said: Said[int]) -> None:
        """Give a session back."""
        broker = self._broker
        try:
            position = self._requests.close_session(request)
        except Refused as refused:
            said(None, refused)
        except StoreError as error:
            said(None, refusal_of(broker.tools.metrics, error))
        else:
            broker.tools.answers.call_at(position, position, said)

    def subscribe(self, wanted: Sequence[tuple[SubscribeRequest, Said[Subscribed]]]) -> None:
        """Subscribe many sessions."""
        broker = self._broker
        if len(wanted) > 1:
            self._make_queues([request for request, _said in wanted])
        for request, said in wanted:
            try:
                subscribed, position = self._requests.subscribe_session(request)
            except Refused as refused:
                said(None, refused)
            except StoreError as error:
                said(None, refusal_of(broker.tools.metrics, error))
            else:
                broker.tools.answers.call_at(position, subscribed, said)

    def _make_queues(self, requests: Sequence[SubscribeRequest]) -> None:
        """Make the queues of exact topics that some of these will ask for, together."""
        wanted = []
        for request in requests:
            for one in request.filters:
                topic = inner_filter(one.filter)
                if topics.validate_filter(topic) is None and not topics.is_wildcard(topic):
                    wanted.append(names.light_queue_name(topic.encode()))
        with suppress(StoreError):  # each of them hears it when it asks
            self._broker.tools.store.queues.open_all(wanted)

"""The request that switches a group between PULL and POP: 401 SET_MESSAGE_REQUEST_MODE.

Invariant: a group that is switched to PULL has no message in flight or in its retry topic. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from broker.groups.request_modes import POP, PULL, RequestMode
from broker.pop.handles import retry_topic
from broker.pop.in_flight import MessagesInFlight
from broker.requests import json_body
from remoting.access.rights import ADMIN, of_group
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.requests import RequestTools
    from broker.topics.topics import Topics


class ModeBody(msgspec.Struct, rename="camel"):
    """Body of 401; other fields are ignored."""

    topic: str
    consumer_group: str
    mode: str = PULL
    pop_share_queue_num: int = 0


class ModeRequests:
    """Switches groups between PULL and POP (401)."""

    def __init__(
        self, tools: RequestTools, *, topics: Topics, groups: ConsumerGroups, in_flight: MessagesInFlight
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._groups = groups
        self._in_flight = in_flight

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.SET_MESSAGE_REQUEST_MODE: self.set_mode}

    def set_mode(self, peer: Peer, command: Command) -> None:
        """401: how a group reads a topic from now on.

        Raises:
            Refused: the mode is none, the topic is unknown or a retry topic, or, for PULL, the group has messages in
                flight or in its retry topic, which would no longer be read.
        """
        try:
            body = msgspec.convert(json_body(command), ModeBody)
        except msgspec.ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the mode is malformed: {error}") from error
        group, topic = body.consumer_group, body.topic
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        if topic.startswith(names.RETRY_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.mode not in (PULL, POP):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the mode {body.mode!r} is neither PULL nor POP")
        self._topics.require(topic)
        self._groups.groups.ensure(group, "")
        if body.mode == PULL:
            self._check_left(group, topic)
        self._groups.commits.flush()
        mode = RequestMode(body.mode, body.pop_share_queue_num)
        self._tools.answers.reply_at(self._groups.groups.modes.put(group, topic, mode), peer, command.reply())

    def _check_left(self, group: str, topic: str) -> None:
        """Refused while the group has messages of the topic in flight or waiting in the retry topic."""
        retry = retry_topic(group, topic)
        count = self._in_flight.count
        left = sum(count(group, queue_id) for queue_id in self._topics.queue_ids(topic))
        for index, queue_id in enumerate(self._topics.queue_ids(retry)):
            low, high = self._tools.store.reading.bounds(queue_id)
            found = self._groups.offsets.get(group, retry, index)
            left += count(group, queue_id) + high - max(low, 0 if found is None else found[0])
        if left:
            remark = (
                f"the group [{group}] has {left} messages of [{topic}] in flight or to be tried again: let it finish"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)

"""How a consumer group reads a topic: it pulls queues, or it is given single messages (POP).

    REQUEST_MODE  key = group, 0x00, topic    value = JSON {"mode": "POP" | "PULL", "popShareQueueNum": number}

The mode is set by SET_MESSAGE_REQUEST_MODE (401), or becomes POP with the first POP of a group that never committed an
offset in the topic. A group without a mode pulls. Invariant: no group pulls and pops one topic, or each would get what
the other one has. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

PULL, POP = "PULL", "POP"


class RequestMode(msgspec.Struct, frozen=True, rename="camel"):
    """How a group reads a topic."""

    mode: str = PULL
    pop_share_queue_num: int = 0
    """With POP: 0, every member pops from all queues; else from its own and those of so many members after it."""


_decode = msgspec.json.Decoder(RequestMode).decode
_encode = msgspec.json.Encoder().encode


def _key(group: str, topic: str) -> bytes:
    return group.encode() + b"\x00" + topic.encode()


class RequestModes:
    """The modes of all groups."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.refuse: Callable[[str, int, str], Refused] = lambda _reason, code, remark: Refused(code, remark)
        """(reason, code, remark) -> the refusal; POP counts it."""

    def get(self, group: str, topic: str) -> RequestMode | None:
        """The mode of a group in a topic, None when it was never set."""
        found = self._store.state.get(state_kinds.REQUEST_MODE, _key(group, topic))
        return None if found is None else _decode(found[0])

    def pops(self, group: str, topic: str) -> bool:
        """Whether the group pops this topic."""
        found = self.get(group, topic)
        return found is not None and found.mode == POP

    def require_pull(self, group: str, topic: str) -> None:
        """Refused(ILLEGAL_OPERATION) when the group pops this topic."""
        if self.pops(group, topic):
            remark = f"the group [{group}] consumes the topic [{topic}] by POP; setConsumeMode (401) switches to PULL"
            raise self.refuse("mode", ResponseCode.ILLEGAL_OPERATION, remark)

    def put(self, group: str, topic: str, mode: RequestMode) -> int:
        """Set the mode; returns the position to wait for."""
        return self._store.append_state([self.change(group, topic, mode)])

    def change(self, group: str, topic: str, mode: RequestMode) -> StateChange:
        """The change that sets the mode."""
        return StateChange(state_kinds.REQUEST_MODE, _key(group, topic), _encode(mode))

    def forget(self, group: str) -> list[StateChange]:
        """The changes that remove all modes of a group."""
        prefix = _key(group, "")
        keys = [bytes(key) for key, _entry in self._store.state.items(state_kinds.REQUEST_MODE)]
        return [StateChange(state_kinds.REQUEST_MODE, key, None) for key in keys if key.startswith(prefix)]

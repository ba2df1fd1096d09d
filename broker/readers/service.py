"""RANGE_PULL (9005) answered from an attached store: the same request, answer and rules as at the broker.

What cannot be answered for certain is refused with its reason, and the asker goes to the broker. Staged rows are known
by their flag, because a reader knows no names; where a policy decides who may read what, it is asked with the topics
the records themselves name. Invariant: nothing at or above the confirm position and nothing staged is ever in an
answer. Loop thread of the reader process only.
"""

from __future__ import annotations

import numpy as np

from broker.api.access import CONSUME, Authorizer
from broker.api.pull_many import RANGE_COUNT_MAX, range_reply
from broker.readers.messages import ReaderReport
from broker.store.attached.store import AttachedStore
from broker.store.errors import CorruptLog, StoreError, Unsettled
from broker.store.read_result import NO_SUCH_QUEUE, RangeResult
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.pull_body import decode_range_pull
from remoting.protocol.record import FLAG_STAGED, RecordView
from remoting.transport.contracts import Peer

_FLAGS_AT = 48


class RangeService:
    """Answers the ranges of one reader process and counts them."""

    def __init__(self, store: AttachedStore, *, pull_bytes_max: int, authorizer: Authorizer | None = None) -> None:
        self._store = store
        self._pull_bytes_max = pull_bytes_max
        self._authorizer = authorizer or Authorizer()
        self._report = ReaderReport(refused={})

    @property
    def report(self) -> ReaderReport:
        """What was done so far."""
        self._report.retries = self._store.retries
        return self._report

    def range_pull(self, peer: Peer, command: Command) -> Command:
        """Records of one queue in [offset, end offset), with the start of each record in the blob."""
        self._report.requests += 1
        try:
            found = self._read(command)
            self._authorize(peer, command, found)
        except StoreError as error:
            self._count_refusal(_reason(error))
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"ask the broker: {error}") from error
        except (Refused, RemoteViolation) as error:
            self._count_refusal("not_authorized" if isinstance(error, Refused) else "malformed")
            raise
        self._report.records += len(found.starts)
        self._report.bytes += len(found.blob)
        return command.reply(body=range_reply(found))

    def _read(self, command: Command) -> RangeResult:
        want = decode_range_pull(command.body)
        bytes_max = min(want.max_bytes, self._pull_bytes_max)
        found = self._store.read_range(want.queue_id, want.offset, RANGE_COUNT_MAX, bytes_max, want.end_offset)
        flags = np.frombuffer(found.blob, "<u4")[(found.starts + np.uint32(_FLAGS_AT)) // 4]
        if (flags & FLAG_STAGED).any():
            return RangeResult(NO_SUCH_QUEUE, 0, 0, 0, 0)
        return found

    def _authorize(self, peer: Peer, command: Command, found: RangeResult) -> None:
        if self._authorizer.open:
            return
        views = (RecordView(memoryview(found.blob), at) for at in found.starts.tolist())
        for topic in sorted({bytes(view.mqtt_topic or view.topic) for view in views}):
            self._authorizer.authorize(peer, command, CONSUME, topic.decode("utf-8", "replace"))

    def _count_refusal(self, reason: str) -> None:
        self._report.refused[reason] = self._report.refused.get(reason, 0) + 1


def _reason(error: StoreError) -> str:
    if isinstance(error, Unsettled):
        return "unsettled"
    return "corrupt" if isinstance(error, CorruptLog) else "index"

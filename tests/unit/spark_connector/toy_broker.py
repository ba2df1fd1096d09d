"""A broker of lists on a real socket: just enough of it for the connector, and easy to break on purpose."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

import numpy as np

from remoting.filtering.judge import judge_of
from remoting.native import vectors
from remoting.protocol.bodies import append_body, pull_body, sink_body
from remoting.protocol.errors import CorruptRecord, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.protocol.records import image, names, record, topics
from remoting.protocol.records.record import RecordView

NAME = "broker-t"
QUEUES = 2


def make_entry(topic: str, body: bytes = b"x", *, mqtt: bool = True, client: bytes = b"c") -> RecordView:
    """One message as it would be appended."""
    if mqtt:
        raw = image.encode_mqtt_image(topic.encode(), body, 1, 7, client)
    else:
        raw = image.encode_image(
            flags=0, queue_index=0xFFFF, born_ms=7, topic=topic.encode(), keys=b"k", tags=b"t", body=body
        )
    return image.image_views(b"".join([raw]))[0]


def encode(entry: RecordView, position: int = 0) -> bytes:
    """The record of a message."""
    return image.stamp(entry, epoch=1, position=position, store_ms=position, dispatch=[(1, 0), (2, 0)])


class Queue:
    """One queue: its first offset and its records."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.min = 0
        self.records: list[bytes] = []
        self.damaged = range(0)
        """Offsets that cannot be read."""

    @property
    def max(self) -> int:
        return self.min + len(self.records)

    def drop_first(self, count: int) -> None:
        """Drop records as retention does."""
        del self.records[:count]
        self.min += count


class ToyBroker:
    """Serves any number of connections, one thread each; `faults` may replace or swallow an answer."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], Queue] = {}
        self.ids_used = 0
        self.staged: dict[tuple[str, int, int, int], list[RecordView]] = {}
        self.ledger: dict[str, int] = {}
        self.plans: dict[str, list[sink_body.Planned]] = {}
        self.digests: dict[str, sink_body.BatchDigest | None] = {}
        self.prepared: list[tuple[str, int, list[sink_body.StageHandle]]] = []
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.requests: list[int] = []
        self.faults: list[Callable[[Command], Command | None]] = []
        self.log = ""
        """The identity of its log; one of an earlier release has none."""
        self.unproven = 0
        """How often it cannot tell yet that an offset lies behind the end of a queue."""
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._peers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening and close all connections."""
        with contextlib.suppress(OSError):
            # Closing alone does not wake a thread that waits in accept().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        """Cut every connection as a crash would."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()
        self._peers.clear()

    def publish(self, topic: str, bodies: Sequence[bytes], *, mqtt: bool = True) -> None:
        """Store messages as the real broker would."""
        for body in bodies:
            self.append(make_entry(topic, body, mqtt=mqtt))

    def append(self, entry: RecordView) -> None:
        """Into the parent queue and the exact topic's light queue."""
        topic = entry.topic.decode()
        for number in range(QUEUES):
            self.queue(topic, number)
        exact = entry.mqtt_topic
        index = names.queue_index(exact, QUEUES) if exact is not None else 0
        raw = encode(entry, sum(len(queue.records) for queue in self.queues.values()))
        self.queue(topic, index).records.append(raw)
        if exact is not None:
            self.queue(names.light_queue_name(exact).decode(), 0).records.append(raw)

    def queue(self, topic: str, number: int) -> Queue:
        """The queue of that name, created on first use."""
        found = self.queues.get((topic, number))
        if found is None:
            self.ids_used += 1
            found = self.queues[topic, number] = Queue(self.ids_used)
        return found

    def delete(self, topic: str) -> None:
        """Delete a topic with its queues, whose ids are not used again."""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        decoder = FrameDecoder()
        try:
            while data := peer.recv(65536):
                for command in decoder.feed(data):
                    with self._lock:
                        reply = self._answer(command)
                    if reply is None:
                        peer.close()
                        return
                    peer.sendall(encode_frame(reply))
        except OSError:
            return

    def _answer(self, command: Command) -> Command | None:
        self.requests.append(command.code)
        if self.faults:
            return self.faults.pop(0)(command)
        return self.answer(command)

    def answer(self, command: Command) -> Command:
        """The answer of a healthy broker."""
        handlers = {
            RequestCode.QUEUE_BOUNDS: self._bounds,
            RequestCode.RANGE_PULL: self._pull,
            RequestCode.FILTERED_PULL: self._pull_filtered,
            RequestCode.MULTI_PULL: self._pull_checked,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._offset,
            RequestCode.STAGE: self._stage,
            RequestCode.COMMIT_BATCH: self._commit,
            RequestCode.ABORT_BATCH: self._abort,
            RequestCode.LEDGER: self._last,
            RequestCode.APPEND_MANY: self._append,
        }
        handler = handlers.get(command.code)
        if handler is None:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
        try:
            return command.reply(body=handler(command))
        except Refused as refusal:
            return command.reply(refusal.code, refusal.remark)

    def _bounds(self, command: Command) -> bytes:
        request = pull_body.decode_bounds_request(command.body)
        wanted, light = set(request.topics), None
        if request.filter is not None:
            first = request.filter.partition("/")[0]
            wanted |= {topic for topic, _ in self.queues if first in {"+", "#"} and not topic.startswith("%LMQ%")}
            wanted.add(names.parent_topic(request.filter.encode()).decode())
            found = self.queues.get((names.light_queue_name(request.filter.encode()).decode(), 0))
            if found is not None and not topics.is_wildcard(request.filter):
                light = pull_body.LightBounds(found.id, found.min, found.max, request.at_ms and found.min)
        queues = [
            pull_body.QueueBounds(
                topic,
                number,
                queue.id,
                queue.min,
                queue.max,
                None if request.at_ms is None else min(queue.min + 1, queue.max),
            )
            for (topic, number), queue in sorted(self.queues.items())
            if topic in wanted
        ]
        return pull_body.encode_bounds_reply(pull_body.QueueBoundsReply(NAME, 1, 0, queues, light, log=self.log))

    def _pull(self, command: Command) -> bytes:
        want = pull_body.decode_range_pull(command.body)
        queue = next((one for one in self.queues.values() if one.id == want.queue_id), None)
        if queue is None:
            return pull_body.encode_range_pull_reply(pull_body.QueueRecords(want.queue_id, 2, 0, 0, 0, 0))
        if want.offset in queue.damaged:
            behind = queue.damaged.stop
            return pull_body.encode_range_pull_reply(
                pull_body.QueueRecords(queue.id, 4, behind, behind, queue.min, queue.max)
            )
        first = max(want.offset, queue.min)
        status = 3 if want.offset > queue.max else int(want.offset < queue.min)
        found = queue.records[first - queue.min : max(0, want.end_offset - queue.min)][: self.pull_rows_max]
        if first < queue.damaged.start:
            found = found[: queue.damaged.start - first]
        return pull_body.encode_range_pull_reply(
            pull_body.QueueRecords(queue.id, status, first, first + len(found), queue.min, queue.max, found)
        )

    def _pull_filtered(self, command: Command) -> bytes:
        want = pull_body.decode_filtered_pull(command.body)
        plain = Command(0, body=pull_body.encode_range_pull(want.queue_id, want.offset, want.end_offset, 1))
        found = pull_body.decode_range_pull_reply(self._pull(plain))
        starts = np.frombuffer(found.starts, "<u4").astype(np.int64)
        places = vectors.column(starts.tolist(), "q")
        wanted = np.array(judge_of(want.row_filter).mask(found.blob, places).tolist(), bool)
        sizes = np.diff(np.append(starts, len(found.blob)))
        chosen = [bytes(found.blob[at : at + size]) for at, size in zip(starts[wanted], sizes[wanted], strict=True)]
        edges = np.cumsum([0, *map(len, chosen)])[:-1].astype("<u4")
        kept = pull_body.PulledRange(
            found.status, found.first_offset, found.next_offset, found.min_offset, found.max_offset, len(chosen),
            memoryview(edges.tobytes()), memoryview(b"".join(chosen)),
            memoryview(np.flatnonzero(wanted).astype("<u4").tobytes()),
        )  # fmt: skip
        return pull_body.encode_filtered_reply(kept)

    def _pull_checked(self, command: Command) -> bytes:
        """One queue with checksums read: a record that fails its checks is damaged from then on."""
        wants = pull_body.decode_multi_pull(command.body)
        return pull_body.encode_multi_pull_reply([self._pull_one(want) for want in wants])

    def _pull_one(self, want: pull_body.QueueWant) -> pull_body.QueueRecords:
        queue = next((one for one in self.queues.values() if one.id == want.queue_id), None)
        if queue is None:
            return pull_body.QueueRecords(want.queue_id, pull_body.STATUS_NO_SUCH_QUEUE, 0, 0, 0, 0)
        if want.offset < queue.min:
            return pull_body.QueueRecords(queue.id, 1, queue.min, queue.min, queue.min, queue.max)
        if want.offset > queue.max and not self.unproven:
            status = pull_body.STATUS_OFFSET_TOO_LARGE
            return pull_body.QueueRecords(queue.id, status, want.offset, queue.max, queue.min, queue.max)
        self.unproven = max(0, self.unproven - (want.offset > queue.max))
        found: list[bytes] = []
        at, status = want.offset, 0
        for raw in queue.records[want.offset - queue.min :][: want.max_count]:
            try:
                record.check_record(raw, 0, None)
            except CorruptRecord:
                queue.damaged = range(at, at + 1)
                if not found:
                    status, at = 4, at + 1
                break
            found.append(raw)
            at += 1
        return pull_body.QueueRecords(queue.id, status, want.offset, at, queue.min, queue.max, found)

    pull_rows_max = 7
    """Few, so that a small test needs several pulls."""

    def _offset(self, command: Command) -> bytes:
        fields = command.fields
        self.offsets[fields["consumerGroup"], fields["topic"], int(fields["queueId"])] = int(fields["commitOffset"])
        return b""

    def _stage(self, command: Command) -> bytes:
        fields = command.fields
        key = (fields["sink"], int(fields["batch"]), int(fields["partition"]), int(fields["attempt"]))
        rows = self.staged.setdefault(key, [])
        repeated = len(rows) - int(fields["first"])
        if repeated < 0:
            # The frame before was refused, and the sender has not given this connection up yet.
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{-repeated} rows before these are missing")
        rows += image.image_views(command.body)[repeated:]
        return sink_body.encode(sink_body.StageReply(len(rows)))

    def _commit(self, command: Command) -> bytes:
        request = sink_body.decode(sink_body.CommitBatch, command.body)
        if request.batch <= self.ledger.get(request.sink, -1):
            return sink_body.encode(self._committed(request))
        chosen = [self.staged[request.sink, request.batch, one.partition, one.attempt] for one in request.handles]
        assert [len(rows) for rows in chosen] == [one.count for one in request.handles]
        if request.prepare:
            self.prepared.append((request.sink, request.batch, request.handles))
            return sink_body.encode(sink_body.BatchCommitted(False, 0))
        for entry in (entry for rows in chosen for entry in rows):
            self.append(entry)
        self.ledger[request.sink], self.plans[request.sink] = request.batch, request.plan
        self.digests[request.sink] = request.digest
        return sink_body.encode(sink_body.BatchCommitted(False, sum(map(len, chosen)), request.plan, request.digest))

    def _committed(self, request: sink_body.CommitBatch) -> sink_body.BatchCommitted:
        if request.batch < self.ledger[request.sink]:
            return sink_body.BatchCommitted(True, 0)
        plan, digest = self.plans.get(request.sink, []), self.digests.get(request.sink)
        return sink_body.BatchCommitted(True, 0, plan, digest)

    def _abort(self, command: Command) -> bytes:
        request = sink_body.decode(sink_body.AbortBatch, command.body)
        if request.batch == sink_body.NO_BATCH:
            self.ledger.pop(request.sink, None)
        for key in [key for key in self.staged if key[0] == request.sink and request.batch in (key[1], -1)]:
            del self.staged[key]
        return b""

    def _last(self, command: Command) -> bytes:
        sink = sink_body.decode(sink_body.Ledger, command.body).sink
        plan, digest = self.plans.get(sink, []), self.digests.get(sink)
        return sink_body.encode(sink_body.LedgerState(self.ledger.get(sink, -1), plan, digest))

    def _append(self, command: Command) -> bytes:
        entries = image.image_views(command.body)
        for entry in entries:
            self.append(entry)
        return append_body.encode_append_reply(0, [(0, 0)] * len(entries))

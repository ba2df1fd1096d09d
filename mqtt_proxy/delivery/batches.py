"""Runs of plain messages straight from a chunk's records into a session's output.

Most deliveries need nothing but head, packet id and payload: `packets.core.write_run` makes those of a whole run in
one call. QoS 0 packets are the same for every subscriber that stands at the same place, so the chunk keeps the last
ones made and the next session sends the very same bytes. Whatever is not plain is left to the caller.
Invariant: the cursor, the window and the unacknowledged offsets move with the packets written. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

from typing import cast

from mqtt_proxy.delivery.record_cache import Chunk
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.mqtt.codec.limits import PACKET_SIZE_BYTES_MAX
from mqtt_proxy.mqtt.session.session_state import SessionState
from remoting.native import packets
from remoting.native.packet_contracts import FULL, SPECIAL, Written

Shared = tuple[tuple[int, int, int, int, int], Written]
"""What run it is (index, portion, QoS, level, bytes that may be begun) and its packets."""


def send_run(session: SessionState, source: Source, chunk: Chunk, portion: int, budget: int) -> tuple[int, int, bool]:
    """Send up to `portion` plain messages at the source's cursor; (how many, payload bytes, whether the next is not
    plain).
    """
    terms, outgoing = session.terms, session.outgoing
    if outgoing.aliases is not None or terms.packet_size_out_max != PACKET_SIZE_BYTES_MAX:
        return 0, 0, True  # its packets differ from those of others of its level
    offset = source.cursor
    key = (offset - chunk.first, portion, source.qos, terms.level, budget)
    shared = cast("Shared | None", chunk.shared)
    if shared is not None and shared[0] == key:
        written = shared[1]
    else:
        free = max(0, outgoing.in_flight_max - len(outgoing.window))
        written = packets.core.write_run(
            chunk.blob, chunk.starts, offset - chunk.first, portion, source.qos, terms.level, free, budget,
            outgoing.last_id, outgoing.window, source.unacked, source, offset,
        )  # fmt: skip
        outgoing.last_id = written[4]
        if written[1] and not written[2] and written[5] != FULL:  # full is this session's window, not the next one's
            chunk.shared = key, written
    output, taken, _with_qos, spent, _last_id, reason = written
    if taken:
        session.out.append(output)
        source.cursor = offset + taken
    return taken, spent, reason == SPECIAL

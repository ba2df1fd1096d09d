"""The hot loops of the proxy: runs of PUBLISH and runs of PUBACK, taken straight out of the read buffer.

Each takes the plain, common form only and stops in front of anything else (a packet that is not complete, a topic not
seen before, QoS 2, a wrong flag, a long length, at level 5 a property); the complete decoder `codec` then judges that
packet. So nothing here may accept what `codec` refuses; the property tests hold the two against each other.
Functions of locals over plain ints: 0.3-0.5 µs per message instead of 1.5 (`benchmarks/hot/bench_mqtt_session.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from mqtt_proxy.mqtt.packets import LEVEL_3, Publish

if TYPE_CHECKING:
    from mqtt_proxy.mqtt.session_state import SessionState

_MISSING = object()


def scan_publishes(
    data: bytes,
    position: int,
    end: int,
    *,
    body_size_bytes_max: int,
    known_topics: Container[bytes],
    publishes: list[Publish],
    packet_ids: list[int],
) -> int:
    """Append the run of PUBLISHes at `position` to `publishes`, the ids of QoS 1 to `packet_ids`; where the run
    stops.
    """
    take = publishes.append
    await_acknowledgement = packet_ids.append
    while position + 5 <= end:  # the shortest PUBLISH: two header bytes, a topic of one
        first = data[position]
        if first & 0xF4 != 0x30 or first & 0x0A == 0x08:  # PUBLISH of QoS 0 or 1, DUP only with QoS 1
            break
        length = data[position + 1]
        body = position + 2
        if length > 0x7F:
            if data[body] > 0x7F:
                break
            length = length & 0x7F | data[body] << 7
            body += 1
        stop = body + length
        topic_stop = body + 2 + (data[body] << 8 | data[body + 1])
        if stop > end or length > body_size_bytes_max or topic_stop > stop:
            break
        topic = data[body + 2 : topic_stop]
        if topic not in known_topics:
            break
        if first & 2:
            if topic_stop + 2 > stop:
                break
            packet_id = data[topic_stop] << 8 | data[topic_stop + 1]
            if not packet_id:
                break
            take(Publish(topic, data[topic_stop + 2 : stop], 1, first & 1 == 1, first & 8 == 8, packet_id))
            await_acknowledgement(packet_id)
        else:
            take(Publish(topic, data[topic_stop:stop], 0, first & 1 == 1, False, 0))
        position = stop
    return position


def scan_publishes_5(
    data: bytes,
    position: int,
    end: int,
    *,
    body_size_bytes_max: int,
    known_topics: Container[bytes],
    publishes: list[Publish],
    packet_ids: list[int],
    room: int,
) -> int:
    """As `scan_publishes`, for PUBLISHes of MQTT 5 without properties; at most `room` of them with QoS 1.

    A function of its own, so that neither version pays for the other.
    """
    take = publishes.append
    await_acknowledgement = packet_ids.append
    while position + 6 <= end:  # the shortest PUBLISH: two header bytes, a topic of one, no properties
        first = data[position]
        if first & 0xF4 != 0x30 or first & 0x0A == 0x08:
            break
        length = data[position + 1]
        body = position + 2
        if length > 0x7F:
            high = data[body]
            if high > 0x7F or high == 0:
                break
            length = length & 0x7F | high << 7
            body += 1
        stop = body + length
        topic_stop = body + 2 + (data[body] << 8 | data[body + 1])
        behind = topic_stop + (first & 2)  # QoS 1 has a packet id of two bytes; then comes the property length
        if stop > end or length > body_size_bytes_max or behind >= stop or data[behind]:
            break
        topic = data[body + 2 : topic_stop]
        if topic not in known_topics:
            break
        if first & 2:
            packet_id = data[topic_stop] << 8 | data[topic_stop + 1]
            if not packet_id or room <= 0:
                break
            room -= 1
            take(Publish(topic, data[behind + 1 : stop], 1, first & 1 == 1, first & 8 == 8, packet_id))
            await_acknowledgement(packet_id)
        else:
            take(Publish(topic, data[behind + 1 : stop], 0, first & 1 == 1, False, 0))
        position = stop
    return position


def scan_acknowledgements(
    data: bytes,
    position: int,
    end: int,
    window: dict[int, object],
    tokens: list[object],
    exactly_once: Container[int] = (),
) -> int:
    """Take the run of PUBACKs at `position` out of `window`, their tokens into `tokens`; where the run stops. The ids
    in `exactly_once` are not for PUBACK.
    """
    while position + 4 <= end and data[position] == 0x40 and data[position + 1] == 2:
        packet_id = data[position + 2] << 8 | data[position + 3]
        if exactly_once and packet_id in exactly_once:
            break
        token = window.pop(packet_id, _MISSING)
        if token is _MISSING:
            break
        tokens.append(token)
        position += 4
    return position


def consume_runs(session: SessionState, data: bytes, position: int, end: int) -> int:
    """Take the runs of plain PUBLISHes and PUBACKs at `position` into the session; where the first packet begins that
    is neither.
    """
    before = -1
    while position != before and position < end:
        before = position
        if data[position] == 0x40:
            window, phases = session.outgoing.window, session.outgoing.phases
            position = scan_acknowledgements(data, position, end, window, session.acknowledged, phases)
            continue
        wanted = {
            "body_size_bytes_max": session.limits.packet_size_bytes_max,
            "known_topics": session.names.known,
            "publishes": session.publishes,
            "packet_ids": session.incoming.pending,
        }
        if session.level == LEVEL_3:
            position = scan_publishes(data, position, end, **wanted)  # type: ignore[arg-type]
        else:
            room = session.limits.receive_maximum - session.incoming.in_use
            position = scan_publishes_5(data, position, end, room=room, **wanted)  # type: ignore[arg-type]
    return position


class Scans:
    """The loops in use: these, or compiled ones that do the same (`mqtt_proxy.hot` puts them here)."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: Callable[[SessionState, bytes, int, int], int] = consume_runs


IN_USE = Scans()
"""What sessions call."""

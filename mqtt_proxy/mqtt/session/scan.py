"""The hot loops of the proxy: runs of PUBLISH and of acknowledgements, taken straight out of the read buffer.

Each takes the plain, common form only and stops before anything else (a packet that is not complete, a new topic, a QoS
2 id for the second time, a wrong flag, a long length, at level 5 a property); the complete decoder `codec` then handles
that packet. So nothing here may accept what `codec` and the handlers refuse; the property tests compare the two.
`compiled_scan` is the same over bytes in C, in use where it was built from the sources here (`choice`). Functions of
locals over plain ints: 0.3-0.5 µs per message instead of 1.5 (`benchmarks/hot/bench_mqtt_session.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from mqtt_proxy import WITHOUT_SCAN
from mqtt_proxy.mqtt.codec.packets import LEVEL_3, Publish
from mqtt_proxy.mqtt.codec.publish import images
from mqtt_proxy.mqtt.session.in_flight import CONFIRMED, PUBLISHED, RECEIVED, RELEASED, Incoming
from mqtt_proxy.mqtt.session.session_state import SessionState
from remoting.native.choice import Choice, choose

_MISSING = object()
_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70
"""First bytes of the acknowledgements."""


def _is_publish(first: int) -> bool:
    """Whether this is a valid first byte of a PUBLISH: QoS 0 to 2, DUP only above QoS 0."""
    return first & 0xF0 == 0x30 and first & 0x06 != 0x06 and first & 0x0E != 0x08


def _expects(incoming: Incoming, first: int, packet_id: int) -> bool:
    """Take the id of a PUBLISH with this first byte; False, and nothing has changed, when it is not allowed."""
    if first & 4:
        return packet_id != 0 and incoming.take_new(packet_id)
    if packet_id:
        incoming.pending.append(packet_id)
    return packet_id != 0


def scan_publishes(
    data: bytes,
    position: int,
    end: int,
    *,
    packet_size_bytes_max: int,
    known_topics: Mapping[bytes, bytes],
    publishes: list[Publish],
    incoming: Incoming,
) -> int:
    """Append the run of PUBLISHes at `position` to `publishes`, those with an id to `incoming`; where the run stops."""
    take = publishes.append
    while position + 5 <= end:  # the shortest PUBLISH: two header bytes, a topic of one
        first = data[position]
        if not _is_publish(first):
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
        if stop > end or stop - position > packet_size_bytes_max or topic_stop > stop:
            break
        topic = known_topics.get(data[body + 2 : topic_stop])
        if topic is None:
            break
        if first & 6:
            if topic_stop + 2 > stop:
                break
            packet_id = data[topic_stop] << 8 | data[topic_stop + 1]
            if not _expects(incoming, first, packet_id):
                break
            take(Publish(topic, data[topic_stop + 2 : stop], first >> 1 & 3, first & 1 == 1, first & 8 == 8, packet_id))
        else:
            take(Publish(topic, data[topic_stop:stop], 0, first & 1 == 1, False, 0))
        position = stop
    return position


def scan_publishes_5(
    data: bytes,
    position: int,
    end: int,
    *,
    packet_size_bytes_max: int,
    known_topics: Mapping[bytes, bytes],
    publishes: list[Publish],
    incoming: Incoming,
    room: int,
) -> int:
    """As `scan_publishes`, for PUBLISHes of MQTT 5 without properties; at most `room` of them with an id.

    A function of its own, so that neither version costs the other time.
    """
    take = publishes.append
    while position + 6 <= end:  # the shortest PUBLISH: two header bytes, a topic of one, no properties
        first = data[position]
        if not _is_publish(first):
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
        behind = topic_stop + 2 if first & 6 else topic_stop  # behind the packet id comes the property length
        if stop > end or stop - position > packet_size_bytes_max or behind >= stop or data[behind]:
            break
        topic = known_topics.get(data[body + 2 : topic_stop])
        if topic is None:
            break
        if first & 6:
            packet_id = data[topic_stop] << 8 | data[topic_stop + 1]
            if room <= 0 or not _expects(incoming, first, packet_id):
                break
            room -= 1
            take(Publish(topic, data[behind + 1 : stop], first >> 1 & 3, first & 1 == 1, first & 8 == 8, packet_id))
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
    """Remove the run of PUBACKs at `position` from `window`, their tokens go to `tokens`; where the run stops. The ids
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


def scan_exact(session: SessionState, data: bytes, position: int, end: int) -> int:
    """Take the run of PUBREC, PUBREL and PUBCOMP at `position` that their phases allow; where it stops."""
    window, phases = session.outgoing.window, session.outgoing.phases
    exactly_once = session.incoming.exactly_once
    while position + 4 <= end and data[position + 1] == 2:
        first = data[position]
        packet_id = data[position + 2] << 8 | data[position + 3]
        if first == _PUBREC:
            if phases.get(packet_id) != PUBLISHED:
                break
            phases[packet_id] = RECEIVED
            session.gathered.receiving().append(packet_id)
        elif first == _PUBREL:
            if exactly_once.get(packet_id) != CONFIRMED:
                break
            session.incoming.release(packet_id)
            session.gathered.releasing().append(packet_id)
        else:
            if first != _PUBCOMP or phases.get(packet_id) != RELEASED or packet_id not in window:
                break
            session.outgoing.finish(packet_id, session.gathered.acknowledging())
        position += 4
    return position


def consume_runs(session: SessionState, data: bytes, position: int, end: int) -> int:
    """Take the runs of plain PUBLISHes and acknowledgements at `position` into the session; where the first other
    packet begins.
    """
    before = -1
    while position != before and position < end:
        before = position
        first = data[position]
        if first == _PUBACK:
            window, phases = session.outgoing.window, session.outgoing.phases
            position = scan_acknowledgements(data, position, end, window, session.gathered.acknowledging(), phases)
            continue
        if first in (_PUBREC, _PUBREL, _PUBCOMP):
            position = scan_exact(session, data, position, end)
            continue
        wanted = {
            "packet_size_bytes_max": session.limits.packet_size_bytes_max,
            "known_topics": session.names.known,
            "publishes": session.gathered.publishing(),
            "incoming": session.incoming,
        }
        if session.terms.level == LEVEL_3:
            position = scan_publishes(data, position, end, **wanted)  # type: ignore[arg-type]
        else:
            room = session.limits.receive_maximum - session.incoming.in_use
            position = scan_publishes_5(data, position, end, room=room, **wanted)  # type: ignore[arg-type]
        session.publish_bytes += position - before
    return position


@dataclass(frozen=True, slots=True)
class ScanCore:
    """The loops of one twin: these, or compiled ones with the same signatures."""

    name: str
    scan_publishes: Callable[..., int]
    scan_publishes_5: Callable[..., int]
    scan_acknowledgements: Callable[..., int]
    scan_exact: Callable[[SessionState, bytes, int, int], int]
    consume_runs: Callable[[SessionState, bytes, int, int], int]
    """Called by sessions."""
    images: Callable[[list[Publish], bytes, int, bool], tuple[bytes, list[int]]]
    """As `codec.publish.images`: called by the publisher."""


def pure_core() -> ScanCore:
    """Return the loops of this module and of `codec.publish`."""
    return ScanCore("pure", scan_publishes, scan_publishes_5, scan_acknowledgements, scan_exact, consume_runs, images)


def compiled_core() -> ScanCore:
    """Return the compiled loops. Raises ImportError where they were not built."""
    from mqtt_proxy.mqtt.session import compiled_scan as compiled

    return ScanCore(
        "compiled", compiled.scan_publishes, compiled.scan_publishes_5, compiled.scan_acknowledgements,
        compiled.scan_exact, compiled.consume_runs, compiled.images,
    )  # fmt: skip


choice: Choice[ScanCore] = choose(compiled_core, pure_core, WITHOUT_SCAN)
"""Which twin is in use, and why."""
runs: Callable[[SessionState, bytes, int, int], int] = choice.core.consume_runs
"""The loops in use; tests replace them with another twin's."""

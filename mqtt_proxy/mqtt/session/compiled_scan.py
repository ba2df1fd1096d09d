"""The compiled twin of `scan`: PUBLISH and acknowledgements out of the read buffer, publishes into record images.

Pure-Python-mode Cython; C pointers make it useless uncompiled. Invariant: takes exactly what `scan` takes, byte for
byte, and makes the images that `codec.publish` makes. Thread rule: loop thread, with the GIL.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.mqtt_proxy.mqtt.codec.publish import Publish
from cython.cimports.mqtt_proxy.mqtt.session.in_flight import Incoming, Outgoing
from cython.cimports.mqtt_proxy.mqtt.session.session_state import SessionState

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from mqtt_proxy.mqtt.codec import packets, publish
from mqtt_proxy.mqtt.session import in_flight
from remoting.protocol.records import image, record

LEVEL_3 = cython.declare(cython.int, packets.LEVEL_3)
CONFIRMED = cython.declare(object, in_flight.CONFIRMED)
PUBLISHED = cython.declare(object, in_flight.PUBLISHED)
RECEIVED = cython.declare(object, in_flight.RECEIVED)
RELEASED = cython.declare(object, in_flight.RELEASED)
NO_IDS = cython.declare(tuple, ())
MISSING = cython.declare(object, object())
HEADER = cython.declare(cython.Py_ssize_t, record.HEADER_SIZE)
MESSAGE = cython.declare(cython.uint, record.MESSAGE)
MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
RETAIN = cython.declare(cython.uint, record.FLAG_RETAIN)
ANY_QUEUE = cython.declare(cython.uint, image.QUEUE_INDEX_ANY)
META_OF = cython.declare(object, image.mqtt_meta)
IMAGE = cython.declare(object, publish.image_of)

ImageHead = cython.struct(
    total=cython.uint, magic=cython.uint, packet_id=cython.uint, epoch=cython.uint, position=cython.ulonglong,
    born_ms=cython.longlong, store_ms=cython.longlong, body_len=cython.uint, body_off=cython.uint, flags=cython.uint,
    count=cython.uint, n_dispatch=cython.ushort, n_props=cython.ushort, topic_len=cython.ushort,
    keys_len=cython.ushort, tags_len=cython.ushort, props_len=cython.ushort, tag_hash=cython.uint,
    producer_seq=cython.ulonglong,
)  # fmt: skip
assert cython.sizeof(ImageHead) == HEADER, "the layout of an image's head"


@cython.cfunc
@cython.inline
def _slice(data: cython.p_char, start: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> bytes:
    return PyBytes_FromStringAndSize(data + start, stop - start)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is(topic, text: cython.p_char, length: cython.Py_ssize_t) -> cython.bint:
    """Whether these bytes are the topic of the previous publish: a device uses one over and over."""
    if topic is None or len(cython.cast(bytes, topic)) != length:
        return False
    return memcmp(PyBytes_AS_STRING(topic), text, length) == 0


Found = cython.struct(
    first=cython.int, topic=cython.Py_ssize_t, topic_stop=cython.Py_ssize_t, payload=cython.Py_ssize_t,
    stop=cython.Py_ssize_t, packet_id=cython.int,
)  # fmt: skip
"""Where the parts of one PUBLISH are."""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _body(
    data: cython.pointer(cython.uchar), at: cython.Py_ssize_t, strict: cython.bint, length: cython.p_Py_ssize_t
) -> cython.Py_ssize_t:
    """Where the body of the packet at `at` begins, 0 when its length takes more than two bytes (`strict`: needlessly
    many); its length.
    """
    length[0] = data[at + 1]
    if length[0] <= 0x7F:
        return at + 2
    if data[at + 2] > 0x7F or (strict and data[at + 2] == 0):
        return 0
    length[0] = length[0] & 0x7F | data[at + 2] << 7
    return at + 3


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _find(
    data: cython.pointer(cython.uchar),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    largest: cython.Py_ssize_t,
    level_5: cython.bint,
    found: cython.pointer(Found),
) -> cython.bint:
    """Whether a whole plain PUBLISH stands at `at`."""
    length: cython.Py_ssize_t
    found.first = data[at]
    if found.first & 0xF0 != 0x30 or found.first & 0x06 == 0x06 or found.first & 0x0E == 0x08:  # DUP only above QoS 0
        return False
    has_id: cython.bint = found.first & 0x06 != 0
    body: cython.Py_ssize_t = _body(data, at, level_5, cython.address(length))
    if body == 0 or body + length > end or body + length - at > largest or length < 2:
        return False
    found.topic, found.stop = body + 2, body + length
    found.topic_stop = found.topic + (data[body] << 8 | data[body + 1])
    found.payload = found.topic_stop + 2 * has_id
    if found.payload + level_5 > found.stop or (level_5 and data[found.payload]):
        return False
    found.payload += level_5
    found.packet_id = 0
    if has_id:
        found.packet_id = data[found.topic_stop] << 8 | data[found.topic_stop + 1]
    return not has_id or found.packet_id != 0


@cython.cfunc
@cython.exceptval(-1)
def _scan(
    source: bytes,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    largest: cython.Py_ssize_t,
    known_topics: dict,
    publishes: list,
    incoming: Incoming,
    level_5: cython.bint,
    room: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """The run of plain PUBLISHes at `position`; where it stops."""
    data: cython.pointer(cython.uchar) = cython.cast(cython.pointer(cython.uchar), PyBytes_AS_STRING(source))
    text: cython.p_char = PyBytes_AS_STRING(source)
    pending: list = incoming.pending
    topic: bytes = None
    one: Found
    if end > len(source):
        raise IndexError(end)
    while position + 5 + level_5 <= end:  # the shortest PUBLISH
        if not _find(data, position, end, largest, level_5, cython.address(one)):
            break
        if not _is(topic, text + one.topic, one.topic_stop - one.topic):
            topic = known_topics.get(_slice(text, one.topic, one.topic_stop))
        if topic is None or (one.packet_id and room <= 0):
            break
        first: cython.int = one.first
        if one.packet_id:
            if first & 4 == 0:
                pending.append(one.packet_id)
            elif not incoming.take_new(one.packet_id):
                break
            room -= 1
        publish: Publish = Publish.__new__(Publish)
        publish.topic = topic
        publish.payload = _slice(text, one.payload, one.stop)
        publish.qos, publish.retain, publish.dup = first >> 1 & 3, first & 1 != 0, first & 8 != 0
        publish.packet_id = one.packet_id
        publish.subscription_ids = NO_IDS
        publishes.append(publish)
        position = one.stop
    return position


def scan_publishes(
    data: bytes,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    *,
    packet_size_bytes_max: cython.Py_ssize_t,
    known_topics: dict,
    publishes: list,
    incoming: Incoming,
):
    """The run of plain PUBLISHes of MQTT 3.1.1 at `position`; where it stops."""
    return _scan(data, position, end, packet_size_bytes_max, known_topics, publishes, incoming, False, end + 1)


def scan_publishes_5(
    data: bytes,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    *,
    packet_size_bytes_max: cython.Py_ssize_t,
    known_topics: dict,
    publishes: list,
    incoming: Incoming,
    room: cython.Py_ssize_t,
):
    """The run of PUBLISHes of MQTT 5 without properties at `position`, at most `room` with an id; where it stops."""
    return _scan(data, position, end, packet_size_bytes_max, known_topics, publishes, incoming, True, room)


def scan_acknowledgements(
    data: bytes,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    window: dict,
    tokens: list,
    exactly_once=(),
):
    """The run of PUBACKs at `position`, their tokens out of `window` into `tokens`; where it stops."""
    at: cython.pointer(cython.uchar) = cython.cast(cython.pointer(cython.uchar), PyBytes_AS_STRING(data))
    guarded: cython.bint = bool(exactly_once)
    if end > len(data):
        raise IndexError(end)
    while position + 4 <= end and at[position] == 0x40 and at[position + 1] == 2:
        packet_id = at[position + 2] << 8 | at[position + 3]
        if guarded and packet_id in exactly_once:
            break
        token = window.pop(packet_id, MISSING)
        if token is MISSING:
            break
        tokens.append(token)
        position += 4
    return position


@cython.cfunc
@cython.exceptval(-1)
def _scan_exact(
    session: SessionState, at: cython.pointer(cython.uchar), position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The run of PUBREC, PUBREL and PUBCOMP at `position` that their phases allow; where it stops."""
    outgoing: Outgoing = session.outgoing
    incoming: Incoming = session.incoming
    window: dict = outgoing.window
    phases: dict = outgoing.phases
    exactly_once: dict = incoming.exactly_once
    while position + 4 <= end and at[position + 1] == 2:
        first: cython.int = at[position]
        packet_id: object = at[position + 2] << 8 | at[position + 3]
        if first == 0x50:
            if phases.get(packet_id) != PUBLISHED:
                break
            phases[packet_id] = RECEIVED
            session.gathered.receiving().append(packet_id)
        elif first == 0x62:
            if exactly_once.get(packet_id) != CONFIRMED:
                break
            incoming.release(packet_id)
            session.gathered.releasing().append(packet_id)
        else:
            if first != 0x70 or phases.get(packet_id) != RELEASED or packet_id not in window:
                break
            outgoing.finish(packet_id, session.gathered.acknowledging())
        position += 4
    return position


def scan_exact(session: SessionState, data: bytes, position: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """Take a run of PUBREC, PUBREL and PUBCOMP into the session: the compiled body of `scan.scan_exact`."""
    if end > len(data):
        raise IndexError(end)
    at: cython.pointer(cython.uchar) = cython.cast(cython.pointer(cython.uchar), PyBytes_AS_STRING(data))
    return _scan_exact(session, at, position, end)


def consume_runs(session: SessionState, data: bytes, position: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The runs of plain PUBLISHes and acknowledgements at `position` into the session; where another packet begins."""
    before: cython.Py_ssize_t = -1
    level_5: cython.bint = session.terms.level != LEVEL_3
    room: cython.Py_ssize_t
    first: cython.int
    at: cython.pointer(cython.uchar) = cython.cast(cython.pointer(cython.uchar), PyBytes_AS_STRING(data))
    if end > len(data):
        raise IndexError(end)
    while position != before and position < end:
        before = position
        first = at[position]
        if first == 0x40:
            outgoing: Outgoing = session.outgoing
            position = scan_acknowledgements(
                data, position, end, outgoing.window, session.gathered.acknowledging(), outgoing.phases
            )
        elif first == 0x50 or first == 0x62 or first == 0x70:
            position = _scan_exact(session, at, position, end)
        else:
            limits, incoming = session.limits, session.incoming
            room = limits.receive_maximum - incoming.in_use if level_5 else end + 1
            position = _scan(
                data, position, end, limits.packet_size_bytes_max, session.names.known, session.gathered.publishing(),
                incoming, level_5, room,
            )  # fmt: skip
            session.publish_bytes += position - before
    return position


@cython.cfunc
@cython.exceptval(check=False)
def _put(to: cython.p_char, one: Publish, described: tuple, born_ms: cython.longlong) -> cython.Py_ssize_t:
    """Write the image of a publish without properties; return its size."""
    head: cython.pointer(ImageHead) = cython.cast(cython.pointer(ImageHead), to)
    meta: bytes = described[3]
    meta_end: cython.Py_ssize_t = HEADER + len(meta)
    body_off: cython.Py_ssize_t = (meta_end + 7) & ~7
    body_end: cython.Py_ssize_t = body_off + len(one.payload)
    total: cython.Py_ssize_t = (body_end + 7) & ~7
    memset(to, 0, HEADER)
    head.total, head.magic, head.epoch, head.born_ms = total, MESSAGE, ANY_QUEUE, born_ms
    head.body_len, head.body_off, head.count = len(one.payload), body_off, 1
    head.flags = MQTT | one.qos | (RETAIN if one.retain else 0)
    head.n_props, head.topic_len, head.props_len = 2, described[1], described[2]
    memcpy(to + HEADER, PyBytes_AS_STRING(meta), len(meta))
    memset(to + meta_end, 0, body_off - meta_end)
    memcpy(to + body_off, PyBytes_AS_STRING(one.payload), len(one.payload))
    memset(to + body_end, 0, total - body_end)
    return total


def images(publishes: list, client_id: bytes, born_ms: cython.longlong, exact: cython.bint):
    """The images of what one client sent, and packet ids of those that have one."""
    parts: list = []
    packet_ids: list = []
    size: cython.Py_ssize_t = 0
    topic = None
    described: tuple = None
    one: Publish
    careful: bytes
    row: cython.Py_ssize_t
    for one in publishes:
        if one.packet_id:
            packet_ids.append(one.packet_id)
        if one.properties is not None or (exact and one.qos > 1):
            careful = IMAGE(one, client_id, born_ms, exact)
            size += len(careful)
            parts.append(careful)
            continue
        if one.topic is not topic:  # it seldom changes within a run
            topic = one.topic
            described = META_OF(topic, client_id)
        size += (cython.cast(cython.Py_ssize_t, described[0]) + len(one.payload) + 7) & ~7
        parts.append(described)
    made: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
    to: cython.p_char = PyBytes_AS_STRING(made)
    for row in range(len(parts)):
        part = parts[row]
        if type(part) is bytes:
            careful = part
            memcpy(to, PyBytes_AS_STRING(careful), len(careful))
            to += len(careful)
        else:
            to += _put(to, cython.cast(Publish, publishes[row]), part, born_ms)
    return made, packet_ids

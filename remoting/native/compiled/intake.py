"""The compiled twin: publishes to store messages. Pure-Python-mode Cython; useless uncompiled.

Invariant: every slot of a message is filled, so that nobody can see one without. Thread rule: loop thread, holding the
interpreter's lock.
"""

import cython
from cython.cimports.remoting.native.compiled.machine import bare_instance, fill_slot, slot_place
from cython.cimports.remoting.transport.plain_publish import PlainPublish

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from broker.store.store_message import StoreMessage
from remoting.protocol.records import record
from remoting.protocol.records.image import mqtt_meta

MQTT = cython.declare(cython.int, record.FLAG_MQTT)
RETAIN = cython.declare(cython.int, record.FLAG_RETAIN)


def _place(name):
    place = slot_place(getattr(StoreMessage, name))
    assert place > 0, name
    return place


assert len(StoreMessage.__slots__) == 13, "a slot that is not filled here"
MESSAGE = cython.declare(object, StoreMessage)
META_OF = cython.declare(object, mqtt_meta)
QUEUES = cython.declare(cython.Py_ssize_t, _place("queues"))
BORN_MS = cython.declare(cython.Py_ssize_t, _place("born_ms"))
FLAGS = cython.declare(cython.Py_ssize_t, _place("flags"))
TAG_HASH = cython.declare(cython.Py_ssize_t, _place("tag_hash"))
N_PROPS = cython.declare(cython.Py_ssize_t, _place("n_props"))
TOPIC_LEN = cython.declare(cython.Py_ssize_t, _place("topic_len"))
KEYS_LEN = cython.declare(cython.Py_ssize_t, _place("keys_len"))
TAGS_LEN = cython.declare(cython.Py_ssize_t, _place("tags_len"))
PROPS_LEN = cython.declare(cython.Py_ssize_t, _place("props_len"))
META = cython.declare(cython.Py_ssize_t, _place("meta"))
BODY = cython.declare(cython.Py_ssize_t, _place("body"))
PRODUCER_SEQ = cython.declare(cython.Py_ssize_t, _place("producer_seq"))
COUNT = cython.declare(cython.Py_ssize_t, _place("count"))


@cython.cfunc
def _message(queues, born_ms, flags: cython.int, described: tuple, body) -> object:
    message = bare_instance(MESSAGE)
    fill_slot(message, QUEUES, queues)
    fill_slot(message, BORN_MS, born_ms)
    fill_slot(message, FLAGS, flags)
    fill_slot(message, TAG_HASH, 0)
    fill_slot(message, N_PROPS, 2)
    fill_slot(message, TOPIC_LEN, described[1])
    fill_slot(message, KEYS_LEN, 0)
    fill_slot(message, TAGS_LEN, 0)
    fill_slot(message, PROPS_LEN, described[2])
    fill_slot(message, META, described[3])
    fill_slot(message, BODY, body)
    fill_slot(message, PRODUCER_SEQ, 0)
    fill_slot(message, COUNT, 1)
    return message


def messages(
    runs,
    queues: dict,
    missed,
    too_large,
    body_bytes_max: cython.Py_ssize_t,
    properties_bytes_max: cython.Py_ssize_t,
):
    """The runs' publishes as messages with their queues."""
    made: list = []
    flags: cython.int
    one: PlainPublish
    body: bytes
    for client_id, born_ms, publishes in runs:
        topic = None
        described: tuple = None
        for one in publishes:
            body = one.payload
            if one.topic is not topic:  # it seldom changes within a run
                topic = one.topic
                described = META_OF(topic, client_id)
            if len(body) > body_bytes_max or described[2] > properties_bytes_max:
                raise too_large(len(body), described[2])
            flags = MQTT | one.qos
            if one.retain:
                flags |= RETAIN
            found = queues.get(topic)
            if not found:
                found = missed(topic)
            made.append(_message(found, born_ms, flags, described, body))
    return made

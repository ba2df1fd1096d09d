"""The compiled twin, fifth part: sorts queue ids, and entries of the tail into runs. Pure-Python-mode Cython.

Invariant: number for number what `reference.sort` makes; every array is checked before it is read through a pointer.
Thread rule: any thread, without the interpreter's lock; the entries asked for must not change meanwhile.
"""

import cython
import numpy as np
from cython.cimports.libc.string import memset
from cython.cimports.remoting.native.compiled.ring import Slot

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import SLOT, RunData

assert cython.sizeof(Slot) == SLOT.itemsize, SLOT.itemsize


def sort_entries(queues, slots, first: cython.longlong, end: cython.longlong):
    """Return entries [first, end) of a ring as a run: a radix sort of queue ids, then one pass over the entries."""
    length: cython.Py_ssize_t = end - first
    capacity: cython.longlong = len(queues)
    count: cython.Py_ssize_t
    dense: cython.bint
    assert queues.dtype == "<u4", queues.dtype
    assert slots.dtype == SLOT, slots.dtype
    assert queues.flags.c_contiguous
    assert slots.flags.c_contiguous
    assert queues.shape == slots.shape == (capacity,), (queues.shape, slots.shape)
    assert 0 <= first <= end <= first + capacity, (first, end, capacity)
    assert capacity <= 0xFFFFFFFF
    packed, other = np.empty(length + 1, np.uint64), np.empty(length + 1, np.uint64)
    qids: cython.p_uint = cython.cast(cython.p_uint, _address(queues))
    ring: cython.pointer(Slot) = cython.cast(cython.pointer(Slot), _address(slots))
    source: cython.p_ulonglong = cython.cast(cython.p_ulonglong, _address(packed))
    target: cython.p_ulonglong = cython.cast(cython.p_ulonglong, _address(other))
    with cython.nogil:
        source = _sort(qids, first, length, capacity, source, target)
        count = _queues_of(source, length)
    made = RunData(
        np.empty(count, np.uint32), np.empty(count, np.int64), np.empty(count, np.int64),
        np.empty(count + 1, np.uint32), np.empty(length, np.int64), np.empty(length, np.uint32),
        np.empty(length, np.uint32), None,
    )  # fmt: skip
    to_queue: cython.p_uint = cython.cast(cython.p_uint, _address(made.queues))
    to_first: cython.p_longlong = cython.cast(cython.p_longlong, _address(made.first_offsets))
    to_next: cython.p_longlong = cython.cast(cython.p_longlong, _address(made.next_offsets))
    to_start: cython.p_uint = cython.cast(cython.p_uint, _address(made.starts))
    to_position: cython.p_longlong = cython.cast(cython.p_longlong, _address(made.positions))
    to_size: cython.p_uint = cython.cast(cython.p_uint, _address(made.sizes))
    to_tag: cython.p_uint = cython.cast(cython.p_uint, _address(made.tags))
    with cython.nogil:
        _gather(source, length, ring, to_position, to_size, to_tag)
        dense = _directory(source, length, ring, to_queue, to_first, to_next, to_start)
    if not dense:
        made.offsets = np.empty(length, np.int64)
        to_offset: cython.p_longlong = cython.cast(cython.p_longlong, _address(made.offsets))
        with cython.nogil:
            _gather_offsets(source, length, ring, to_offset)
    return made


def order_by_queue(queues):
    """Return the stable order that sorts queue ids, without the interpreter's lock."""
    keys = np.ascontiguousarray(queues, np.uint32)
    length: cython.Py_ssize_t = len(keys)
    assert length <= 0xFFFFFFFF
    packed, other = np.empty(length + 1, np.uint64), np.empty(length + 1, np.uint64)
    qids: cython.p_uint = cython.cast(cython.p_uint, _address(keys))
    source: cython.p_ulonglong = cython.cast(cython.p_ulonglong, _address(packed))
    target: cython.p_ulonglong = cython.cast(cython.p_ulonglong, _address(other))
    order = np.empty(length, np.int64)
    to: cython.p_longlong = cython.cast(cython.p_longlong, _address(order))
    row: cython.Py_ssize_t
    with cython.nogil:
        source = _sort(qids, 0, length, length, source, target)
        for row in range(length):
            to[row] = cython.cast(cython.uint, source[row])
    return order


@cython.cfunc
def _address(array) -> cython.size_t:
    """Return where the array lies."""
    return array.__array_interface__["data"][0]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sort(
    qids: cython.p_uint,
    first: cython.longlong,
    length: cython.Py_ssize_t,
    capacity: cython.longlong,
    source: cython.p_ulonglong,
    target: cython.p_ulonglong,
) -> cython.p_ulonglong:
    """Fill one of the two with queue id << 32 | slot, sorted by queue id, stably; return it. Digits of eleven bits."""
    places: cython.uint[6144]
    row: cython.Py_ssize_t
    slot: cython.Py_ssize_t = first % capacity if capacity else 0
    shift: cython.int
    digit: cython.int
    queue: cython.uint
    memset(places, 0, 6144 * 4)
    for row in range(length):
        queue = qids[slot]
        source[row] = cython.cast(cython.ulonglong, queue) << 32 | cython.cast(cython.ulonglong, slot)
        places[queue & 2047] += 1
        places[2048 + (queue >> 11 & 2047)] += 1
        places[4096 + (queue >> 22)] += 1
        slot += 1
        if slot == capacity:
            slot = 0
    for digit in range(3 if length else 0):
        shift = 11 * digit
        if places[2048 * digit + (queue >> shift & 2047)] != length:  # else all have this digit
            _pass(places + 2048 * digit, source, target, length, 32 + shift)
            source, target = target, source
    return source


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pass(
    places: cython.p_uint,
    source: cython.p_ulonglong,
    target: cython.p_ulonglong,
    length: cython.Py_ssize_t,
    shift: cython.int,
) -> cython.void:
    """Put `source` into the order of one digit, of which `places` holds the counts."""
    row: cython.Py_ssize_t
    digit: cython.uint
    size: cython.uint
    at: cython.uint = 0
    for digit in range(2048):
        size = places[digit]
        places[digit] = at
        at += size
    for row in range(length):
        digit = source[row] >> shift & 2047
        target[places[digit]] = source[row]
        places[digit] += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _queues_of(packed: cython.p_ulonglong, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Count the different queue ids."""
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = 1 if length else 0
    for row in range(1, length):
        count += packed[row] >> 32 != packed[row - 1] >> 32
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _gather(
    packed: cython.p_ulonglong,
    length: cython.Py_ssize_t,
    ring: cython.pointer(Slot),
    positions: cython.p_longlong,
    sizes: cython.p_uint,
    tags: cython.p_uint,
) -> cython.void:
    """Write the columns."""
    row: cython.Py_ssize_t
    slot: cython.pointer(Slot)
    for row in range(length):
        slot = ring + cython.cast(cython.uint, packed[row])
        positions[row], sizes[row], tags[row] = slot.position, slot.size, slot.tag


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _gather_offsets(
    packed: cython.p_ulonglong, length: cython.Py_ssize_t, ring: cython.pointer(Slot), offsets: cython.p_longlong
) -> cython.void:
    """Write the column of queue offsets."""
    row: cython.Py_ssize_t
    for row in range(length):
        offsets[row] = ring[cython.cast(cython.uint, packed[row])].offset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _directory(
    packed: cython.p_ulonglong,
    length: cython.Py_ssize_t,
    ring: cython.pointer(Slot),
    queues: cython.p_uint,
    firsts: cython.p_longlong,
    nexts: cython.p_longlong,
    starts: cython.p_uint,
) -> cython.bint:
    """Write the directory; return whether every queue's offsets only count up."""
    row: cython.Py_ssize_t
    start: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    dense: cython.bint = True
    slot: cython.pointer(Slot)
    for row in range(length):
        if row + 1 < length and packed[row] >> 32 == packed[row + 1] >> 32:
            continue
        slot = ring + cython.cast(cython.uint, packed[row])
        queues[at], starts[at] = packed[row] >> 32, start
        firsts[at], nexts[at] = ring[cython.cast(cython.uint, packed[start])].offset, slot.offset + slot.count
        dense = dense and nexts[at] - firsts[at] == row + 1 - start
        start = row + 1
        at += 1
    starts[at] = length
    return dense

"""The compiled twin of what is computed of columns: sums, orders, counts, places. Pure-Python-mode Cython.

Invariants: number for number what `reference.vectors` does, but sums wrap around at 64 bits; no row outside a column is
read or written. Thread rule: any thread, with the interpreter's lock.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.stdlib import qsort
from cython.cimports.libc.string import memcpy
from cython.cimports.remoting.native.compiled.vectors import (
    I64,
    MAX,
    U8,
    U32,
    Column,
    column_load,
    column_store,
    combined,
    made,
    packed,
)

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.compiled.vectors import column, empty


def repeat(numbers: Column, counts: Column):
    """Return each number as often as the other column says, as the same kind."""
    row: cython.Py_ssize_t
    _time: cython.Py_ssize_t
    assert numbers._length == counts._length, (numbers._length, counts._length)
    times: Column = packed(counts, I64)
    each: cython.p_longlong = cython.cast(cython.p_longlong, times._at)
    total: cython.longlong = 0
    for row in range(times._length):
        if each[row] < 0:
            raise ValueError("a number cannot be repeated less than never")
        total += each[row]
    to: Column = made(total, numbers._kind)
    target: cython.p_char = to._at
    for row in range(times._length):
        number: cython.longlong = column_load(numbers._at + row * numbers._step, numbers._kind)
        for _time in range(each[row]):
            column_store(target, to._kind, number)
            target += to._step
    return to


def cumsum(numbers: Column):
    """Return the running sums as i64."""
    to: Column = made(numbers._length, I64)
    row: cython.Py_ssize_t
    total: cython.longlong = 0
    for row in range(numbers._length):
        total += column_load(numbers._at + row * numbers._step, numbers._kind)
        cython.cast(cython.p_longlong, to._at)[row] = total
    return to


def diff(numbers: Column):
    """Return by how much each number differs from the one before it, as i64."""
    to: Column = made(max(0, numbers._length - 1), I64)
    row: cython.Py_ssize_t
    for row in range(to._length):
        cython.cast(cython.p_longlong, to._at)[row] = column_load(
            numbers._at + (row + 1) * numbers._step, numbers._kind
        ) - column_load(numbers._at + row * numbers._step, numbers._kind)
    return to


def bincount(numbers: Column):
    """Return how often each number from 0 on is there, up to the largest, as i64."""
    row: cython.Py_ssize_t
    number: cython.longlong
    if not numbers._length:
        return made(0, I64)
    if numbers.min() < 0:
        raise ValueError("only numbers from 0 on are counted")
    to: Column = empty(numbers.max() + 1, "q")
    for row in range(numbers._length):
        number = column_load(numbers._at + row * numbers._step, numbers._kind)
        cython.cast(cython.p_longlong, to._at)[number] += 1
    return to


Row = cython.struct(number=cython.longlong, row=cython.longlong)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _order(
    left: cython.pointer(cython.const[cython.void]), right: cython.pointer(cython.const[cython.void])
) -> cython.int:
    one: cython.pointer(Row) = cython.cast(cython.pointer(Row), left)
    two: cython.pointer(Row) = cython.cast(cython.pointer(Row), right)
    if one.number != two.number:
        return -1 if one.number < two.number else 1
    return -1 if one.row < two.row else 1


def argsort(numbers: Column):
    """Return the rows in the order of their numbers, equal ones as they stand, as i64."""
    n: cython.Py_ssize_t = numbers._length
    row: cython.Py_ssize_t
    memory: bytes = PyBytes_FromStringAndSize(cython.NULL, n * cython.sizeof(Row))
    rows: cython.pointer(Row) = cython.cast(cython.pointer(Row), PyBytes_AS_STRING(memory))
    rising: cython.bint = True
    for row in range(n):
        rows[row].number, rows[row].row = column_load(numbers._at + row * numbers._step, numbers._kind), row
        rising = rising and (row == 0 or rows[row - 1].number <= rows[row].number)
    if not rising:
        with cython.nogil:
            qsort(rows, n, cython.sizeof(Row), _order)
    to: Column = made(n, I64)
    for row in range(n):
        cython.cast(cython.p_longlong, to._at)[row] = rows[row].row
    return to


def isin(numbers: Column, wanted):
    """Return the mask of those that are among the wanted ones."""
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    low: cython.Py_ssize_t
    known: Column = column(sorted(wanted), "q")
    places: cython.p_longlong = cython.cast(cython.p_longlong, known._at)
    to: Column = made(numbers._length, U8)
    for row in range(numbers._length):
        number: cython.longlong = column_load(numbers._at + row * numbers._step, numbers._kind)
        low, at = 0, known._length
        while low < at:
            if places[(low + at) >> 1] < number:
                low = ((low + at) >> 1) + 1
            else:
                at = (low + at) >> 1
        to._at[row] = low < known._length and places[low] == number
    return to


def maximum(left: Column, right):
    """Return the larger one of each pair as i64."""
    return combined(MAX, left, right)


def within(numbers: Column, low: cython.longlong, high: cython.longlong):
    """Return the mask of the numbers in [low, high)."""
    row: cython.Py_ssize_t
    to: Column = made(numbers._length, U8)
    number: cython.longlong
    narrow: cython.p_uint = cython.cast(cython.p_uint, numbers._at)
    if numbers._kind == U32 and numbers._step == 4:
        for row in range(numbers._length):
            to._at[row] = narrow[row] >= low and narrow[row] < high
        return to
    for row in range(numbers._length):
        number = column_load(numbers._at + row * numbers._step, numbers._kind)
        to._at[row] = number >= low and number < high
    return to


def spread(homes: Column):
    """Return a place for each of the rising homes, as i64: its home, or behind the place before it."""
    row: cython.Py_ssize_t
    place: cython.longlong = -(1 << 62)
    to: Column = made(homes._length, I64)
    for row in range(homes._length):
        place = max(place + 1, column_load(homes._at + row * homes._step, homes._kind))
        cython.cast(cython.p_longlong, to._at)[row] = place
    return to


def unplaced(words, base: cython.longlong, positions: Column, sizes: Column):
    """Return the first row without a header of that size and position; see `reference.vectors.unplaced`."""
    known: Py_buffer
    row: cython.Py_ssize_t
    found: cython.Py_ssize_t = -1
    at: cython.longlong
    said: cython.longlong = 0
    size: cython.uint = 0
    assert positions._length == sizes._length, (positions._length, sizes._length)
    PyObject_GetBuffer(words, cython.address(known), PyBUF_SIMPLE)
    start: cython.p_char = cython.cast(cython.p_char, known.buf)
    for row in range(positions._length):
        at = column_load(positions._at + row * positions._step, positions._kind) - base
        if at < 0 or at & 7 or at > known.len - 24:
            found = row
            break
        memcpy(cython.address(size), start + at, 4)
        memcpy(cython.address(said), start + at + 16, 8)
        if said != at + base or size != column_load(sizes._at + row * sizes._step, sizes._kind):
            found = row
            break
    PyBuffer_Release(cython.address(known))
    return found

"""The compiled twin of the columns: integers in memory of their own, in a map or in a buffer. Pure-Python-mode Cython.

The class is declared in `vectors.pxd`. A column knows where its first number stands, the distance between two of them,
and the object that keeps the memory. Invariants: number for number what `reference.vectors` does, but sums wrap around
at 64 bits; no row outside a column is read or written. Thread rule: any thread; long loops release the interpreter's
lock, so a column that another thread changes meanwhile may be seen half changed, and one used as an index must not be.
"""

import cython
from cython.cimports.cpython.buffer import (
    PyBUF_FORMAT,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy, memset

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

WIDTHS = {"B": 1, "H": 2, "I": 4, "q": 8, "Q": 8}
UNLOCKED = cython.declare(cython.Py_ssize_t, 16_384)
"""Numbers from which on the loops give up the interpreter's lock; below, handing it over would take longer."""


@cython.cfunc
@cython.exceptval(-1)
def _kind_of(name: str) -> cython.int:
    if name not in WIDTHS:
        raise ValueError(f"no kind of column: {name!r}")
    return ord(name)


@cython.cfunc
def made(length: cython.Py_ssize_t, kind: cython.int) -> Column:
    """Return a column with memory of its own, whose numbers are to be set."""
    if length < 0:
        raise ValueError(f"a column of {length} numbers")
    width: cython.Py_ssize_t = column_width(kind)
    memory: bytes = PyBytes_FromStringAndSize(cython.NULL, width * length)
    column: Column = Column.__new__(Column)
    column._owner, column._at, column._length, column._step = memory, PyBytes_AS_STRING(memory), length, width
    column._kind, column._fixed = kind, False
    return column


@cython.cfunc
def packed(numbers, kind: cython.int) -> Column:
    """Return the numbers as a column of this kind without gaps: themselves when they are one."""
    if not isinstance(numbers, Column):
        return column(numbers, chr(kind))
    known: Column = numbers
    if known._kind == kind and known._step == column_width(kind):
        return known
    return _converted(known, kind)


@cython.cfunc
def _converted(numbers: Column, kind: cython.int) -> Column:
    to: Column = made(numbers._length, kind)
    n: cython.Py_ssize_t = numbers._length
    at: cython.Py_ssize_t = n
    if numbers._kind == kind and numbers._step == to._step:
        memcpy(to._at, numbers._at, to._step * n)
    elif n < UNLOCKED:
        at = column_convert(numbers._at, numbers._step, numbers._kind, n, to._at, kind)
    else:
        with cython.nogil:
            at = column_convert(numbers._at, numbers._step, numbers._kind, n, to._at, kind)
    if at < n:
        raise OverflowError(f"{numbers[at]} does not fit the kind {chr(kind)!r}")
    return to


@cython.final
@cython.cclass
class Column:
    """Integers of one kind."""

    @property
    def kind(self):
        """The letter of the kind."""
        return chr(self._kind)

    def __len__(self):
        return self._length

    def __iter__(self):
        return iter(self.tolist())

    def __repr__(self):
        return f"Column({self.kind!r}, {self.tolist()})"

    def __getbuffer__(self, buffer: cython.pointer(Py_buffer), flags: cython.int):
        width: cython.Py_ssize_t = column_width(self._kind)
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE and self._fixed:
            raise BufferError("the memory of this column may not be changed")
        if self._step != width and flags & PyBUF_STRIDES != PyBUF_STRIDES:
            raise BufferError("this column has gaps")
        self._shape[0], self._strides[0] = self._length, self._step
        buffer.buf, buffer.obj, buffer.len, buffer.itemsize = self._at, self, width * self._length, width
        buffer.readonly, buffer.ndim, buffer.format = self._fixed, 1, cython.NULL
        if flags & PyBUF_FORMAT:
            buffer.format = (
                b"q" if self._kind == I64 else b"Q" if self._kind == U64
                else b"I" if self._kind == U32 else b"H" if self._kind == U16 else b"B"
            )  # fmt: skip
        buffer.shape, buffer.strides, buffer.suboffsets = self._shape, self._strides, cython.NULL
        buffer.internal = cython.NULL

    # -- whole columns

    @property
    def data(self):
        """The bytes of a column without gaps."""
        return memoryview(self).cast("B")

    def tolist(self):
        """Return the numbers."""
        row: cython.Py_ssize_t
        numbers: list = []
        for row in range(self._length):
            number: cython.longlong = column_load(self._at + row * self._step, self._kind)
            numbers.append(cython.cast(cython.ulonglong, number) if number < 0 and self._kind == U64 else number)
        return numbers

    def tobytes(self):
        """Return a copy of the bytes."""
        known: Column = packed(self, self._kind)
        return PyBytes_FromStringAndSize(known._at, known._step * known._length)

    def astype(self, kind: str):
        """Return the numbers as another kind, always a copy; each must fit."""
        return _converted(self, _kind_of(kind))

    # -- items

    def __getitem__(self, key):
        row: cython.Py_ssize_t
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        step: cython.Py_ssize_t
        if isinstance(key, Column):
            return _chosen(self, key)
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            part: Column = Column.__new__(Column)
            part._owner, part._kind, part._fixed = self._owner, self._kind, self._fixed
            part._length = len(range(start, stop, step))
            part._at, part._step = self._at, self._step
            if part._length:
                part._at, part._step = self._at + start * self._step, self._step * step
            return part
        row = self._row(key)
        if self._kind == U64:
            return cython.cast(cython.ulonglong, column_load(self._at + row * self._step, U64))
        return column_load(self._at + row * self._step, self._kind)

    @cython.cfunc
    @cython.exceptval(-1)
    def _row(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if row < 0:
            row += self._length
        if not 0 <= row < self._length:
            raise IndexError(f"row {row} of {self._length}")
        return row

    def __setitem__(self, key, value):
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        if self._fixed:
            raise TypeError("the memory of this column may not be changed")
        if isinstance(key, slice):
            part: Column = self[key]
            rows: Column = None
        elif isinstance(key, Column):
            rows = _rows(key, self._length)
            part = self
        else:
            self._put(self._row(key), value)
            return
        count: cython.Py_ssize_t = part._length if rows is None else rows._length
        source: Column = packed([value] if isinstance(value, int) else value, I64)
        repeated: cython.bint = isinstance(value, int)
        if not repeated and source._length != count:
            raise ValueError(f"{source._length} numbers for {count} rows")
        numbers: cython.p_longlong = cython.cast(cython.p_longlong, source._at)
        for row in range(count):
            number: cython.longlong = numbers[0 if repeated else row]
            if not column_fits(number, part._kind):
                raise OverflowError(f"{number} does not fit the kind {part.kind!r}")
            at = row if rows is None else cython.cast(cython.p_longlong, rows._at)[row]
            column_store(part._at + at * part._step, part._kind, number)

    @cython.cfunc
    @cython.exceptval(-1)
    def _put(self, row: cython.Py_ssize_t, value) -> cython.int:
        number: cython.longlong
        if self._kind == U64:
            number = cython.cast(cython.longlong, cython.cast(cython.ulonglong, value))
        else:
            number = value
            if not column_fits(number, self._kind):
                raise OverflowError(f"{number} does not fit the kind {self.kind!r}")
        column_store(self._at + row * self._step, self._kind, number)
        return 0

    # -- arithmetic and comparisons

    def __add__(self, other):
        return combined(ADD, self, other)

    def __radd__(self, other):
        return combined(ADD, self, other)

    def __sub__(self, other):
        return combined(SUB, self, other)

    def __rsub__(self, other):
        return combined(RSUB, self, other)

    def __mul__(self, other):
        return combined(MUL, self, other)

    def __rmul__(self, other):
        return combined(MUL, self, other)

    def __floordiv__(self, other):
        return combined(DIV, self, other)

    def __mod__(self, other):
        return combined(MOD, self, other)

    def __rshift__(self, other):
        return combined(SHR, self, other)

    def __lshift__(self, other):
        return combined(SHL, self, other)

    def __and__(self, other):
        return _joined_masks(AND, self, other)

    def __or__(self, other):
        return _joined_masks(OR, self, other)

    def __invert__(self):
        assert self._kind == U8, self.kind
        return _compared(EQ, self, 0)

    def __eq__(self, other):
        return _compared(EQ, self, other)

    def __ne__(self, other):
        return _compared(NE, self, other)

    def __lt__(self, other):
        return _compared(LT, self, other)

    def __le__(self, other):
        return _compared(LE, self, other)

    def __gt__(self, other):
        return _compared(GT, self, other)

    def __ge__(self, other):
        return _compared(GE, self, other)

    __hash__ = None

    # -- what is in it

    def sum(self):
        """Return the sum."""
        row: cython.Py_ssize_t
        total: cython.longlong = 0
        for row in range(self._length):
            total += column_load(self._at + row * self._step, self._kind)
        return total

    def max(self):
        """Return the largest number of a column that is not empty."""
        return self[_extreme(self, True)]

    def min(self):
        """Return the smallest number of a column that is not empty."""
        return self[_extreme(self, False)]

    def all(self):
        """Whether no number is 0."""
        row: cython.Py_ssize_t = 0
        while row < self._length and column_load(self._at + row * self._step, self._kind):
            row += 1
        return row == self._length

    def any(self):
        """Whether a number is not 0."""
        row: cython.Py_ssize_t = 0
        while row < self._length and not column_load(self._at + row * self._step, self._kind):
            row += 1
        return row < self._length

    def argmin(self):
        """Return the first row of the smallest number."""
        return _extreme(self, False)

    def searchsorted(self, number: cython.longlong, side: str = "left"):
        """Return the row before which `number` belongs in a rising column; `right`: behind equal ones."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = self._length
        middle: cython.Py_ssize_t
        known: cython.longlong
        behind: cython.bint = side == "right"
        while low < high:
            middle = (low + high) >> 1
            known = column_load(self._at + middle * self._step, self._kind)
            if known < number or (behind and known == number):
                low = middle + 1
            else:
                high = middle
        return low


@cython.cfunc
@cython.exceptval(-1)
def _extreme(numbers: Column, largest: cython.bint) -> cython.Py_ssize_t:
    row: cython.Py_ssize_t
    best: cython.Py_ssize_t = 0
    number: cython.longlong
    known: cython.longlong
    if not numbers._length:
        raise ValueError("the column is empty")
    known = column_load(numbers._at, numbers._kind)
    for row in range(1, numbers._length):
        number = column_load(numbers._at + row * numbers._step, numbers._kind)
        if (number > known) if largest else (number < known):
            best, known = row, number
    return best


@cython.cfunc
def _rows(key: Column, length: cython.Py_ssize_t) -> Column:
    """Return the rows that an index means, all of them inside `length`."""
    row: cython.Py_ssize_t
    if key._kind == U8:
        assert key._length == length, (key._length, length)
        return nonzero(key)
    rows: Column = packed(key, I64)
    numbers: cython.p_longlong = cython.cast(cython.p_longlong, rows._at)
    lowest: cython.longlong = 0
    for row in range(rows._length):
        if not -length <= numbers[row] < length:
            raise IndexError(f"row {numbers[row]} of {length}")
        lowest = min(lowest, numbers[row])
    return rows if lowest >= 0 else rows + (rows < 0).astype("q") * length


@cython.cfunc
def _chosen(numbers: Column, key: Column) -> Column:
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    kind: cython.int = numbers._kind
    step: cython.Py_ssize_t = numbers._step
    mask: cython.p_char = key._at
    if key._kind == U8:
        assert key._length == numbers._length, (key._length, numbers._length)
        for row in range(key._length):
            count += mask[row * key._step] != 0
        to: Column = made(count, kind)
        for row in range(key._length):
            if mask[row * key._step]:
                column_store(to._at + at * to._step, kind, column_load(numbers._at + row * step, kind))
                at += 1
        return to
    rows: Column = _rows(key, numbers._length)
    to = made(rows._length, kind)
    if rows._length < UNLOCKED:
        column_take(numbers._at, step, kind, _longs(rows), rows._length, to._at)
    else:
        with cython.nogil:
            column_take(numbers._at, step, kind, _longs(rows), rows._length, to._at)
    return to


@cython.cfunc
def _operand(value) -> Column:
    """Return the other side as i64 without gaps."""
    single: Column
    if isinstance(value, Column):
        known: Column = value
        return known if known._step == 8 and column_width(known._kind) == 8 else _converted(known, I64)
    single = made(1, I64)
    cython.cast(cython.p_longlong, single._at)[0] = value
    return single


@cython.cfunc
def combined(what: cython.int, left: Column, other) -> Column:
    """Return the i64 column that the operation makes of each pair."""
    one: Column = _operand(left)
    two: Column = _operand(other)
    to: Column = made(one._length, I64)
    by: cython.Py_ssize_t = isinstance(other, Column)
    if by:
        assert one._length == two._length, (one._length, two._length)
    if DIV <= what <= SHL and (by or not (what < SHR) <= other <= (1 << 62 if what < SHR else 63)):
        raise ValueError("columns are divided and shifted by one positive number")
    if to._length < UNLOCKED:
        column_combine(what, left._kind, _longs(one), _longs(two), by, _longs(to), to._length)
    else:
        with cython.nogil:
            column_combine(what, left._kind, _longs(one), _longs(two), by, _longs(to), to._length)
    return to


@cython.cfunc
def _joined_masks(what: cython.int, left: Column, other) -> Column:
    """Return both masks combined into one, or the numbers."""
    row: cython.Py_ssize_t
    right: Column
    if left._kind == U8 and isinstance(other, Column):
        right = other
        if right._kind == U8:
            assert left._length == right._length, (left._length, right._length)
            to: Column = made(left._length, U8)
            for row in range(left._length):
                one: cython.int = left._at[row * left._step]
                two: cython.int = right._at[row * right._step]
                to._at[row] = cython.cast(cython.char, (one & two) if what == AND else (one | two))
            return to
    return combined(what, left, other)


@cython.cfunc
def _compared(what: cython.int, left: Column, other) -> Column:
    """Return the mask of the pairs for which the comparison holds."""
    if what == EQ and left._kind == U32 and left._step == 4 and not isinstance(other, Column):
        return _equal(left, other)
    one: Column = _operand(left)
    two: Column = _operand(other)
    to: Column = made(one._length, U8)
    by: cython.Py_ssize_t = isinstance(other, Column)
    if by:
        assert one._length == two._length, (one._length, two._length)
    if to._length < UNLOCKED:
        column_compare(what, _longs(one), _longs(two), by, to._at, to._length)
    else:
        with cython.nogil:
            column_compare(what, _longs(one), _longs(two), by, to._at, to._length)
    return to


@cython.cfunc
def _equal(numbers: Column, wanted: cython.longlong) -> Column:
    """Return which of the u32 are this one, without widening them first."""
    to: Column = made(numbers._length, U8)
    known: cython.p_uint = cython.cast(cython.p_uint, numbers._at)
    row: cython.Py_ssize_t
    for row in range(numbers._length):
        to._at[row] = known[row] == wanted
    return to


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _longs(column: Column) -> cython.p_longlong:
    return cython.cast(cython.p_longlong, column._at)


# -- making columns


def column(numbers, kind: str):
    """Return a column of these numbers."""
    known: list
    wanted: cython.int = _kind_of(kind)
    row: cython.Py_ssize_t
    if isinstance(numbers, Column):
        return _converted(numbers, wanted)
    known = numbers if isinstance(numbers, list) else list(numbers)
    to: Column = made(len(known), wanted)
    if wanted == I64:
        for row in range(to._length):
            cython.cast(cython.p_longlong, to._at)[row] = known[row]
    else:
        for row in range(to._length):
            to._put(row, known[row])
    return to


def empty(count: cython.Py_ssize_t, kind: str):
    """Return a column of so many numbers that are to be set: zeros."""
    to: Column = made(count, _kind_of(kind))
    if count:
        memset(to._at, 0, to._step * count)
    return to


def full(count: cython.Py_ssize_t, number: cython.longlong, kind: str):
    """Return the same number, so many times."""
    to: Column = made(count, _kind_of(kind))
    row: cython.Py_ssize_t
    if not column_fits(number, to._kind):
        raise OverflowError(f"{number} does not fit the kind {kind!r}")
    for row in range(count):
        column_store(to._at + row * to._step, to._kind, number)
    return to


def arange(first: cython.longlong, end: cython.longlong):
    """Return the numbers [first, end) as i64."""
    to: Column = made(max(0, end - first), I64)
    row: cython.Py_ssize_t
    for row in range(to._length):
        cython.cast(cython.p_longlong, to._at)[row] = first + row
    return to


def view(buffer, kind: str, count: cython.Py_ssize_t, at: cython.Py_ssize_t = 0, step: cython.Py_ssize_t = 0):
    """Return `count` numbers of a buffer as they stand there; see `reference.vectors.view`."""
    known: Py_buffer
    to: Column = Column.__new__(Column)
    to._owner, to._kind, to._length = memoryview(buffer), _kind_of(kind), count
    width: cython.Py_ssize_t = column_width(to._kind)
    to._step = step or width
    assert count >= 0, count
    assert not to._step % width, (step, width)
    PyObject_GetBuffer(to._owner, cython.address(known), PyBUF_SIMPLE)
    to._at, to._fixed = cython.cast(cython.p_char, known.buf) + at, known.readonly
    length: cython.Py_ssize_t = known.len
    PyBuffer_Release(cython.address(known))  # the memoryview keeps the memory
    if count or to._step == width:
        last: cython.Py_ssize_t = to._step * (count - 1) + width if count else 0
        assert 0 <= at <= length - last, (at, length, count)
    return to


def joined(columns):
    """Return the columns, of one kind, one behind the other; at least one."""
    total: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    part: Column
    first: Column = columns[0]
    for part in columns:
        total += part._length
    to: Column = made(total, first._kind)
    for part in columns:
        part = packed(part, first._kind)
        if part._length:
            memcpy(to._at + at, part._at, part._step * part._length)
        at += to._step * part._length
    return to


def nonzero(mask: Column):
    """Return the rows that are not 0, as i64."""
    n: cython.Py_ssize_t = mask._length
    to: Column = made(column_count(mask._at, mask._step, mask._kind, n), I64)
    if n < UNLOCKED:
        column_nonzero(mask._at, mask._step, mask._kind, n, _longs(to), to._length)
    else:
        with cython.nogil:
            column_nonzero(mask._at, mask._step, mask._kind, n, _longs(to), to._length)
    return to

"""CRC32C of any contiguous bytes, compiled; uses the processor's instruction if it has one. Pure-Python-mode Cython.

The pure twin is the package google-crc32c. Thread rule: a pure function; it releases the interpreter's lock for buffers
that take longer than handing the lock over.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.libc.stdint import uint32_t
from cython.cimports.remoting.native.compiled.machine import crc32c_by_tables, crc32c_extend, crc32c_ready

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

BY_PROCESSOR = bool(crc32c_ready())
"""Whether the processor's instruction is used."""
UNLOCKED_BYTES = cython.declare(cython.Py_ssize_t, 65_536)


def crc32c(data, value: uint32_t = 0):
    """Return the checksum of `data`, continued from `value`. Raises BufferError or TypeError if not contiguous."""
    view: cython.Py_buffer
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    if view.len < UNLOCKED_BYTES:
        value = crc32c_extend(value, view.buf, view.len)
    else:
        with cython.nogil:
            value = crc32c_extend(value, view.buf, view.len)
    PyBuffer_Release(cython.address(view))
    return value


def crc32c_tables(data, value: uint32_t = 0):
    """Return the same checksum by tables alone, as on a processor without the instruction."""
    view: cython.Py_buffer
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    value = crc32c_by_tables(value, view.buf, view.len)
    PyBuffer_Release(cython.address(view))
    return value

# Types of writer.py; see remoting/native/typed.py.

cimport cython

from broker.store.log.confirm cimport Confirm
from broker.store.index.tail cimport Tail

cdef class Writer:
    cdef object _appender
    cdef object _armed
    cdef Confirm _confirm
    cdef object _failure
    cdef Py_ssize_t _flush_entries
    cdef object _guard
    cdef object _index
    cdef object _indexing
    cdef object _log
    cdef object _now_ns
    cdef object _path
    cdef public object _segments
    cdef Tail _tail
    cdef object _written
    cdef public long long last_store_ms
    cdef public long long messages_total

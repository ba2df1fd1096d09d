# Types of writer.py; see remoting/native/typed.py.

cimport cython

from broker.store.log.confirm cimport Confirm
from broker.store.index.tail cimport Tail

cdef class Writer:
    cdef object _appender
    cdef object _armed
    cdef long long _begun
    cdef Confirm _confirm
    cdef Py_ssize_t _entries_max
    cdef object _events
    cdef Py_ssize_t _flush_entries
    cdef object _guard
    cdef object _index
    cdef object _index_flusher
    cdef object _log
    cdef object _now_ms, _now_ns
    cdef public object _pen
    cdef object _registry
    cdef object _tables
    cdef Tail _tail
    cdef object _written
    cdef public object failure
    cdef public object keys
    cdef public long long last_store_ms
    cdef public long long messages_total
    cdef public object prepare

# Types of confirm_positions.py; see remoting/native/typed.py.

from broker.store.index.tail cimport Tail
from broker.store.log.confirm cimport Confirm, Flusher

cdef class ConfirmPositions:
    cdef object _index, _failure, _listeners, _log, _whole_below, _later
    cdef Confirm _confirm
    cdef public Flusher _flusher
    cdef Tail _tail
    cdef bint _given_up, _is_async, _pending
    cdef long long _limit
    cdef public long long flushed, kept

    cpdef take_written(self)
    cpdef _confirm_written(self)
    cpdef take_flushed(self, long long position)
    cdef _keep(self, long long position)
    cdef _advance(self)

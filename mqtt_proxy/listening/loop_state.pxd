# Types of loop_state.py; see remoting/native/typed.py.
import cython

from remoting.transport.turn cimport Turn

cdef class LoopState:
    cdef public object loop
    cdef public Turn turn
    cdef public object buffer
    cdef public object ring
    cdef public object driver
    cdef public object bytes_in
    cdef public object bytes_out
    cdef object _monotonic_ns
    cdef list _dirty

    @cython.locals(now_ns="long long")
    cpdef long long now_ms(self) except? -1
    cpdef write_later(self, connection)
    @cython.locals(dirty=list)
    cpdef _write_all(self)

# Types of turn.py; see remoting/native/typed.py.
cimport cython

cdef class Turn:
    cdef public object loop
    cdef public unsigned long thread
    cdef list _due
    cdef list _last
    cdef bint _asked
    cdef bint _begun

    cpdef soon(self, callback)
    cpdef at_end(self, callback)
    cpdef begin(self)
    @cython.locals(_=int)
    cpdef run(self)
    cdef _round(self, list round_)
    cdef list _take_due(self)
    cdef list _take_last(self)
    cdef _ask(self)
    cdef _release(self)

cdef Turn _running

@cython.locals(turn=Turn)
cpdef soon(callback)

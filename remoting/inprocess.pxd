# Types of inprocess.py; see remoting/native/typed.py.

from remoting.transport.calls cimport Calls

cdef class _Lane:
    cdef object _deliver, _queue

    cpdef put(self, command)

cdef class _End:
    cdef public object reason
    cdef list _callbacks

    cpdef finish(self, reason)

cdef class InProcessPeer(_End):
    cdef public object address
    cdef public bint loopback
    cdef public dict attributes
    cdef InProcessConnection _connection
    cdef object _handler
    cdef _Lane _lane

cdef class InProcessConnection(_End):
    cdef public object address
    cdef public InProcessPeer peer
    cdef public Calls _calls
    cdef object _push_callbacks, _ended
    cdef public bint _closing
    cdef _Lane _lane

    cpdef _check_open(self)

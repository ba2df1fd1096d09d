# Types of inprocess.py; see remoting/native/typed.py.
cimport cython

from remoting.protocol.frames.commands cimport Command
from remoting.transport.calls cimport Calls
from remoting.transport.turn cimport soon

cdef class _Lane:
    cdef _End _end
    cdef list _queue

    @cython.locals(end=_End, command=Command)
    cpdef _run(self)
    cpdef put(self, Command command)

cdef class _End:
    cdef public object reason
    cdef list _callbacks

    cpdef finish(self, reason)
    cpdef command_received(self, Command command)

cdef class InProcessPeer(_End):
    cdef public object address
    cdef public bint loopback
    cdef public dict attributes
    cdef public Calls questions
    cdef InProcessConnection _connection
    cdef object _handler
    cdef _Lane _lane

    cpdef send(self, Command command)

cdef class InProcessConnection(_End):
    cdef public object address
    cdef public InProcessPeer peer
    cdef public Calls _calls
    cdef object _push_callbacks, _ended, _transmit
    cdef public bint is_ending
    cdef _Lane _lane

    cpdef _check_open(self)
    cpdef call(self, Command command, answered, Py_ssize_t timeout_ms=*)

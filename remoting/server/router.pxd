# Types of router.py; see remoting/native/typed.py.

cimport cython

from remoting.protocol.frames.commands cimport Command

cdef class Access:
    cdef dict _keys, _created
    cdef bint _open_to_all, _keys_count, _bound_only

    cpdef admit(self, peer, Command command)
    cpdef check(self, peer, Command command)

cdef class Router:
    cdef dict _handlers
    cdef Access _access
    cdef object _not_offered, _judge_unserved, _advertised_host, _took

    @cython.locals(started_ns=cython.longlong)
    cdef _handled(self, handler, peer, Command command)

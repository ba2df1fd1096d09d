# Types of authorizer.py; see remoting/native/typed.py.

from remoting.protocol.frames.commands cimport Command

cdef class Authorizer:
    cdef public object policy
    cdef public long long refused

    cpdef bint trusts(self, peer, command)
    cpdef authorize(self, peer, Command command, action, resource)

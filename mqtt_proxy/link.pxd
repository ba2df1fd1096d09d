# Types of link.py; see remoting/native/typed.py.
from remoting.protocol.frames.commands cimport Command

cdef class _Asked:
    cdef Link _link
    cdef object _connection, _done

    cpdef answered(self, Command reply, error)

cdef class Link:
    cdef object _uplink, _line, _connection, _first, _log
    cdef dict _pushes
    cdef bint _stopping

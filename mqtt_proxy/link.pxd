# Types of link.py; see remoting/native/typed.py.

cdef class Link:
    cdef object _uplink, _line, _connection, _first, _log
    cdef dict _pushes
    cdef bint _stopping

# Types of link.py; see remoting/native/typed.py.
cimport cython

from remoting.inprocess cimport InProcessConnection

cdef class Link:
    cdef object _uplink, _line, _connection, _news, _first, _log
    cdef dict _pushes
    cdef public InProcessConnection _direct
    cdef bint _stopping

    @cython.locals(direct=InProcessConnection)
    cpdef InProcessConnection open_direct(self)

# Types of access.py; see remoting/native/typed.py.

cdef class Access:
    cdef dict _keys
    cdef bint _open_to_all, _keys_count, _bound_only

    cpdef check(self, peer, command)

# Types of follow.py; see remoting/native/typed.py.

cimport cython

cdef class _Follower:
    cdef public tuple alone
    cdef public object peer
    cdef public set pending
    cdef public dict pushed
    cdef public Py_ssize_t pushed_bytes
    cdef public bint takes_whole
    cdef public bint wants_records

cdef class Followers:
    cdef object _authorizer
    cdef dict _by_queue
    cdef object _end_of
    cdef dict _followers
    cdef object _hidden
    cdef list _choosing
    cdef object _fresh
    cdef object _visible
    cdef public long long held_back
    cdef public long long notified

    @cython.locals(follower=_Follower)
    cpdef confirmed(self, batches)
    @cython.locals(follower=_Follower, followers=tuple, concerned=dict)
    cpdef advanced(self, queue_ids)
    @cython.locals(ends=list)
    cpdef _notify(self, _Follower follower)
    @cython.locals(records=list, room=cython.longlong)
    cdef list _written(self)

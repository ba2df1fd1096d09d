# Types of record_cache.py; see remoting/native/typed.py.
cimport cython
from remoting.transport.turn cimport soon

cdef class Chunk:
    cdef public list _records
    cdef public object blob
    cdef public Feed feed
    cdef public long long first
    cdef public long long next
    cdef public object shared
    cdef public Py_ssize_t size_bytes
    cdef public bytes starts

cdef class Feed:
    cdef dict _followers
    cdef object only
    cdef public list chunks
    cdef public long long max_offset
    cdef public long long queue_id

    cpdef join(self, follower)
    cpdef leave(self, follower)
    cpdef advance(self, long long max_offset)
    cpdef bint is_near(self) except -1

@cython.locals(last=Chunk)
cdef Py_ssize_t _behind(list chunks, long long offset) except -1

cdef class RecordCache:
    cdef Py_ssize_t _bytes_max
    cdef object _recent
    cdef public Py_ssize_t size_bytes

    @cython.locals(index=Py_ssize_t, chunk=Chunk, chunks=list)
    cpdef Chunk find(self, Feed feed, long long offset)
    @cython.locals(index=Py_ssize_t, chunks=list, near=Chunk)
    cpdef add(self, Chunk chunk)
    cpdef drop(self, Chunk chunk)

cdef class Notifier:
    cdef dict _added
    cdef RecordCache _cache
    cdef object _link
    cdef object _log, _took, _now_ms
    cdef dict _removed
    cdef bint _scheduled
    cdef public dict feeds

    @cython.locals(feed=Feed, moved=list, wanted=dict, is_pushed=bint, ends=list)
    cpdef _notified(self, command)

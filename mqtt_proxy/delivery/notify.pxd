# Types of notify.py; see remoting/native/typed.py.

cimport cython

from mqtt_proxy.delivery.record_cache cimport Chunk, Feed, RecordCache

cdef class Notifier:
    cdef dict _added
    cdef RecordCache _cache
    cdef object _link
    cdef object _log
    cdef dict _removed
    cdef bint _scheduled
    cdef public dict feeds

    @cython.locals(feed=Feed, moved=list, wanted=dict, is_pushed=bint, ends=list)
    cpdef _notified(self, command)

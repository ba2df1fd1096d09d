# The layout of the classes of encoder.py.
from remoting.native.compiled.ring cimport Entry, EntryBlock, Ring, Row
from remoting.native.compiled.machine cimport record_dispatch, record_header

# What a batch makes a record of: an image in one of its parts, and the bytes of its record.
ctypedef struct Planned:
    char *image
    unsigned int size
    unsigned int part

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define LIGHTMQ_PREFETCH(at) __builtin_prefetch(at, 1)
    #define LIGHTMQ_RELEASE() __atomic_thread_fence(__ATOMIC_RELEASE)
    #else
    #define LIGHTMQ_PREFETCH(at) ((void)(at))
    #define LIGHTMQ_RELEASE() ((void)0)
    #endif
    /* Ask the processor for the memory at a place that is written to soon. */
    static inline void prefetch(void *at) { LIGHTMQ_PREFETCH(at); }
    /* What was stored before is seen by other processes before what is stored behind. */
    static inline void release_stores(void) { LIGHTMQ_RELEASE(); }
    """
    void prefetch(void *at) nogil
    void release_stores() nogil

cdef extern from "unistd.h" nogil:
    ssize_t pwrite(int descriptor, const void *data, size_t size, long long at)

cdef class Encoded:
    cdef readonly long long first_position
    cdef readonly long long end_position
    cdef readonly EntryBlock entries
    cdef readonly list offsets
    cdef readonly list retained
    cdef readonly list controls
    cdef readonly bint keyed
    cdef list _pieces
    cdef bytes _piece

cdef class Encoder:
    cdef unsigned int _epoch
    cdef long long _record_limit
    cdef long long _queues_max
    # What stands still during one call.
    cdef list _images
    cdef bytes _plan_memory
    cdef Planned *_planned
    cdef Row *_rows
    cdef long long _store_ms
    cdef Py_ssize_t _last
    cdef bint _atomic
    cdef Entry *_entry
    cdef Entry *_entries_end
    # Bytes of all records together.
    cdef long long _size
    cdef Py_ssize_t _entries
    # What `_plan` found out.
    cdef Py_ssize_t _fitting
    cdef long long _bytes
    cdef Encoded _begin(self, Ring ring, list images, list queues, bint atomic, long long store_ms, long long queue_limit, long long position)
    cdef Py_ssize_t _survey(self, list images, list queues) except? -1
    cdef int _survey_part(self, bytes images, list queues, unsigned int part, Planned *planned) except? -1
    cdef long long _encode_pieces(self, Encoded batch, Py_ssize_t total, long long position, long long segment_end, next_segment) except? -1
    cdef int _plan(self, Py_ssize_t at, Py_ssize_t total, long long room) except? -1
    cdef int _put_all(self, Encoded batch, Py_ssize_t first, char *to, long long position) except? -1
    cdef long long _put(self, Encoded batch, Py_ssize_t at, char *to, long long position) except? -1
    cdef unsigned int _tag(self, record_header *head, char *meta) except? 0
    cdef int _name_queues(self, list queues, long long limit) except? -1
    cdef void _dispatch(self, record_dispatch *to, record_header *head) noexcept
    cdef void _put_filler(self, char *to, long long size, long long position) noexcept
    cdef int _undo(self, Ring ring, Encoded batch) except? -1

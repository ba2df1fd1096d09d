# What ring.py shares with the other compiled modules: the layout of its classes, of entries, slots and rows.
from libc.stdint cimport int64_t, uint32_t

ctypedef struct Entry:
    long long offset
    long long position
    unsigned int queue
    unsigned int size
    unsigned int tag
    unsigned int count

# contracts.SLOT
ctypedef struct Slot:
    long long offset
    long long position
    unsigned int size
    unsigned int tag
    unsigned int count
    unsigned int prev

# contracts.NEXT and the following
ctypedef struct Row:
    long long next
    long long newest
    long long confirmed
    long long flushed

cdef class EntryBlock:
    cdef bytes _packed
    cdef Entry *_at
    cdef Py_ssize_t _length

cdef class Ring:
    cdef unsigned int[::1] _qid_view
    cdef unsigned char[::1] _slot_view
    cdef long long[::1] _row_view
    cdef unsigned int *_qid
    cdef Slot *_slots
    cdef Row *_rows
    cdef long long _capacity
    cdef long long _queues
    cdef int _store(self, EntryBlock entries, long long first, long long count) except? -1
    cdef long long _last_below(self, unsigned int queue, long long limit, long long first, long long count) noexcept
    cdef long long _next_of(self, unsigned int queue, long long number, long long count) noexcept

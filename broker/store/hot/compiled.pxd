# What compiled.py shares with compiled_encoder.py: the layout of its classes.
from libc.stdint cimport int64_t, uint32_t

ctypedef struct Entry:
    long long offset
    long long position
    unsigned int queue
    unsigned int size
    unsigned int tag
    unsigned int spare

cdef class EntryBlock:
    cdef bytes _packed
    cdef Entry *_at
    cdef Py_ssize_t _length

cdef class Ring:
    cdef unsigned int[::1] _qid
    cdef long long[::1] _offset
    cdef long long[::1] _position
    cdef unsigned int[::1] _size
    cdef unsigned int[::1] _tag
    cdef unsigned int[::1] _prev
    cdef long long[::1] _rows
    cdef long long _capacity
    cdef long long _queues
    cdef void _walk(self, unsigned int queue, long long depth, long long[::1] position, unsigned int[::1] size, unsigned int[::1] tag)
    cdef void _search(self, unsigned int queue, long long number, long long[::1] position, unsigned int[::1] size, unsigned int[::1] tag)
    cdef long long _locate(self, unsigned int queue, long long offset, long long low, long long high) except? -1

# Types of tail.py; see remoting/native/typed.py.

cdef class Tail:
    cdef long long _allocated
    cdef object _descriptor
    cdef object _mmap
    cdef public object _qid
    cdef long long _queues
    cdef long long _rows_at
    cdef public object _slots
    cdef public long long capacity
    cdef public long long count
    cdef public object counters
    cdef public long long first
    cdef public object path
    cdef public object ring
    cdef public object rows

    cpdef publish_confirm(self, long long confirm_position, long long durable_position)
    cpdef confirmed_end(self, long long queue)

# Types of placement.py; see remoting/native/typed.py.

from broker.store.placed cimport Placed

cdef class Placement:
    cdef public object choice
    cdef object _queues_of, _placing, _way, _waiting, _times

    cpdef Placed placed(self, bytes images, bint now=*, admit=*)
    cdef Placed _placed_odd(self, bytes images, list queues, list odd, bint now, admit)

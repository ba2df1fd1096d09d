# Types of place.py; see remoting/native/typed.py.

cdef class DeliveryOrigin:
    cdef public long long queue_id

    cpdef acknowledge(self, offset)

# Types of place.py; see remoting/hot/typed.py.

cdef class Place:
    cdef public long long queue_id

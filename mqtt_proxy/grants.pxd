# Types of grants.py; see remoting/native/typed.py.

cdef class Grant:
    cdef readonly int qos
    cdef readonly long options
    cdef readonly long subscription_id
    cdef readonly bint judged
    cdef readonly bint no_local
    cdef readonly bint retain_as_published
    cdef readonly tuple identifiers
    cdef readonly bint is_plain

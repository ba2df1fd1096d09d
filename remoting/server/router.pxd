# Types of router.py; see remoting/native/typed.py.

cdef class Router:
    cdef dict _handlers
    cdef object _access, _unsupported, _judge_unserved, _advertised_host

# Types of router.py; see remoting/native/typed.py.

from remoting.server.router cimport Access

cdef class Router:
    cdef dict _handlers
    cdef Access _access
    cdef object _unsupported, _judge_unserved, _advertised_host

# Types of requests.py; see remoting/native/typed.py.
cimport cython

from grpc_proxy.http2.hpack cimport HeaderDecoder

cdef class HeaderBlocks:
    cdef public Py_ssize_t stream_id
    cdef public int flags
    cdef object _limits
    cdef Py_ssize_t _bytes_max, _continuations
    cdef HeaderDecoder _decoder
    cdef bytes _parts

    cpdef begin(self, Py_ssize_t stream_id, int flags, bytes part)
    cpdef go_on(self, bytes part, int flags)
    cpdef decode(self, bytes block)

@cython.locals(seen=int, is_pseudo=bint, bit=int, name=bytes, text=bytes)
cpdef check_request(Py_ssize_t stream_id, list fields)

# Types of connection.py; see remoting/native/typed.py.
cimport cython

from grpc_proxy.http2.outgoing cimport SendingSide, Http2Stream
from grpc_proxy.http2.requests cimport HeaderBlocks, check_request

cdef int _DATA, _HEADERS, _RST, _WINDOW, _CONTINUATION

cdef class Http2Connection:
    cdef public dict streams
    cdef public object failure
    cdef HeaderBlocks _blocks
    cdef object _budget, _limits
    cdef list _events
    cdef dict _forgotten
    cdef int _greeted
    cdef Py_ssize_t _last_id, _served_id, _uncredited_bytes, _window
    cdef SendingSide _out
    cdef bytes _rest

    cpdef list receive(self, bytes data)
    cpdef bytes take(self)
    cpdef list widen(self, Py_ssize_t room)
    cpdef answer(self, Http2Stream stream, bytes block, bytes data, bytes trailers)
    cpdef begin(self, Http2Stream stream, bytes block)
    cpdef send(self, Http2Stream stream, bytes data)
    cpdef finish(self, Http2Stream stream, bytes trailers)
    cpdef reset(self, Http2Stream stream, code)
    cpdef consumed(self, Http2Stream stream, Py_ssize_t size)
    @cython.locals(raw="const unsigned char*", at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t,
                   stream_id=Py_ssize_t)
    cdef _read(self, bytes data)
    cdef _frame(self, int kind, int flags, Py_ssize_t stream_id, bytes data, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(stream=Http2Stream, state=int)
    cdef Http2Stream _found(self, int kind, Py_ssize_t stream_id)
    @cython.locals(size=Py_ssize_t, stream=Http2Stream)
    cdef _data(self, int flags, Py_ssize_t stream_id, bytes data, Py_ssize_t start, Py_ssize_t end)
    cdef _unpadded(self, bytes data, Py_ssize_t start, Py_ssize_t end)
    cdef _expect(self, Http2Stream stream, Py_ssize_t size, int is_last)
    cdef _headers(self, int flags, Py_ssize_t stream_id, bytes data, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(stream=Http2Stream)
    cdef _block(self, Py_ssize_t stream_id, int flags, bytes block)
    @cython.locals(size=Py_ssize_t, stream=Http2Stream)
    cdef _window_update(self, Py_ssize_t stream_id, bytes data, Py_ssize_t start, Py_ssize_t end)
    cdef _other(self, int kind, int flags, Py_ssize_t stream_id, bytes payload)
    cdef _credit(self, Py_ssize_t size)
    cdef _pump(self)
    cdef _end(self, Http2Stream stream, bytes trailers)
    cdef _close(self, Http2Stream stream)
    cdef _forget(self, Py_ssize_t stream_id)

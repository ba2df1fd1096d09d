# Types of outgoing.py; see remoting/native/typed.py.
cimport cython

cdef class Http2Stream:
    cdef public object pending, trailers, user
    cdef public Py_ssize_t stream_id, send_window, receive_window, uncredited_bytes, expected_bytes, pending_bytes
    cdef public int state

cdef class SendingSide:
    cdef public Py_ssize_t room, window, window_first, frame_bytes_max
    cdef public bint needs_table_update
    cdef list _parts
    cdef dict _waiting

    cpdef add(self, bytes frames)
    cpdef bytes take(self)
    @cython.locals(size=Py_ssize_t)
    cpdef data(self, Http2Stream stream, bytes data)
    @cython.locals(stream=Http2Stream, size=Py_ssize_t, sent=bint)
    cpdef list pump(self)
    cpdef drop(self, Http2Stream stream)
    @cython.locals(window=Py_ssize_t)
    cpdef opened(self, Http2Stream stream, Py_ssize_t size)
    @cython.locals(first=bytes)
    cdef _send(self, Http2Stream stream, Py_ssize_t size)

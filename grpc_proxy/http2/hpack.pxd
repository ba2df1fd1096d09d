# Types of hpack.py; see remoting/native/typed.py.
cimport cython

from grpc_proxy.http2.huffman cimport decoded

cdef tuple STATIC

cdef class HeaderDecoder:
    cdef list _table
    cdef Py_ssize_t _table_bytes, _table_bytes_max
    cdef bytes _block
    cdef Py_ssize_t _at, _end

    @cython.locals(fields=list, field=tuple, list_bytes=Py_ssize_t, byte=cython.uint)
    cpdef decode(self, bytes block, Py_ssize_t list_bytes_max)
    @cython.locals(number="long long", byte=cython.uint, shift=int, raw="const unsigned char*")
    cdef long long _number(self, int mask) except -1
    @cython.locals(start=Py_ssize_t, size=Py_ssize_t, is_coded=bint)
    cdef bytes _string(self)
    @cython.locals(place=Py_ssize_t)
    cdef tuple _indexed(self, long long index)
    cdef tuple _literal(self, long long index)
    @cython.locals(size=Py_ssize_t)
    cdef _enter(self, tuple field)
    cdef _resize(self, long long table_bytes_max)
    @cython.locals(count=Py_ssize_t)
    cdef _shrink(self, Py_ssize_t bytes_max)

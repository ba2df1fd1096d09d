# Types of huffman.py; see remoting/native/typed.py.
cimport cython

cdef bytes AFTER, ENDED, KINDS, MAY_END

@cython.locals(after="const unsigned char*", ended="const unsigned char*", kinds="const unsigned char*",
               byte=cython.uint, place=cython.uint, node=cython.uint, at=Py_ssize_t, count=Py_ssize_t, found="unsigned char*")
cpdef bytes decoded(const unsigned char* data, Py_ssize_t start, Py_ssize_t end)

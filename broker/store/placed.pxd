# Types of placed.py; see remoting/native/typed.py.

cimport cython

cdef class Placed:
    cdef readonly bytes images
    cdef readonly list queues
    cdef readonly Py_ssize_t count

@cython.locals(part=Placed, images=list, queues=list)
cpdef tuple parts_of(placed)

@cython.locals(part=Placed, images=list, queues=list, count=Py_ssize_t)
cpdef Placed together(parts)

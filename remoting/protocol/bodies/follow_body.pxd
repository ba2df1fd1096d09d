# Types of follow_body.py; see remoting/native/typed.py.

cimport cython

@cython.locals(parts=list)
cpdef encode_notify(ends, records=*)
@cython.locals(count=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t, grown=list)
cpdef decode_notify(body)

# Types of follow_body.py; see remoting/native/typed.py.

cimport cython

@cython.locals(parts=list)
cpdef encode_notify(news, records=*)
@cython.locals(count=Py_ssize_t, end=Py_ssize_t)
cpdef decode_notify(body)

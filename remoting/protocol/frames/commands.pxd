# Types of commands.py; see remoting/native/typed.py.

cdef class Command:
    cdef public object body, code, fields, flag, language, opaque, remark, serialize_type, version

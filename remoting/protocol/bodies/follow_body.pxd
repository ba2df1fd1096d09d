# Types of follow_body.py; see remoting/native/typed.py.

cpdef encode_notify(news, records=*)
cpdef decode_notify(body)

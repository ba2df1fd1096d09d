# Types of append_body.py; see remoting/native/typed.py.

cpdef encode_append_reply(long long end_position, placed, unwanted=*)

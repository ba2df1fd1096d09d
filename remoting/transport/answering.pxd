# Types of answering.py; see remoting/native/typed.py.

from remoting.protocol.frames.commands cimport Command

cpdef answer(handler, peer, Command command)

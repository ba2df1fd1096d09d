# Types of append.py; see remoting/native/typed.py.

cimport cython

from broker.publishing.placement cimport Placement
from broker.store.placed cimport Placed
from remoting.protocol.bodies.append_body cimport encode_append_reply
from remoting.protocol.frames.commands cimport Command
from remoting.server.authorizer cimport Authorizer
from remoting.transport.turn cimport soon

cdef class Appender:
    cdef bint _has_exact
    cdef Py_ssize_t _count
    cdef object _messages_in, _times
    cdef object _metrics
    cdef object _store
    cdef list _waiting
    cdef object _work

    cpdef add(self, Placed placed, done, exact=*)
    cpdef catch_up(self)
    cpdef flush(self)
    @cython.locals(count=Py_ssize_t, placed=Placed, parts=list, started_ns=cython.longlong, written_ns=cython.longlong)
    cpdef _append(self, list waiting)

cdef class _Written:
    cdef object _metrics, _appended, _times
    cdef list _waiting
    cdef long long _written_ns

    cpdef confirmed(self, error)

cdef class AppendRequests:
    cdef public object metrics, sessions, publication
    cdef object _store, _answers, _quota, _placing, _subscribers
    cdef Authorizer _authorizer
    cdef Placement _placement
    cdef Appender _appender

    @cython.locals(noted=PacketIds, placed=Placed, request=_AppendRequest)
    cpdef handle(self, peer, Command command)

cdef class _AppendRequest:
    cdef AppendRequests _requests
    cdef object _peer
    cdef Command _command
    cdef Placed _placed
    cdef object _left_out
    cdef public object unwanted

    @cython.locals(command=Command)
    cpdef done(self, appended, Py_ssize_t first, refused)

cdef class PacketIds:
    cdef object _peer
    cdef AppendRequests _requests
    cdef set _taken
    cdef public list ids, left_out
    cdef public object lost

cpdef authorize_body(Authorizer authorizer, peer, Command command)

# Types of source.py; see remoting/native/typed.py.
cimport cython
from mqtt_proxy.delivery.record_cache cimport Chunk, Feed
from mqtt_proxy.grants cimport Grant
from mqtt_proxy.mqtt.session.in_flight cimport Outgoing
from mqtt_proxy.mqtt.session.in_flight cimport DeliveryOrigin
from mqtt_proxy.mqtt.session.session_state cimport SessionState, Terms

@cython.locals(origin=DeliveryOrigin, count=Py_ssize_t)
cpdef Py_ssize_t settle(tokens) except -1

cdef class ExactRange:
    cdef readonly long long first
    cdef readonly long long below
    cdef readonly set in_flight

cdef class Source(DeliveryOrigin):
    cdef public Chunk chunk
    cdef public long long committed
    cdef public long long cursor
    cdef public ExactRange exact
    cdef public Feed feed
    cdef public object filter
    cdef public Grant grant
    cdef public object history
    cdef public long long live_from
    cdef public object retained
    cdef public long serial
    cdef public dict shadows
    cdef public long long start
    cdef public dict unacked

    cpdef long long lowest(self) except? -1
    cpdef acknowledge(self, offset)
    @cython.locals(exact=ExactRange)
    cpdef bint is_exact(self, long long offset) except -1

@cython.locals(
    offset=cython.longlong, index=cython.longlong, key=tuple, shared=tuple, written=tuple, outgoing=Outgoing,
    terms=Terms,     free=Py_ssize_t, taken=Py_ssize_t, level=cython.int, out=list,
)
cpdef tuple send_run(SessionState session, Source source, Chunk chunk, Py_ssize_t portion, Py_ssize_t budget)

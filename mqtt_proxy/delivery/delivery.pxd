# Types of delivery.py; see remoting/native/typed.py.
cimport cython
from mqtt_proxy.delivery.record_cache cimport Notifier
from mqtt_proxy.delivery.record_cache cimport Chunk, Feed, RecordCache
from mqtt_proxy.delivery.source cimport Source
from mqtt_proxy.mqtt.session.in_flight cimport Outgoing
from mqtt_proxy.mqtt.session.session_state cimport SessionState
from mqtt_proxy.traffic cimport Flow
from remoting.transport.turn cimport soon

cdef class Pump:
    cdef dict _behind
    cdef object _log
    cdef dict _ready
    cdef bint _scheduled

    cpdef wake(self, session)
    cpdef later(self, session)
    cpdef forget(self, session)

cdef class DeliveryTools:
    cdef public RecordCache cache
    cdef public object clock
    cdef public object metrics
    cdef public Notifier notifier
    cdef public object offsets
    cdef public object puller
    cdef public Pump pump
    cdef public object shared
    cdef public object traces

cdef class Delivery:
    cdef dict _by_queue
    cdef Flow _flow
    cdef object _out
    cdef object _owner
    cdef object _sent
    cdef bint _running
    cdef long _serial
    cdef SessionState _session
    cdef bint _slow
    cdef DeliveryTools _tools
    cdef Py_ssize_t _turn
    cdef Py_ssize_t _window_most
    cdef bint _writable
    cdef public bytes committed_key
    cdef public object memberships
    cdef public object outbound
    cdef public list sources

    @cython.locals(source=Source, found=Source)
    cpdef Source reader_of(self, long long queue_id)
    cpdef wake(self)
    @cython.locals(source=Source, sources=list)
    cpdef acknowledged(self, tokens)
    @cython.locals(outgoing=Outgoing)
    cdef _widen(self)
    @cython.locals(source=Source)
    cpdef Py_ssize_t lag(self, Feed feed) except? -1
    @cython.locals(source=Source, slow=cython.bint, messages=Py_ssize_t, more=cython.bint)
    cpdef bint pump(self, Py_ssize_t portions) except -1
    @cython.locals(source=Source, left=Py_ssize_t, moved=cython.bint, before=cython.longlong, sent=Py_ssize_t, rest=cython.bint)
    cdef bint _pump_all(self, Py_ssize_t portion) except -1
    cdef Py_ssize_t _send_of(self, Source source, Py_ssize_t portion) except? -1
    @cython.locals(left=Py_ssize_t, feed=Feed, newest=Chunk, sent=Py_ssize_t, before=cython.longlong)
    cdef bint _pump_one(self, Source source, Py_ssize_t portion) except -1
    cdef _account(self, Py_ssize_t sent)
    @cython.locals(feed=Feed, offset=cython.longlong, chunk=Chunk, sent=Py_ssize_t, alone=cython.bint)
    cdef Py_ssize_t _take(self, Source source, Py_ssize_t portion) except? -1

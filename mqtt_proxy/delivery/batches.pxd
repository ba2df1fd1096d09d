# Types of runs.py; see remoting/native/typed.py.

cimport cython

from mqtt_proxy.delivery.record_cache cimport Chunk
from mqtt_proxy.delivery.source cimport Source
from mqtt_proxy.mqtt.session.outgoing cimport Outgoing
from mqtt_proxy.mqtt.session.session_state cimport SessionState, Terms

@cython.locals(
    offset=cython.longlong, index=cython.longlong, key=tuple, shared=tuple, written=tuple, outgoing=Outgoing,
    terms=Terms,     free=Py_ssize_t, taken=Py_ssize_t, level=cython.int, out=list,
)
cpdef tuple send_run(SessionState session, Source source, Chunk chunk, Py_ssize_t portion, Py_ssize_t budget)

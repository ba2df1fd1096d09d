# Types of judged_topics.py; see remoting/hot/typed.py.

cdef class JudgedTopics:
    cdef object _judge, _identity
    cdef dict _masks

    cpdef first_refused(self, publishes)
    cpdef _ask(self, topic)

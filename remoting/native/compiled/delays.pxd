# What delays.py shares with images.py: the layout of a span.
cdef class DueSpan:
    cdef readonly tuple queues
    cdef int _counts[300]

cdef long long show(char *source, char *to) noexcept

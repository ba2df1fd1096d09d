# What vectors.py shares with the other compiled modules: a column's memory.
cdef extern from "vectors.h" nogil:
    enum:
        U8, U16, U32, U64, I64
    enum:
        ADD, SUB, MUL, DIV, MOD, SHR, SHL, AND, OR, EQ, NE, LT, LE, GT, GE, MAX, RSUB
    Py_ssize_t column_width(int kind)
    long long column_load(const char *at, int kind)
    bint column_fits(long long number, int kind)
    void column_store(char *at, int kind, long long number)
    void column_combine(
        int what, int kind, const long long *a, const long long *b, Py_ssize_t by, long long *to, Py_ssize_t n
    )
    void column_take(const char *at, Py_ssize_t step, int kind, const long long *rows, Py_ssize_t n, char *to)
    Py_ssize_t column_count(const char *at, Py_ssize_t step, int kind, Py_ssize_t n)
    void column_nonzero(const char *at, Py_ssize_t step, int kind, Py_ssize_t n, long long *to, Py_ssize_t room)
    Py_ssize_t column_convert(const char *at, Py_ssize_t step, int kind, Py_ssize_t n, char *to, int wanted)
    void column_compare(int what, const long long *a, const long long *b, Py_ssize_t by, char *to, Py_ssize_t n)

cdef class Column:
    cdef object _owner
    cdef char *_at
    cdef Py_ssize_t _length
    cdef Py_ssize_t _step
    cdef int _kind
    cdef bint _fixed
    cdef Py_ssize_t _shape[1]
    cdef Py_ssize_t _strides[1]
    cdef Py_ssize_t _row(self, Py_ssize_t row) except? -1
    cdef int _put(self, Py_ssize_t row, object value) except? -1

cdef Column made(Py_ssize_t length, int kind)
cdef Column packed(object numbers, int kind)
cdef Column combined(int what, Column left, object other)

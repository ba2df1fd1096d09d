/* The loops over columns: numbers at any address, two columns into one. The kinds are the letters of `struct`. */
#ifndef LIGHTMQ_VECTORS_H
#define LIGHTMQ_VECTORS_H
#include <Python.h>
#include <string.h>

enum { U8 = 'B', U16 = 'H', U32 = 'I', U64 = 'Q', I64 = 'q' };
enum { ADD, SUB, MUL, DIV, MOD, SHR, SHL, AND, OR, EQ, NE, LT, LE, GT, GE, MAX, RSUB };

static inline Py_ssize_t column_width(int kind) {
    return kind == I64 || kind == U64 ? 8 : kind == U32 ? 4 : kind == U16 ? 2 : 1;
}

static inline long long column_load(const char *at, int kind) {
    long long wide;
    unsigned int narrow;
    unsigned short brief;
    switch (kind) {
    case I64: case U64: memcpy(&wide, at, 8); return wide;
    case U32: memcpy(&narrow, at, 4); return narrow;
    case U16: memcpy(&brief, at, 2); return brief;
    default: return (unsigned char)*at;
    }
}

/* Whether a number fits a kind. A u64 above the i64 is carried as a negative number: only from u64 to u64. */
static inline int column_fits(long long number, int kind) {
    switch (kind) {
    case I64: return 1;
    case U64: return number >= 0;
    case U32: return number >= 0 && number <= 0xFFFFFFFFLL;
    case U16: return number >= 0 && number <= 0xFFFF;
    default: return number >= 0 && number <= 0xFF;
    }
}

static inline void column_store(char *at, int kind, long long number) {
    unsigned int narrow = (unsigned int)number;
    unsigned short brief = (unsigned short)number;
    switch (kind) {
    case I64: case U64: memcpy(at, &number, 8); break;
    case U32: memcpy(at, &narrow, 4); break;
    case U16: memcpy(at, &brief, 2); break;
    default: *at = (char)number;
    }
}

#define EACH(expression) for (row = 0; row < n; row++) to[row] = (expression); break

/* `by` is 1, or 0 where `b` is one number for all; divisors and shifts are always that. */
static inline void column_combine(int what, int kind, const long long *a, const long long *b, Py_ssize_t by,
                                  long long *to, Py_ssize_t n) {
    Py_ssize_t row;
    long long c = n ? b[0] : 1;
    switch (what) {
    case ADD: EACH((long long)((unsigned long long)a[row] + (unsigned long long)b[row * by]));
    case SUB: EACH((long long)((unsigned long long)a[row] - (unsigned long long)b[row * by]));
    case RSUB: EACH((long long)((unsigned long long)b[row * by] - (unsigned long long)a[row]));
    case MUL: EACH((long long)((unsigned long long)a[row] * (unsigned long long)b[row * by]));
    case DIV: EACH((a[row] >= 0 ? a[row] : a[row] - c + 1) / c);
    case MOD: EACH((a[row] % c + c) % c);
    case SHR:
        if (kind == U64) { EACH((long long)((unsigned long long)a[row] >> c)); }
        EACH(a[row] >> c);
    case SHL: EACH((long long)((unsigned long long)a[row] << c));
    case AND: EACH(a[row] & b[row * by]);
    case OR: EACH(a[row] | b[row * by]);
    default: EACH(a[row] > b[row * by] ? a[row] : b[row * by]);
    }
}

static inline void column_compare(int what, const long long *a, const long long *b, Py_ssize_t by, char *to,
                                  Py_ssize_t n) {
    Py_ssize_t row;
    switch (what) {
    case EQ: EACH(a[row] == b[row * by]);
    case NE: EACH(a[row] != b[row * by]);
    case LT: EACH(a[row] < b[row * by]);
    case LE: EACH(a[row] <= b[row * by]);
    case GT: EACH(a[row] > b[row * by]);
    default: EACH(a[row] >= b[row * by]);
    }
}

#undef EACH

/* The next four may run without the interpreter's lock: a million numbers take a millisecond or two. */
static inline void column_take(const char *from, Py_ssize_t step, int kind, const long long *rows, Py_ssize_t n, char *to) {
    Py_ssize_t row, width = column_width(kind);
    if (width == 8)
        for (row = 0; row < n; row++) memcpy(to + 8 * row, from + rows[row] * step, 8);
    else if (width == 4)
        for (row = 0; row < n; row++) memcpy(to + 4 * row, from + rows[row] * step, 4);
    else
        for (row = 0; row < n; row++) memcpy(to + width * row, from + rows[row] * step, width);
}

static inline Py_ssize_t column_count(const char *from, Py_ssize_t step, int kind, Py_ssize_t n) {
    Py_ssize_t row, count = 0;
    for (row = 0; row < n; row++) count += column_load(from + row * step, kind) != 0;
    return count;
}

static inline void column_nonzero(const char *from, Py_ssize_t step, int kind, Py_ssize_t n, long long *to,
                                  Py_ssize_t room) {
    Py_ssize_t row;
    for (row = 0; row < n && room > 0; row++)
        if (column_load(from + row * step, kind) != 0) *to++ = row, room--;
    while (room-- > 0) *to++ = 0; /* fewer than were counted: somebody has changed them */
}

/* Return the first row that does not fit, n when all do. */
static inline Py_ssize_t column_convert(const char *from, Py_ssize_t step, int kind, Py_ssize_t n, char *to, int wanted) {
    Py_ssize_t row, width = column_width(wanted);
    if (kind == U32 && step == 4 && wanted == I64) { /* the most frequent case */
        for (row = 0; row < n; row++) ((long long *)to)[row] = ((const unsigned int *)from)[row];
        return n;
    }
    for (row = 0; row < n; row++) {
        long long number = column_load(from + row * step, kind);
        if (!column_fits(number, wanted) && !(kind == U64 && wanted == U64)) break;
        column_store(to + width * row, wanted, number);
    }
    return row;
}
#endif

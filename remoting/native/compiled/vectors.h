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
#endif

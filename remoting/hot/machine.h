/* What the compiled core takes from C: the record's fixed header, CRC32C by the processor, slots read by their place.
 *
 * Invariant: only little-endian machines; the checksum equals the Python package crc32c bit for bit. Thread rule: pure
 * functions; the tables are filled once, by crc32c_ready(), before the first checksum, under the interpreter's lock.
 */
#ifndef LIGHTMQ_MACHINE_H
#define LIGHTMQ_MACHINE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are little-endian; the pure twin serves other machines"
#endif

/* remoting.protocol.record, 80 bytes, every field at its natural place */
typedef struct {
    uint32_t total, magic, crc, epoch;
    uint64_t position;
    int64_t born_ms, store_ms;
    uint32_t body_len, body_off, flags, count;
    uint16_t n_dispatch, n_props, topic_len, keys_len, tags_len, props_len;
    uint32_t tag_hash;
    uint64_t producer_seq;
} record_header;

typedef struct { uint32_t queue, reserved; uint64_t offset; } record_dispatch;

static uint32_t crc32c_tables[8][256];
static int crc32c_by_hardware = -1;

static inline int crc32c_ready(void) {
    if (crc32c_by_hardware >= 0) return crc32c_by_hardware;
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        crc32c_tables[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int slice = 1; slice < 8; slice++) {
            uint32_t before = crc32c_tables[slice - 1][n];
            crc32c_tables[slice][n] = before >> 8 ^ crc32c_tables[0][before & 255];
        }
#if defined(__x86_64__) && defined(__GNUC__)
    crc32c_by_hardware = __builtin_cpu_supports("sse4.2") != 0;
#else
    crc32c_by_hardware = 0;
#endif
    return crc32c_by_hardware;
}

static uint32_t crc32c_software(uint32_t crc, const unsigned char *at, size_t length) {
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= crc;
        crc = crc32c_tables[7][word & 255] ^ crc32c_tables[6][word >> 8 & 255] ^ crc32c_tables[5][word >> 16 & 255] ^
              crc32c_tables[4][word >> 24 & 255] ^ crc32c_tables[3][word >> 32 & 255] ^
              crc32c_tables[2][word >> 40 & 255] ^ crc32c_tables[1][word >> 48 & 255] ^ crc32c_tables[0][word >> 56];
    }
    for (; length; at++, length--) crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *at) & 255];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2")))
static uint32_t crc32c_hardware(uint32_t crc, const unsigned char *at, size_t length) {
    uint64_t wide = crc;
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; length; at++, length--) crc = __builtin_ia32_crc32qi(crc, *at);
    return crc;
}
#else
#define crc32c_hardware crc32c_software
#endif

/* The checksum of `length` bytes, going on from `crc` (0 at the start). */
static inline uint32_t crc32c_extend(uint32_t crc, const char *at, size_t length) {
    const unsigned char *bytes = (const unsigned char *)at;
    return ~(crc32c_by_hardware > 0 ? crc32c_hardware(~crc, bytes, length) : crc32c_software(~crc, bytes, length));
}

/* The checksum of a record as it stands: its type, then everything behind the checksum field. */
static inline uint32_t record_checksum(const char *at, size_t total) {
    return crc32c_extend(crc32c_extend(0, at + 4, 4), at + 12, total - 12);
}

/* Where a __slots__ member lies in its object, -1 when the descriptor is none of a plain object slot. */
static inline Py_ssize_t slot_place(PyObject *descriptor) {
    if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return -1;
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    return member->type == 16 /* T_OBJECT_EX */ ? member->offset : -1;
}

/* The object in a slot (borrowed), NULL when it was never set. */
static inline PyObject *slot_object(PyObject *object, Py_ssize_t place) {
    return *(PyObject **)((char *)object + place);
}

/* An object of a class with nothing in its slots yet, made without calling its constructor. */
static inline PyObject *bare_instance(PyObject *cls) {
    return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0);
}

/* Put an object into a slot; what was there before is released. */
static inline void fill_slot(PyObject *owner, Py_ssize_t place, PyObject *value) {
    PyObject **at = (PyObject **)((char *)owner + place);
    PyObject *before = *at;
    Py_INCREF(value);
    *at = value;
    Py_XDECREF(before);
}

/* The first place in [from, end) that holds `wanted`, `end` when there is none; sixteen are compared at a time. */
static inline int64_t find_u32(const uint32_t *column, int64_t from, int64_t end, uint32_t wanted) {
    for (; from + 16 <= end; from += 16) {
        uint32_t seen = 0;
        for (int lane = 0; lane < 16; lane++) seen |= column[from + lane] == wanted;
        if (seen) break;
    }
    while (from < end && column[from] != wanted) from++;
    return from;
}

/* Whether all bytes are ASCII, eight at a time. */
static inline int all_ascii(const char *at, size_t length) {
    uint64_t seen = 0, word;
    for (; length >= 8; at += 8, length -= 8) { memcpy(&word, at, 8); seen |= word; }
    for (; length; at++, length--) seen |= (unsigned char)*at;
    return (seen & 0x8080808080808080ull) == 0;
}

#endif

/* What the compiled core takes from C: the record's fixed header, its checksum (crc32c.h), slots read by their place.
 *
 * Invariant: only little-endian machines. Thread rule: pure functions.
 */
#ifndef LIGHTMQ_MACHINE_H
#define LIGHTMQ_MACHINE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#endif
#include "crc32c.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are little-endian; the pure twin serves other machines"
#endif

/* remoting.protocol.records.record, 80 bytes, every field at its natural place */
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

/* Whether a whole header and, by its own lengths, a whole record stand at `at`: every part inside, padded to eight. */
static inline int record_fits(const char *at, int64_t available) {
    const record_header *head = (const record_header *)at;
    if (available < (int64_t)sizeof(record_header)) return 0;
    int64_t meta_end = (int64_t)sizeof(record_header) + 16 * (int64_t)head->n_dispatch + 4 * (int64_t)head->n_props
        + head->topic_len + head->keys_len + head->tags_len + head->props_len;
    int64_t body_end = (int64_t)head->body_off + head->body_len;
    return head->total <= available && head->body_off == ((meta_end + 7) & ~7) && head->total == ((body_end + 7) & ~7);
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

# Declarations of machine.h for `from cython.cimports.remoting.native.compiled.machine import ...`.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "machine.h" nogil:
    ctypedef struct record_header:
        uint32_t total
        uint32_t magic
        uint32_t crc
        uint32_t epoch
        uint64_t position
        int64_t born_ms
        int64_t store_ms
        uint32_t body_len
        uint32_t body_off
        uint32_t flags
        uint32_t count
        uint16_t n_dispatch
        uint16_t n_props
        uint16_t topic_len
        uint16_t keys_len
        uint16_t tags_len
        uint16_t props_len
        uint32_t tag_hash
        uint64_t producer_seq
    ctypedef struct record_dispatch:
        uint32_t queue
        uint32_t reserved
        uint64_t offset
    int crc32c_ready()
    uint32_t crc32c_extend(uint32_t crc, const void *at, size_t length)
    uint32_t crc32c_by_tables(uint32_t crc, const void *at, size_t length)
    int record_fits(const char *at, int64_t available)
    uint32_t record_checksum(const char *at, size_t total)
    int64_t find_u32(const uint32_t *column, int64_t start, int64_t end, uint32_t wanted)
    int all_ascii(const char *at, size_t length)

cdef extern from "machine.h":
    ctypedef struct PyObject
    Py_ssize_t slot_place(object descriptor)
    PyObject *slot_object(object owner, Py_ssize_t place)
    object bare_instance(object cls)
    void fill_slot(object owner, Py_ssize_t place, object value)

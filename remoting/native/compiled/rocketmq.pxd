# What rocketmq.py takes from C: the checksum of a body, and numbers in network order.
from libc.stdint cimport int32_t, int64_t, uint32_t

cdef extern from "crc32.h" nogil:
    int crc32_ready()
    uint32_t crc32_of(const void *data, size_t length)

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define LIGHTMQ_SWAP_2(value) __builtin_bswap16(value)
    #define LIGHTMQ_SWAP_4(value) __builtin_bswap32(value)
    #define LIGHTMQ_SWAP_8(value) __builtin_bswap64(value)
    #else
    #define LIGHTMQ_SWAP_2(value) (uint16_t)((uint16_t)(value) >> 8 | (uint16_t)(value) << 8)
    #define LIGHTMQ_SWAP_4(value) ((uint32_t)LIGHTMQ_SWAP_2(value) << 16 | LIGHTMQ_SWAP_2((uint32_t)(value) >> 16))
    #define LIGHTMQ_SWAP_8(value) ((uint64_t)LIGHTMQ_SWAP_4(value) << 32 | LIGHTMQ_SWAP_4((uint64_t)(value) >> 32))
    #endif
    static inline char *put_2(char *to, uint16_t value) { value = LIGHTMQ_SWAP_2(value); memcpy(to, &value, 2); return to + 2; }
    static inline char *put_4(char *to, int32_t value) {
        uint32_t swapped = LIGHTMQ_SWAP_4((uint32_t)value);
        memcpy(to, &swapped, 4);
        return to + 4;
    }
    static inline char *put_8(char *to, int64_t value) {
        uint64_t swapped = LIGHTMQ_SWAP_8((uint64_t)value);
        memcpy(to, &swapped, 8);
        return to + 8;
    }
    static inline char *put_text(char *to, const char *text, size_t length) { memcpy(to, text, length); return to + length; }
    static inline int32_t get_4(const char *at) { uint32_t value; memcpy(&value, at, 4); return (int32_t)LIGHTMQ_SWAP_4(value); }
    static inline int get_2(const char *at) { uint16_t value; memcpy(&value, at, 2); return (int16_t)LIGHTMQ_SWAP_2(value); }
    /* Whether 01 or 02, the separators of RocketMQ's properties, are among the bytes. */
    static inline int has_separator(const char *at, size_t length) {
        unsigned char seen = 0;
        for (size_t row = 0; row < length; row++) seen |= (unsigned char)(at[row] - 1) < 2;
        return seen;
    }
    /* One hexadecimal digit, -1 for anything else. */
    static inline int hex_digit(char digit) {
        return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
             : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
    }
    """
    char *put_2(char *to, unsigned short value)
    char *put_4(char *to, int value)
    char *put_8(char *to, long long value)
    char *put_text(char *to, const char *text, size_t length)
    int get_4(const char *at)
    int get_2(const char *at)
    int has_separator(const char *at, size_t length)
    int hex_digit(char digit)

/* CRC32C (Castagnoli) by the processor's instruction (SSE 4.2, ARMv8 with CRC), else by eight tables.
 *
 * The instruction takes 8 bytes per clock but answers after 3, so longer inputs are read as three streams at a time; their
 * checksums are joined by "so many zero bytes more", which is linear and therefore a look into four tables.
 * Layout of a round: LONG bytes three times, then SHORT bytes three times, then 8 bytes at a time, then the rest.
 * Invariant: the numbers are those of RFC 3720, whichever way was taken; machine.h refuses big-endian machines.
 * Thread rule: pure functions; crc32c_ready() fills the tables once, under the interpreter's lock, before the first use.
 */
#ifndef LIGHTMQ_CRC32C_H
#define LIGHTMQ_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#define CRC32C_8(crc, word) __builtin_ia32_crc32di(crc, word)
#define CRC32C_1(crc, byte) __builtin_ia32_crc32qi(crc, byte)
#define CRC32C_IN_PROCESSOR (__builtin_cpu_supports("sse4.2") != 0)
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#include <sys/auxv.h>
#define CRC32C_TARGET __attribute__((target("+crc")))
#define CRC32C_8(crc, word) __builtin_aarch64_crc32cx(crc, word)
#define CRC32C_1(crc, byte) __builtin_aarch64_crc32cb(crc, byte)
#define CRC32C_IN_PROCESSOR ((getauxval(AT_HWCAP) >> 7 & 1) != 0) /* HWCAP_CRC32 */
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_TARGET
#define CRC32C_8(crc, word) __crc32cd(crc, word)
#define CRC32C_1(crc, byte) __crc32cb(crc, byte)
#define CRC32C_IN_PROCESSOR 1
#endif

#define CRC32C_LONG 2048
#define CRC32C_SHORT 128

static uint32_t crc32c_tables[8][256];
static uint32_t crc32c_after_long[4][256], crc32c_after_short[4][256];
static int crc32c_by_hardware = -1;

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

#ifdef CRC32C_TARGET
/* Fill the tables that say what becomes of a remainder when `length` zero bytes follow it: bit by bit, then by sums. */
static void crc32c_fill_after(uint32_t after[4][256], size_t length) {
    static const unsigned char zeros[CRC32C_LONG];
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 1; value < 256; value++) {
            uint32_t low = value & (0u - value);
            after[byte][value] = low == value ? crc32c_software(value << 8 * byte, zeros, length)
                                              : after[byte][value ^ low] ^ after[byte][low];
        }
}

static inline uint32_t crc32c_after(const uint32_t after[4][256], uint32_t crc) {
    return after[0][crc & 255] ^ after[1][crc >> 8 & 255] ^ after[2][crc >> 16 & 255] ^ after[3][crc >> 24];
}

/* One round of three streams of `length` bytes each, a multiple of 8. */
CRC32C_TARGET static inline uint32_t crc32c_three(
    uint32_t crc, const unsigned char *at, size_t length, const uint32_t after[4][256]
) {
    uint64_t first = crc, second = 0, third = 0; /* as wide as the instruction gives them: narrowing costs a clock */
    for (const unsigned char *end = at + length; at < end; at += 8) {
        uint64_t words[3];
        memcpy(&words[0], at, 8);
        memcpy(&words[1], at + length, 8);
        memcpy(&words[2], at + 2 * length, 8);
        first = CRC32C_8(first, words[0]);
        second = CRC32C_8(second, words[1]);
        third = CRC32C_8(third, words[2]);
    }
    return crc32c_after(after, crc32c_after(after, (uint32_t)first) ^ (uint32_t)second) ^ (uint32_t)third;
}

CRC32C_TARGET static uint32_t crc32c_hardware(uint32_t crc, const unsigned char *at, size_t length) {
    for (; length >= 3 * CRC32C_LONG; at += 3 * CRC32C_LONG, length -= 3 * CRC32C_LONG)
        crc = crc32c_three(crc, at, CRC32C_LONG, crc32c_after_long);
    for (; length >= 3 * CRC32C_SHORT; at += 3 * CRC32C_SHORT, length -= 3 * CRC32C_SHORT)
        crc = crc32c_three(crc, at, CRC32C_SHORT, crc32c_after_short);
    uint64_t wide = crc;
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        wide = CRC32C_8(wide, word);
    }
    crc = (uint32_t)wide;
    for (; length; at++, length--) crc = CRC32C_1(crc, *at);
    return crc;
}
#else
#define CRC32C_IN_PROCESSOR 0
#define crc32c_hardware crc32c_software
#define crc32c_fill_after(after, length) ((void)(after))
#endif

/* Fill the tables and look at the processor; returns whether its instruction is used. */
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
    crc32c_fill_after(crc32c_after_long, CRC32C_LONG);
    crc32c_fill_after(crc32c_after_short, CRC32C_SHORT);
    crc32c_by_hardware = CRC32C_IN_PROCESSOR;
    return crc32c_by_hardware;
}

/* The checksum of `length` bytes, going on from `crc` (0 at the start). */
static inline uint32_t crc32c_extend(uint32_t crc, const void *at, size_t length) {
    const unsigned char *bytes = (const unsigned char *)at;
    return ~(crc32c_by_hardware > 0 ? crc32c_hardware(~crc, bytes, length) : crc32c_software(~crc, bytes, length));
}

/* The same by the tables alone, which tests compare. */
static inline uint32_t crc32c_by_tables(uint32_t crc, const void *at, size_t length) {
    return ~crc32c_software(~crc, (const unsigned char *)at, length);
}

#endif

/* CRC-32 (IEEE 802.3), the checksum of a body in RocketMQ's stored message: eight tables, eight bytes at a time.
 *
 * Invariant: the numbers are those of zlib.crc32; machine.h refuses big-endian machines.
 * Thread rule: pure functions; crc32_ready() fills the tables once, under the interpreter's lock, before the first use.
 */
#ifndef LIGHTMQ_CRC32_H
#define LIGHTMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32_tables[8][256];

static inline int crc32_ready(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc32_tables[0][value] = crc;
    }
    for (uint32_t value = 0; value < 256; value++)
        for (int table = 1; table < 8; table++) {
            uint32_t before = crc32_tables[table - 1][value];
            crc32_tables[table][value] = before >> 8 ^ crc32_tables[0][before & 255];
        }
    return 0;
}

static inline uint32_t crc32_of(const void *data, size_t length) {
    const unsigned char *at = (const unsigned char *)data;
    uint32_t crc = 0xFFFFFFFFu;
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= crc;
        crc = crc32_tables[7][word & 255] ^ crc32_tables[6][word >> 8 & 255] ^ crc32_tables[5][word >> 16 & 255] ^
              crc32_tables[4][word >> 24 & 255] ^ crc32_tables[3][word >> 32 & 255] ^
              crc32_tables[2][word >> 40 & 255] ^ crc32_tables[1][word >> 48 & 255] ^ crc32_tables[0][word >> 56];
    }
    for (; length; at++, length--) crc = crc >> 8 ^ crc32_tables[0][(crc ^ *at) & 255];
    return ~crc;
}

#endif

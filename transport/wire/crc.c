/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins CRCs of adjacent byte ranges. A CRC is the remainder of the message as a polynomial over
 * GF(2). Appending n bytes multiplies the polynomial by x^(8n). The inversions before and after
 * cancel out between the two parts.
 */
#include "crc.h"

#include <cachefs/transport.h>
#include <pthread.h>

#define POLY 0x82f63b78u /* CRC-32C, bit 31 is x^0 */

static uint32_t segment_table[4][256]; /* [i][b]: b << 8i times x^(8 * CFS_PEER_SEGMENT) */
static uint32_t powers[32];	       /* x^(8 * 2^i) */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;
	int i;

	for (i = 31; i >= 0; i--) {
		if (a >> i & 1)
			product ^= b;
		b = b >> 1 ^ (b & 1 ? POLY : 0);
	}
	return product;
}

static uint32_t power(uint32_t bytes)
{
	uint32_t x = 1u << 31;
	unsigned i;

	for (i = 0; bytes; i++, bytes >>= 1) {
		if (bytes & 1)
			x = multiply(powers[i], x);
	}
	return x;
}

static void fill_tables(void)
{
	uint32_t segment, v;
	unsigned i;

	powers[0] = 1u << 23;
	for (i = 1; i < 32; i++)
		powers[i] = multiply(powers[i - 1], powers[i - 1]);
	segment = power(CFS_PEER_SEGMENT);
	for (i = 0; i < 4; i++) {
		for (v = 0; v < 256; v++)
			segment_table[i][v] = multiply(segment, v << 8 * i);
	}
}

uint32_t cfs_crc_join(uint32_t crc_a, uint32_t crc_b, uint32_t len_b)
{
	pthread_once(&once, fill_tables);
	if (len_b != CFS_PEER_SEGMENT)
		return multiply(power(len_b), crc_a) ^ crc_b;
	return segment_table[0][crc_a & 0xff] ^ segment_table[1][crc_a >> 8 & 0xff] ^
	       segment_table[2][crc_a >> 16 & 0xff] ^ segment_table[3][crc_a >> 24] ^ crc_b;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* For fuzz targets: an input as a source of values. */
#ifndef CFS_TESTS_FUZZ_H
#define CFS_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* libFuzzer's, or those of replay.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void check(bool ok)
{
	if (!ok)
		abort();
}

/* The rest of the input. */
struct fuzz_in {
	const uint8_t *p;
	size_t left;
};

/* 0 at the end of the input. */
static inline uint8_t fuzz_u8(struct fuzz_in *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->p++;
}

static inline uint64_t fuzz_uint(struct fuzz_in *in, unsigned bytes)
{
	uint64_t v = 0;

	while (bytes--)
		v = v << 8 | fuzz_u8(in);
	return v;
}

/* A copy of the next bytes with a zero behind it, exactly as long, so that sanitizers see its end. */
static inline char *fuzz_text(struct fuzz_in *in, size_t len)
{
	char *text;

	len = len < in->left ? len : in->left;
	text = malloc(len + 1);
	check(text != NULL);
	if (len)
		memcpy(text, in->p, len);
	text[len] = '\0';
	in->p += len;
	in->left -= len;
	return text;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of a replica, which come from a bucket. The hashes of an input are made right first, as an
 * attacker with a key to the bucket can do: what then passes is consistent, and its body unpacks
 * to the length that the header says or not at all.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "fuzz.h"
#include "replica/replica-internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	uint8_t *bytes = malloc(len + 1), *raw = NULL;
	struct entry e;

	if (!bytes)
		abort();
	memcpy(bytes, data, len);
	if (len >= ENTRY_HEADER) {
		entry_hash(bytes + ENTRY_HEADER, len - ENTRY_HEADER, bytes + 184);
		entry_hash(bytes, 216, bytes + 216);
	}
	if (!entry_parse(bytes, len, &e)) {
		if (e.body_len != len - ENTRY_HEADER || e.raw_len > ENTRY_MAX || !e.n ||
		    e.base_at > e.number)
			abort();
		if (!entry_unpack(&e, &raw)) {
			/* All of it can be read. */
			for (size_t i = 0; i < e.raw_len; i += 509)
				*(volatile uint8_t *)(raw + i);
			free(raw);
		}
	}
	free(bytes);
	return 0;
}

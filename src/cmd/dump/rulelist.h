/* SPDX-License-Identifier: Apache-2.0 */
/* A list of ACL rules in memory; a volume has few. Zeroed memory is an empty list. */
#ifndef CFS_CMD_RULELIST_H
#define CFS_CMD_RULELIST_H

#include <stddef.h>
#include <stdint.h>

struct rulelist {
	struct rule {
		uint32_t id;
		uint8_t *packed;
		size_t len;
	} *v;
	size_t n, cap;
};

int rulelist_add(struct rulelist *l, uint32_t id, const void *packed, size_t len); /* or -ENOMEM */
void rulelist_sort(struct rulelist *l);
/* Searches a sorted list; NULL: not found. */
const struct rule *rulelist_find(const struct rulelist *l, uint32_t id);
void rulelist_free(struct rulelist *l);

#endif

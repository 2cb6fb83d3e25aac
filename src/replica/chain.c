/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of a chain. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "replica-internal.h"

#define FOLDER "meta-replica/"
/* Encryption adds at most that many bytes. */
#define OVERHEAD 4096

void chain_entry_key(const char *volume, uint64_t number, char ret[CHAIN_KEY])
{
	snprintf(ret, CHAIN_KEY, "%s/" FOLDER "log-%016" PRIx64, volume, number);
}

void chain_piece_key(const char *volume, uint64_t token, uint32_t piece, char ret[CHAIN_KEY])
{
	snprintf(ret, CHAIN_KEY, "%s/" FOLDER "base-%016" PRIx64 "-%08" PRIx32, volume, token,
		 piece);
}

void chain_prefix(const char *volume, const char *kind, char ret[CHAIN_KEY])
{
	snprintf(ret, CHAIN_KEY, "%s/" FOLDER "%s", volume, kind);
}

int chain_get(struct cfs_object_store *o, const char *key, size_t max, cfs_deadline_t deadline,
	      uint8_t **ret, size_t *ret_len)
{
	struct cfs_object_info info;
	struct iovec iov;
	ssize_t n;
	int r = o->ops->head(o, key, &info, deadline);

	if (r < 0)
		return r;
	if (info.size > max + OVERHEAD)
		return -EFBIG;
	iov = (struct iovec){malloc(info.size + 1), info.size + 1};
	if (!iov.iov_base)
		return -ENOMEM;
	n = cfs_object_get(o, key, 0, &iov, 1, deadline);
	if (n < 0 || (size_t)n > info.size) {
		free(iov.iov_base);
		return n < 0 ? (int)n : -EBADMSG;
	}
	*ret = iov.iov_base;
	*ret_len = (size_t)n;
	return 0;
}

int chain_get_entry(struct cfs_object_store *o, const char *volume, uint64_t number,
		    cfs_deadline_t deadline, struct entry *ret, uint8_t **ret_bytes)
{
	char key[CHAIN_KEY];
	uint8_t *bytes = NULL;
	size_t len = 0;
	int r;

	chain_entry_key(volume, number, key);
	/* Compression may make a body a little longer. */
	r = chain_get(o, key, ENTRY_HEADER + ENTRY_MAX + ENTRY_MAX / 128, deadline, &bytes, &len);
	if (r == -EFBIG)
		return -EBADMSG;
	if (r)
		return r;
	r = entry_parse(bytes, len, ret);
	if (!r && ret->number != number)
		r = -EBADMSG; /* another entry's object has its name */
	if (r)
		free(bytes);
	else
		*ret_bytes = bytes;
	return r;
}

bool chain_number(const char *key, uint64_t *ret)
{
	const char *name = strrchr(key, '/');
	int end = 0;

	return name && sscanf(name + 1, "log-%16" SCNx64 "%n", ret, &end) == 1 && end == 20 &&
	       !name[1 + end] && *ret;
}

bool chain_token(const char *key, uint64_t *ret)
{
	const char *name = strrchr(key, '/');

	return name && sscanf(name + 1, "base-%16" SCNx64 "-", ret) == 1;
}

static int add_number(void *arg, const struct cfs_object_info *info)
{
	struct chain_list *l = arg;
	uint64_t number;

	if (!chain_number(info->key, &number))
		return 0;
	if (CFS_ARRAY_ROOM(l->v, l->n, l->cap) < 0)
		return -ENOMEM;
	l->v[l->n++] = number;
	return 0;
}

int chain_read_list(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline,
		    struct chain_list *ret)
{
	char prefix[CHAIN_KEY];
	int r;

	*ret = (struct chain_list){0};
	chain_prefix(volume, "log-", prefix);
	r = o->ops->list(o, prefix, "", add_number, ret, deadline);
	if (r < 0) {
		free(ret->v);
		*ret = (struct chain_list){0};
	}
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads ACL rules of a JSON dump. Each inode that has a rule carries it in full. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cmd/dump/load-json.h"

enum { RULE_MAX = 64 << 10 };

static int read_named(struct json *j, uint8_t *out, size_t room, size_t *ret_len)
{
	static const char *const names[] = {"id", "perm"};
	bool first = true;
	size_t len = 0;
	int64_t v[2];
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		if (len + 6 > room)
			return pull_fail(j->p, "an ACL is too long");
		r = pull_numbers(j->p, names, 2, v);
		if (r < 0)
			return r;
		cfs_put_be32(out + len, (uint32_t)v[0]);
		cfs_put_be16(out + len + 4, (uint16_t)v[1]);
		len += 6;
	}
	*ret_len = len;
	return r;
}

static int rule_id(struct json *j, size_t len, uint32_t *ret)
{
	struct cfs_row row = {.acl = {.rule = j->packed, .len = len}};
	size_t i;
	int r;

	for (i = 0; i < j->rules.n; i++)
		if (j->rules.v[i].len == len && !memcmp(j->rules.v[i].packed, j->packed, len)) {
			*ret = j->rules.v[i].id;
			return 0;
		}
	r = rulelist_add(&j->rules, (uint32_t)i + 1, j->packed, len);
	if (r)
		return r;
	row.acl.id = *ret = (uint32_t)i + 1;
	return load_row(j->l, CFS_TABLE_ACL, &row);
}

int acl_read(struct json *j, uint32_t *ret_id)
{
	static const char *const parts[] = {"owner", "group", "mask", "other"};
	static uint8_t groups[RULE_MAX]; /* commands have one thread */
	size_t users_len = 0, groups_len = 0, i;
	bool first = true;
	const char *key;
	uint8_t *p;
	int64_t v;
	int r;

	if (!j->packed)
		j->packed = malloc(2 * RULE_MAX + 16);
	if (!j->packed)
		return -ENOMEM;
	p = j->packed;
	memset(p, 0xff, 8);
	while ((r = pull_key(j->p, &first, &key)) > 0) {
		for (i = 0; i < CFS_ARRAY_SIZE(parts) && strcmp(key, parts[i]); i++)
			;
		if (i < CFS_ARRAY_SIZE(parts)) {
			r = pull_int(j->p, &v);
			cfs_put_be16(p + 2 * i, (uint16_t)v);
		} else if (!strcmp(key, "users")) {
			r = read_named(j, p + 12, RULE_MAX, &users_len);
		} else if (!strcmp(key, "groups")) {
			r = read_named(j, groups, RULE_MAX, &groups_len);
		} else {
			r = pull_value(j->p, NULL);
		}
		if (r)
			return r;
	}
	if (r < 0)
		return r;
	cfs_put_be32(p + 8, (uint32_t)(users_len / 6));
	cfs_put_be32(p + 12 + users_len, (uint32_t)(groups_len / 6));
	memcpy(p + 16 + users_len, groups, groups_len);
	return rule_id(j, 16 + users_len + groups_len, ret_id);
}

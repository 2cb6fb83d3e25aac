/* SPDX-License-Identifier: Apache-2.0 */
/* ACL rules as values, independent of how they are stored and cached. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "meta/engine/rules.h"

bool cfs_acl_is_minimal(const struct cfs_acl *rule)
{
	return rule->n_users == 0 && rule->n_groups == 0 && rule->mask == CFS_ACL_UNSET;
}

uint16_t cfs_acl_mode(const struct cfs_acl *rule)
{
	uint16_t group = rule->mask == CFS_ACL_UNSET ? rule->group : rule->mask;

	return (uint16_t)((rule->owner & 7) << 6 | (group & 7) << 3 | (rule->other & 7));
}

static bool copy_entries(const struct cfs_acl_entry *v, uint32_t n, struct cfs_acl_entry **ret)
{
	struct cfs_acl_entry *copy;

	*ret = NULL;
	if (!n)
		return true;
	copy = malloc(n * sizeof(*copy));
	if (!copy)
		return false;
	memcpy(copy, v, n * sizeof(*copy));
	*ret = copy;
	return true;
}

int cfs_acl_copy(const struct cfs_acl *rule, struct cfs_acl *ret)
{
	struct cfs_acl copy = *rule;

	if (!copy_entries(rule->users, rule->n_users, &copy.users))
		return -ENOMEM;
	if (!copy_entries(rule->groups, rule->n_groups, &copy.groups)) {
		free(copy.users);
		return -ENOMEM;
	}
	*ret = copy;
	return 0;
}

void cfs_acl_release(struct cfs_acl *rule)
{
	free(rule->users);
	free(rule->groups);
	*rule = (struct cfs_acl){0};
}

int cfs_acl_inherit(const struct cfs_acl *def, uint16_t mode, uint16_t *ret_mode,
		    struct cfs_acl *ret_rule)
{
	int rc;

	if (cfs_acl_is_minimal(def)) {
		*ret_mode = mode & (07000 | cfs_acl_mode(def));
		return 0;
	}
	rc = cfs_acl_copy(def, ret_rule);
	if (rc)
		return rc;
	ret_rule->owner &= mode >> 6 & 7;
	if (ret_rule->mask != CFS_ACL_UNSET)
		ret_rule->mask &= mode >> 3 & 7;
	ret_rule->other &= mode & 7;
	*ret_mode = (mode & 07000) | cfs_acl_mode(ret_rule);
	return 1;
}

void cfs_acl_chmod(struct cfs_acl *rule, uint16_t mode)
{
	rule->owner = mode >> 6 & 7;
	if (rule->mask == CFS_ACL_UNSET)
		rule->group = mode >> 3 & 7;
	else
		rule->mask = mode >> 3 & 7;
	rule->other = mode & 7;
}

void cfs_acl_pack(const struct cfs_acl_entry *v, size_t n, uint8_t *out)
{
	size_t i;

	for (i = 0; i < n; i++, out += CFS_ACL_ENTRY_BYTES) {
		cfs_put_be32(out, v[i].id);
		cfs_put_be16(out + 4, v[i].perm);
	}
}

int cfs_acl_unpack(const void *in, size_t len, struct cfs_acl_entry **ret, uint32_t *ret_n)
{
	const uint8_t *p = in;
	struct cfs_acl_entry *v = NULL;
	size_t i, n = len / CFS_ACL_ENTRY_BYTES;

	if (len % CFS_ACL_ENTRY_BYTES)
		return -EINVAL;
	if (n) {
		v = malloc(n * sizeof(*v));
		if (!v)
			return -ENOMEM;
	}
	for (i = 0; i < n; i++, p += CFS_ACL_ENTRY_BYTES) {
		v[i].id = cfs_get_be32(p);
		v[i].perm = cfs_get_be16(p + 4);
	}
	*ret = v;
	*ret_n = (uint32_t)n;
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ACLs in the kernel's form (xattr, include/uapi/linux/posix_acl_xattr.h, version 2, little-endian)
 * and the cache of rules. Rules never change on a server. On SQL one that takes over without the last
 * changes may give their ids to other rules: each connection that is made empties the cache.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/api/acl.h"
#include "meta/api/core.h"
#include "meta/api/dirtimes.h"
#include "meta/engine/rules.h"

enum { CACHE_SLOTS = 1024 };
enum {
	TAG_USER_OBJ = 0x01,
	TAG_USER = 0x02,
	TAG_GROUP_OBJ = 0x04,
	TAG_GROUP = 0x08,
	TAG_MASK = 0x10,
	TAG_OTHER = 0x20
};
enum { HEADER_BYTES = 4, ENTRY_BYTES = 8, XATTR_VERSION = 2 };
#define NO_ID UINT32_MAX

struct cfs_acl_cache {
	pthread_mutex_t lock; /* protects the rest */
	uint64_t connections; /* of the host, when the rules were read */
	struct slot {
		uint32_t id;
		struct cfs_acl rule;
	} *slots; /* direct-mapped by id, NULL until needed */
};

int cfs_acl_cache_create(struct cfs_acl_cache **ret)
{
	struct cfs_acl_cache *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	pthread_mutex_init(&c->lock, NULL);
	*ret = c;
	return 0;
}

static void forget(struct cfs_acl_cache *c)
{
	size_t i;

	for (i = 0; c->slots && i < CACHE_SLOTS; i++)
		cfs_acl_release(&c->slots[i].rule);
	free(c->slots);
	c->slots = NULL;
}

void cfs_acl_cache_destroy(struct cfs_acl_cache *c)
{
	if (!c)
		return;
	forget(c);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static bool cached(struct cfs_meta *m, uint32_t id, struct cfs_acl *ret)
{
	struct cfs_acl_cache *c = m->acls;
	CFS_LOCK_GUARD(&c->lock);

	return c->connections == atomic_load(&m->host.connections) && c->slots &&
	       c->slots[id % CACHE_SLOTS].id == id &&
	       cfs_acl_copy(&c->slots[id % CACHE_SLOTS].rule, ret) == 0;
}

/* connections: of the host, before the server was asked. */
static void remember(struct cfs_meta *m, uint32_t id, const struct cfs_acl *rule,
		     uint64_t connections)
{
	struct cfs_acl_cache *c = m->acls;
	struct cfs_acl copy;
	struct slot *s;

	if (cfs_acl_copy(rule, &copy))
		return;
	pthread_mutex_lock(&c->lock);
	if (connections > c->connections) {
		forget(c);
		c->connections = connections;
	}
	if (connections == c->connections && !c->slots)
		c->slots = calloc(CACHE_SLOTS, sizeof(*c->slots));
	if (connections == c->connections && c->slots) {
		s = &c->slots[id % CACHE_SLOTS];
		cfs_acl_release(&s->rule);
		*s = (struct slot){id, copy};
		copy = (struct cfs_acl){0};
	}
	pthread_mutex_unlock(&c->lock);
	cfs_acl_release(&copy);
}

int cfs_acl_get(struct cfs_meta *m, const struct cfs_ctx *ctx, uint32_t id, struct cfs_acl *ret)
{
	uint64_t connections = atomic_load(&m->host.connections);
	int rc;

	if (cached(m, id, ret))
		return 0;
	rc = m->eng->ops->get_acl(m->eng, ctx, id, ret);
	if (!rc)
		remember(m, id, ret, connections);
	return rc;
}

/* ---- the kernel's form ---- */

static uint8_t *put_entry(uint8_t *p, uint16_t tag, uint16_t perm, uint32_t id)
{
	tag = htole16(tag);
	perm = htole16(perm);
	id = htole32(id);
	memcpy(p, &tag, sizeof(tag));
	memcpy(p + 2, &perm, sizeof(perm));
	memcpy(p + 4, &id, sizeof(id));
	return p + ENTRY_BYTES;
}

static ssize_t to_xattr(const struct cfs_acl *rule, void **ret)
{
	size_t n = 4 + rule->n_users + rule->n_groups;
	uint8_t *buf = malloc(HEADER_BYTES + n * ENTRY_BYTES);
	uint32_t version = htole32(XATTR_VERSION);
	uint8_t *p = buf;
	uint32_t i;

	if (!buf)
		return -ENOMEM;
	memcpy(p, &version, sizeof(version));
	p = put_entry(p + HEADER_BYTES, TAG_USER_OBJ, rule->owner, NO_ID);
	for (i = 0; i < rule->n_users; i++)
		p = put_entry(p, TAG_USER, rule->users[i].perm, rule->users[i].id);
	p = put_entry(p, TAG_GROUP_OBJ, rule->group, NO_ID);
	for (i = 0; i < rule->n_groups; i++)
		p = put_entry(p, TAG_GROUP, rule->groups[i].perm, rule->groups[i].id);
	if (rule->mask != CFS_ACL_UNSET)
		p = put_entry(p, TAG_MASK, rule->mask, NO_ID);
	p = put_entry(p, TAG_OTHER, rule->other, NO_ID);
	*ret = buf;
	return p - buf;
}

static int add_named(struct cfs_acl_entry *v, uint32_t *n, uint32_t id, uint16_t perm)
{
	/* The kernel's order: ascending ids, each once. */
	if (*n && v[*n - 1].id >= id)
		return -EINVAL;
	v[(*n)++] = (struct cfs_acl_entry){id, perm};
	return 0;
}

static int set_once(uint16_t *field, uint16_t perm)
{
	if (*field != CFS_ACL_UNSET)
		return -EINVAL;
	*field = perm;
	return 0;
}

static int parse_entry(const uint8_t *p, struct cfs_acl *rule)
{
	uint16_t tag, perm;
	uint32_t id;

	memcpy(&tag, p, sizeof(tag));
	memcpy(&perm, p + 2, sizeof(perm));
	memcpy(&id, p + 4, sizeof(id));
	perm = le16toh(perm);
	id = le32toh(id);
	if (perm & ~7)
		return -EINVAL;
	switch (le16toh(tag)) {
	case TAG_USER_OBJ:
		return set_once(&rule->owner, perm);
	case TAG_USER:
		return add_named(rule->users, &rule->n_users, id, perm);
	case TAG_GROUP_OBJ:
		return set_once(&rule->group, perm);
	case TAG_GROUP:
		return add_named(rule->groups, &rule->n_groups, id, perm);
	case TAG_MASK:
		return set_once(&rule->mask, perm);
	case TAG_OTHER:
		return set_once(&rule->other, perm);
	}
	return -EINVAL;
}

/* 1: a rule; 0: no entries, so the ACL is to be removed. */
static int from_xattr(const uint8_t *value, size_t size, struct cfs_acl *ret)
{
	struct cfs_acl rule = {
		.owner = CFS_ACL_UNSET,
		.group = CFS_ACL_UNSET,
		.mask = CFS_ACL_UNSET,
		.other = CFS_ACL_UNSET,
	};
	size_t i, n = size ? (size - HEADER_BYTES) / ENTRY_BYTES : 0;
	uint32_t version;
	int rc = 0;

	if (size == 0)
		return 0;
	if (size < HEADER_BYTES || (size - HEADER_BYTES) % ENTRY_BYTES)
		return -EINVAL;
	memcpy(&version, value, sizeof(version));
	if (le32toh(version) != XATTR_VERSION)
		return -EOPNOTSUPP;
	if (n == 0)
		return 0;
	rule.users = calloc(n, sizeof(*rule.users));
	rule.groups = calloc(n, sizeof(*rule.groups));
	if (!rule.users || !rule.groups)
		rc = -ENOMEM;
	for (i = 0; i < n && !rc; i++)
		rc = parse_entry(value + HEADER_BYTES + i * ENTRY_BYTES, &rule);
	if (!rc && (rule.owner == CFS_ACL_UNSET || rule.group == CFS_ACL_UNSET ||
		    rule.other == CFS_ACL_UNSET))
		rc = -EINVAL;
	if (!rc && (rule.n_users || rule.n_groups) && rule.mask == CFS_ACL_UNSET)
		rc = -EINVAL;
	if (rc) {
		cfs_acl_release(&rule);
		return rc;
	}
	*ret = rule;
	return 1;
}

ssize_t cfs_acl_getxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 bool is_default, void **ret)
{
	struct cfs_attr attr;
	struct cfs_acl rule;
	uint32_t id;
	ssize_t n;

	if (!atomic_load(&m->enable_acl))
		return -EOPNOTSUPP;
	n = m->eng->ops->getattr(m->eng, ctx, ino, &attr);
	if (n)
		return n;
	id = is_default ? attr.default_acl : attr.access_acl;
	if (!id)
		return -ENODATA;
	n = cfs_acl_get(m, ctx, id, &rule);
	if (n)
		return n;
	if (!is_default) {
		/* A client that knows no ACLs may have changed the mode only. */
		rule.owner = attr.mode >> 6 & 7;
		rule.other = attr.mode & 7;
	}
	n = to_xattr(&rule, ret);
	cfs_acl_release(&rule);
	return n;
}

static int set_id(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, bool is_default,
		  uint32_t id, int mode)
{
	struct cfs_attr after;
	int rc = m->eng->ops->set_acl_id(m->eng, ctx, ino, is_default, id, mode, &after);

	if (!rc)
		cfs_dirtimes_set(m, ctx, ino, &after, false);
	return rc;
}

static int store_rule(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, bool is_default,
		      const struct cfs_attr *attr, const struct cfs_acl *rule)
{
	int mode = is_default ? -1 : (attr->mode & 07000) | cfs_acl_mode(rule);
	uint64_t connections = atomic_load(&m->host.connections);
	uint32_t id = 0;
	int rc;

	/*
	 * Setting an ACL clears setgid for a caller outside the file's group
	 * (posix_acl_update_mode).
	 */
	if (!is_default && ctx->check && ctx->uid != 0 && !cfs_ctx_in_group(ctx, attr->gid))
		mode &= ~02000;
	if (is_default || !cfs_acl_is_minimal(rule)) {
		rc = m->eng->ops->put_acl(m->eng, ctx, rule, &id);
		if (rc)
			return rc;
		remember(m, id, rule, connections);
	}
	return set_id(m, ctx, ino, is_default, id, mode);
}

int cfs_acl_setxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, bool is_default,
		     const void *value, size_t size)
{
	struct cfs_attr attr;
	struct cfs_acl rule;
	int rc;

	if (!atomic_load(&m->enable_acl))
		return -EOPNOTSUPP;
	rc = m->eng->ops->getattr(m->eng, ctx, ino, &attr);
	if (rc)
		return rc;
	if (attr.type == CFS_TYPE_SYMLINK)
		return -EOPNOTSUPP;
	if (ctx->uid != 0 && ctx->uid != attr.uid)
		return -EPERM;
	rc = from_xattr(value, size, &rule);
	if (rc < 0)
		return rc;
	if (rc == 0)
		return (is_default ? attr.default_acl : attr.access_acl)
			       ? set_id(m, ctx, ino, is_default, 0, -1)
			       : 0;
	if (is_default && attr.type != CFS_TYPE_DIR)
		rc = -EACCES;
	else
		rc = store_rule(m, ctx, ino, is_default, &attr, &rule);
	cfs_acl_release(&rule);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "meta/api/acl.h"
#include "meta/api/call.h"
#include "meta/api/core.h"

static const char acl_access[] = "system.posix_acl_access";
static const char acl_default[] = "system.posix_acl_default";

static bool is_acl(const char *name, bool *ret_default)
{
	if (strcmp(name, acl_access) == 0)
		*ret_default = false;
	else if (strcmp(name, acl_default) == 0)
		*ret_default = true;
	else
		return false;
	return true;
}

static int check_name(const char *name)
{
	size_t len = strlen(name);

	return len == 0 || len > CFS_NAME_MAX ? -ERANGE : 0;
}

/* As xattr(7) requires: the length for size 0, -ERANGE when the value does not fit. */
static ssize_t hand_out(const void *value, ssize_t len, void *buf, size_t size)
{
	if (len < 0 || size == 0)
		return len;
	if ((size_t)len > size)
		return -ERANGE;
	if (len)
		memcpy(buf, value, (size_t)len);
	return len;
}

static ssize_t getxattr_(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const char *name, void *buf, size_t size)
{
	cfs_auto_free void *value = NULL;
	bool is_default;
	ssize_t n = check_name(name);

	if (n)
		return n;
	if (is_acl(name, &is_default))
		n = cfs_acl_getxattr(m, ctx, ino, is_default, &value);
	else
		n = m->eng->ops->getxattr(m->eng, ctx, ino, name, &value);
	return hand_out(value, n, buf, size);
}

ssize_t cfs_meta_getxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  const char *name, void *buf, size_t size)
{
	return CFS_CALL(c, m, CFS_META_OP_xattr, ctx, getxattr_(m, c.ctx, ino, name, buf, size));
}

/* ACLs are ids in the inode, not rows of the xattr table. They are listed, too. */
static int append_acl_names(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    char **names, ssize_t *len)
{
	struct cfs_attr attr;
	char *all;
	int rc;

	if (!atomic_load(&m->enable_acl))
		return 0;
	rc = m->eng->ops->getattr(m->eng, ctx, ino, &attr);
	if (rc || (!attr.access_acl && !attr.default_acl))
		return rc;
	all = realloc(*names, (size_t)*len + sizeof(acl_access) + sizeof(acl_default));
	if (!all)
		return -ENOMEM;
	*names = all;
	if (attr.access_acl) {
		memcpy(all + *len, acl_access, sizeof(acl_access));
		*len += (ssize_t)sizeof(acl_access);
	}
	if (attr.default_acl) {
		memcpy(all + *len, acl_default, sizeof(acl_default));
		*len += (ssize_t)sizeof(acl_default);
	}
	return 0;
}

static ssize_t listxattr_(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, char *buf,
			  size_t size)
{
	cfs_auto_free char *names = NULL;
	ssize_t n = m->eng->ops->listxattr(m->eng, ctx, ino, &names);
	int rc;

	if (n < 0)
		return n;
	rc = append_acl_names(m, ctx, ino, &names, &n);
	return rc ? rc : hand_out(names, n, buf, size);
}

ssize_t cfs_meta_listxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, char *buf,
			   size_t size)
{
	return CFS_CALL(c, m, CFS_META_OP_xattr, ctx, listxattr_(m, c.ctx, ino, buf, size));
}

/* Checks whether the attributes of this inode may change. */
static int check_change(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			const char *name)
{
	struct cfs_attr attr;
	bool is_default;
	int rc = cfs_core_check_writable(m);

	if (!rc)
		rc = check_name(name);
	if (!rc)
		rc = m->eng->ops->getattr(m->eng, ctx, ino, &attr);
	if (rc)
		return rc;
	if (cfs_ino_is_trash(ino) ||
	    (cfs_ino_is_trash(attr.parent) && !cfs_host_is_open(&m->host, ino)))
		return -EPERM;
	if (attr.flags & (CFS_FLAG_IMMUTABLE | CFS_FLAG_APPEND))
		return -EPERM;
	/* Only the owner may change an ACL, whatever the mode says: acl.c checks that. */
	if (!ctx->check || ctx->uid == 0 || is_acl(name, &is_default))
		return 0;
	if (strncmp(name, "trusted.", 8) == 0)
		return -EPERM;
	return cfs_core_access(m, ctx, ino, 2, &attr);
}

static int setxattr_(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, const char *name,
		     const void *value, size_t size, int flags)
{
	bool is_default;
	int rc;

	if (size > CFS_XATTR_VALUE_MAX)
		return -ERANGE;
	if (flags & ~(XATTR_CREATE | XATTR_REPLACE))
		return -EINVAL;
	rc = check_change(m, ctx, ino, name);
	if (rc)
		return rc;
	if (is_acl(name, &is_default))
		return cfs_acl_setxattr(m, ctx, ino, is_default, value, size);
	return m->eng->ops->setxattr(m->eng, ctx, ino, name, value, size, flags);
}

int cfs_meta_setxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      const char *name, const void *value, size_t size, int flags)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_xattr, ctx,
			     setxattr_(m, c.ctx, ino, name, value, size, flags));
}

static int removexattr_(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			const char *name)
{
	bool is_default;
	int rc = check_change(m, ctx, ino, name);

	if (rc)
		return rc;
	if (is_acl(name, &is_default))
		return cfs_acl_setxattr(m, ctx, ino, is_default, NULL, 0);
	return m->eng->ops->removexattr(m->eng, ctx, ino, name);
}

int cfs_meta_removexattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const char *name)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_xattr, ctx, removexattr_(m, c.ctx, ino, name));
}

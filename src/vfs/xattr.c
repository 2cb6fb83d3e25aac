/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/fs.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "vfs-internal.h"

static bool begins(const char *name, const char *with)
{
	return !strncmp(name, with, strlen(with));
}

static bool is_acl(const char *name)
{
	return begins(name, "system.posix_acl_");
}

static bool is_hidden(const struct cfs_vfs *v, const char *name)
{
	if (is_acl(name))
		return false;
	if (v->conf.no_xattr)
		return true;
	return begins(name, "security.") && !v->conf.security_xattr &&
	       !(v->conf.capability_xattr && !strcmp(name, "security.capability")) &&
	       !(v->conf.selinux_xattr && !strcmp(name, "security.selinux"));
}

/*
 * The mark of backups (volume-format section 9) can be read and set, but is not listed: its name
 * has no namespace, and programs that copy attributes would fail at it.
 */
static bool is_mark(cfs_ino_t ino, const char *name)
{
	return ino == CFS_ROOT_INO && !strcmp(name, "lastBackup");
}

static int check(const struct cfs_vfs *v, cfs_ino_t ino, const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > CFS_NAME_MAX)
		return -ERANGE;
	return ino_is_special(ino) || is_hidden(v, name) ? -EOPNOTSUPP : 0;
}

/*
 * An attribute that is hidden is not supported: ls(1) then asks for security.selinux once, and not
 * for each file. Capabilities are absent: getcap(8) would complain about each file.
 */
static int check_present(const struct cfs_vfs *v, cfs_ino_t ino, const char *name)
{
	int r = check(v, ino, name);

	return r == -EOPNOTSUPP && !strcmp(name, "security.capability") ? -ENODATA : r;
}

/* MySQL, PostgreSQL and dumps keep only such names of extended attributes. */
static bool is_utf8(const char *name)
{
	size_t len = 1;

	for (; *name && len; name += len)
		len = cfs_utf8_len(name, strlen(name));
	return len > 0;
}

/* Repeats the kernel's check, for callers whose identity the mount replaces. */
static int check_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, const char *name)
{
	struct cfs_attr attr;
	uint32_t ms;
	int r;

	if (!ctx->check || ctx->uid == 0)
		return 0;
	if (begins(name, "trusted."))
		return -ENODATA;
	if (!begins(name, "user."))
		return 0;
	r = get_attr(v, ctx, ino, &attr, &ms);
	return r < 0 ? r : cfs_meta_access(v->conf.meta, ctx, ino, R_OK, &attr);
}

/* An inode without attributes may not exist: the engine does not tell. Cached attributes say so. */
static int found_none(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int r)
{
	struct cfs_attr attr;
	uint32_t ms;

	return get_attr(v, ctx, ino, &attr, &ms) == -ENOENT ? -ENOENT : r;
}

ssize_t cfs_vfs_getxattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const char *name, void *buf, size_t size)
{
	int r = check_present(v, ino, name);
	ssize_t n;

	/* Without the engine, as the kernel asks for security.capability before every write. */
	if (r < 0)
		return r;
	ino = ino_in(v, ino);
	r = check_read(v, ctx, ino, name);
	if (r < 0)
		return stale_if_gone(v, ino, r);
	n = cfs_meta_getxattr(v->conf.meta, ctx, ino, name, buf, size);
	if (n == -ENODATA)
		n = found_none(v, ctx, ino, -ENODATA);
	return n < 0 ? stale_if_gone(v, ino, (int)n) : n;
}

ssize_t cfs_vfs_listxattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, char *buf,
			  size_t size)
{
	size_t from, to, len;
	ssize_t n;

	if (ino_is_special(ino))
		return 0;
	ino = ino_in(v, ino);
	n = cfs_meta_listxattr(v->conf.meta, ctx, ino, buf, size);
	if (n == 0)
		n = found_none(v, ctx, ino, 0);
	if (n < 0)
		return stale_if_gone(v, ino, (int)n);
	if (n == 0 || !size)
		return n;
	for (from = to = 0; from < (size_t)n; from += len) {
		len = strnlen(buf + from, (size_t)n - from) + 1;
		/* As in local file systems, only root sees names in `trusted`. */
		if (is_hidden(v, buf + from) || is_mark(ino, buf + from) ||
		    (ctx->uid != 0 && begins(buf + from, "trusted.")))
			continue;
		memmove(buf + to, buf + from, len);
		to += len;
	}
	return (ssize_t)to;
}

int cfs_vfs_setxattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, const char *name,
		     const void *value, size_t size, int flags)
{
	int r = check(v, ino, name);
	struct cfs_ctx with;

	if (r < 0)
		return r;
	if (size > CFS_XATTR_VALUE_MAX)
		return -E2BIG;
	if (!is_utf8(name))
		return -EINVAL;
	ino = ino_in(v, ino);
	with = *ctx;
	/*
	 * An ACL clears setgid unless the caller is in the file's group, and the kernel does not
	 * tell the caller's groups.
	 */
	if (!ctx->check && ctx->uid != 0 && is_acl(name)) {
		with.check = true;
		caller_groups(&with, true);
	}
	r = store_change(v, ctx, ino);
	if (r == 0)
		r = cfs_meta_setxattr(v->conf.meta, &with, ino, name, value, size, flags);
	r = replay_set_xattr(v, ctx, r, ino, name, value, size);
	cache_changed(&v->cache, 0, 0, ino, NULL);
	return stale_if_gone(v, ino, r);
}

int cfs_vfs_removexattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
			const char *name)
{
	int r = check_present(v, ino, name);

	if (r < 0)
		return r;
	ino = ino_in(v, ino);
	r = store_change(v, ctx, ino);
	if (r == 0)
		r = cfs_meta_removexattr(v->conf.meta, ctx, ino, name);
	r = replay_removed(ctx, r, -ENODATA);
	cache_changed(&v->cache, 0, 0, ino, NULL);
	return stale_if_gone(v, ino, r);
}

/* ---- inode flags ---- */

static const struct {
	uint32_t fs;
	uint8_t stored;
} flag_map[] = {
	{FS_IMMUTABLE_FL, CFS_FLAG_IMMUTABLE},
	{FS_APPEND_FL, CFS_FLAG_APPEND},
	{FS_SECRM_FL, CFS_FLAG_SKIP_TRASH},
};

/* The attributes of the inode that *ino, as the kernel knows it, stands for. */
static int get_flags_of(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t *ino,
			struct cfs_attr *ret)
{
	uint32_t ms;

	if (ino_is_special(*ino))
		return -ENOTTY;
	*ino = ino_in(v, *ino);
	return stale_if_gone(v, *ino, get_attr(v, ctx, *ino, ret, &ms));
}

int cfs_vfs_get_flags(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      uint32_t *ret_flags)
{
	struct cfs_attr attr;
	uint32_t flags = 0;
	size_t i;
	int r = get_flags_of(v, ctx, &ino, &attr);

	if (r < 0)
		return r;
	for (i = 0; i < sizeof(flag_map) / sizeof(flag_map[0]); i++) {
		if (attr.flags & flag_map[i].stored)
			flags |= flag_map[i].fs;
	}
	*ret_flags = flags;
	return 0;
}

int cfs_vfs_set_flags(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t flags)
{
	uint64_t seq = cache_seq(&v->cache);
	struct cfs_attr attr;
	size_t i;
	int r = get_flags_of(v, ctx, &ino, &attr);

	if (r < 0)
		return r;
	/* Other bits (of Windows) stay as they are. */
	for (i = 0; i < sizeof(flag_map) / sizeof(flag_map[0]); i++) {
		attr.flags &= (uint8_t)~flag_map[i].stored;
		if (flags & flag_map[i].fs)
			attr.flags |= flag_map[i].stored;
		flags &= ~flag_map[i].fs;
	}
	if (flags)
		return -EOPNOTSUPP;
	r = cfs_meta_setattr(v->conf.meta, ctx, ino, CFS_SET_FLAGS, &attr, &attr);
	inode_changed(v, ino, seq, 0, NULL);
	return stale_if_gone(v, ino, r);
}

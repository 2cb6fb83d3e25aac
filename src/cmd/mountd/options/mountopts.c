/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a mount that are more than a value: lists, flags for the kernel, identities, memory.
 */
#include "cmd/mountd/options/mountopts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "cmd/access/cgroup.h"
#include "cmd/access/cmd.h"

/* Options for mount(8), systemd or fsck, which a mount helper gets and ignores. */
static bool is_foreign(const char *name)
{
	static const char *const names[] = {
		"_netdev", "nofail", "auto", "noauto", "user", "users", "nouser", "owner", "group",
		"defaults", "rw", "async", "relatime", "norelatime", "silent", "loud",
		/* For a remount, libmount repeats the options that the kernel shows of a mount. */
		"user_id", "group_id", "rootmode", "fd", "blksize", "max_read"};
	size_t i;

	if (!strncasecmp(name, "x-", 2) || !strncmp(name, "comment", 7))
		return true;
	for (i = 0; i < CFS_ARRAY_SIZE(names); i++) {
		if (!strcmp(name, names[i]))
			return true;
	}
	return false;
}

#define NOSYMFOLLOW 256 /* MS_NOSYMFOLLOW, Linux 5.10; not in every C library */

bool mount_opts_kernel_flag(const char *name, size_t len, unsigned long *ret_set,
			    unsigned long *ret_clear)
{
	static const struct {
		const char *name;
		unsigned long set, clear;
	} flags[] = {
		{"nodev", MS_NODEV, 0},		 {"dev", 0, MS_NODEV},
		{"nosuid", MS_NOSUID, 0},	 {"suid", 0, MS_NOSUID},
		{"noexec", MS_NOEXEC, 0},	 {"exec", 0, MS_NOEXEC},
		{"sync", MS_SYNCHRONOUS, 0},	 {"dirsync", MS_DIRSYNC, 0},
		{"noatime", MS_NOATIME, 0},	 {"atime", 0, MS_NOATIME},
		{"nosymfollow", NOSYMFOLLOW, 0}, {"symfollow", 0, NOSYMFOLLOW},
	};
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(flags); i++) {
		if (strlen(flags[i].name) != len || strncmp(name, flags[i].name, len) != 0)
			continue;
		*ret_set = flags[i].set;
		*ret_clear = flags[i].clear;
		return true;
	}
	return false;
}

static bool is_kernel_flag(const char *name)
{
	unsigned long set, clear;

	return mount_opts_kernel_flag(name, strlen(name), &set, &clear);
}

static int add_kernel_flag(struct mount_opts *o, const char *name)
{
	char *all = NULL;

	if (asprintf(&all, "%s%s%s", o->kernel_opts ? o->kernel_opts : "",
		     o->kernel_opts ? "," : "", name) < 0)
		return -ENOMEM;
	free(o->kernel_opts);
	o->kernel_opts = all;
	return 0;
}

struct list_ctx {
	struct mount_opts *o;
	bool sloppy;
	char *err;
};

static int unknown_option(void *arg, const char *name, const char *value)
{
	struct list_ctx *c = arg;
	int r;

	if (!strcmp(name, "rw"))
		c->o->ro = false;
	if (!strcmp(name, "user_id"))
		c->o->as_shown = true;
	if (is_foreign(name))
		return 0;
	if (is_kernel_flag(name))
		return add_kernel_flag(c->o, name);
	r = mount_opts_other_name(c->o, name, value, c->err);
	if (r != -ENOENT)
		return r > 0 ? 0 : r;
	if (!c->sloppy)
		return -ENOENT;
	cmd_error("ignoring unknown option '%s'", name);
	return 0;
}

void mount_opts_defaults(struct mount_opts *o)
{
	cfs_opt_defaults(mount_table, o);
	/* fusermount3(1) refuses it unless fuse.conf allows it. */
	if (geteuid() != 0)
		o->allow_other = false;
}

int mount_opts_list(struct mount_opts *o, const char *list, bool sloppy, char err[CFS_OPT_ERRLEN])
{
	struct list_ctx c = {.o = o, .sloppy = sloppy, .err = err};
	int r;

	r = cfs_opt_list(mount_table, o, list, unknown_option, &c, err);
	return r == -ENOENT ? -EINVAL : r;
}

int mount_opts_set(struct mount_opts *o, const char *name, const char *value,
		   char err[CFS_OPT_ERRLEN])
{
	int r = cfs_opt_set(mount_table, o, name, value, err);

	if (r != -ENOENT)
		return r;
	return !value && is_kernel_flag(name) ? add_kernel_flag(o, name)
					      : mount_opts_other_name(o, name, value, err);
}

int mount_opts_squash(const char *name, const char *text, uint32_t *ret_uid, uint32_t *ret_gid,
		      char err[CFS_OPT_ERRLEN])
{
	unsigned long id[2];
	const char *p = text;
	char *end;
	int i;

	for (i = 0; i < 2; i++, p = end + 1) {
		errno = 0;
		id[i] = strtoul(p, &end, 10);
		/* chown(2) reads the largest number as "no change". */
		if (end == p || *p < '0' || *p > '9' || errno || id[i] >= UINT32_MAX ||
		    *end != (i == 0 ? ':' : '\0'))
			return cfs_fail(err, -EINVAL, "%s=%s: not UID:GID", name, text);
	}
	*ret_uid = (uint32_t)id[0];
	*ret_gid = (uint32_t)id[1];
	return 0;
}

int mount_opts_umask(const char *text, int *ret, char err[CFS_OPT_ERRLEN])
{
	unsigned long v;
	char *end;

	v = strtoul(text, &end, 8);
	if (end == text || *text < '0' || *text > '7' || *end || v > 0777)
		return cfs_fail(err, -EINVAL, "umask=%s: not an octal number up to 777", text);
	*ret = (int)v;
	return 0;
}

void mount_opts_free(struct mount_opts *o)
{
	cfs_opt_free(mount_table, o);
	free(o->kernel_opts);
	o->kernel_opts = NULL;
}

/* Both 0: none. */
static uint64_t lower(uint64_t limit, int resource)
{
	struct rlimit l;

	if (getrlimit(resource, &l) < 0 || l.rlim_cur == RLIM_INFINITY)
		return limit;
	return limit ? CFS_MIN(limit, (uint64_t)l.rlim_cur) : l.rlim_cur;
}

uint64_t mount_default_budget(void)
{
	const uint64_t full = 300ULL << 20, least = 32ULL << 20;
	uint64_t limit = lower(lower(cgroup_memory_limit(), RLIMIT_DATA), RLIMIT_AS);

	if (!limit || limit / 4 >= full)
		return full;
	return CFS_MAX(limit / 4, least);
}

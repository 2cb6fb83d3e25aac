/* SPDX-License-Identifier: Apache-2.0 */
/* Options of JuiceFS and of libfuse, and how each is treated. */
#include <errno.h>

#include "base/bytes.h"
#include "base/log.h"
#include "cmd/access/cmd.h"
#include "cmd/mountd/options/mountopts.h"

enum effect {
	IS,	 /* an option of cachefs, with the same value or that of `value` */
	NOTHING, /* has no effect here; `text` says why */
	REFUSED, /* not supported; `text` names the alternative */
};

static const struct other {
	const char *name;
	enum effect effect;
	const char *text, *value;
} others[] = {
	{"read-only", IS, "ro", NULL},
	{"debug", IS, "log-level", "debug"},
	{"verbose", IS, "log-level", "debug"},
	{"trace", IS, "log-level", "debug"},
	{"quiet", IS, "log-level", "warning"},
	{"strictatime", IS, "atime-mode", "strictatime"},
	{"non-default-permission", IS, "default_permissions", "false"},
	{"background", NOTHING, "mounts are served in the background", NULL},
	{"no-usage-report", NOTHING, "nothing is reported", NULL},
	{"no-agent", NOTHING, "there is no such agent", NULL},
	{"no-color", NOTHING, "there are no colours", NULL},
	{"force", NOTHING, "a directory need not be empty", NULL},
	{"nonempty", NOTHING, "a directory need not be empty", NULL},
	{"enable-ioctl", NOTHING, "ioctl is always there", NULL},
	{"cache-scan-interval", NOTHING, "the index of the cache is always true", NULL},
	{"open-cache-limit", NOTHING, "nothing is kept by open files", NULL},
	{"skip-dir-nlink", NOTHING, "there is no engine that needs it", NULL},
	{"fast-statfs", NOTHING, "statfs is answered from the mount's own counters", NULL},
	{"disable-transparent-hugepage", NOTHING,
	 "the machine decides: /sys/kernel/mm/transparent_hugepage/enabled", NULL},
	{"log-id", NOTHING, "each line of the log has the process id", NULL},
	{"max-fuse-io", NOTHING, "requests are as large as the kernel makes them", NULL},
	{"big_writes", NOTHING, "writes are always large", NULL},
	{"lazytime", NOTHING, "times are stored as atime-mode and skip-dir-mtime say", NULL},
	{"nolazytime", NOTHING, "times are stored as atime-mode and skip-dir-mtime say", NULL},
	{"iversion", NOTHING, "there are no inode versions", NULL},
	{"noiversion", NOTHING, "there are no inode versions", NULL},
	{"nodiratime", NOTHING, "access times are stored as atime-mode says", NULL},
	{"diratime", NOTHING, "access times are stored as atime-mode says", NULL},
	{"nostrictatime", NOTHING, "access times are stored as atime-mode says", NULL},
	{"mand", NOTHING, "the kernel has no mandatory locks any more", NULL},
	{"nomand", NOTHING, "the kernel has no mandatory locks any more", NULL},
	{"consul", REFUSED, "metrics are not registered anywhere; see metrics", NULL},
	{"custom-labels", REFUSED, "add labels where metrics are collected", NULL},
	{"pyroscope", REFUSED, "profiles are not sent anywhere; see `cachefs profile`", NULL},
	{"io-retries", REFUSED, "use io-timeout, get-timeout and put-timeout", NULL},
	{"max-stage-write", REFUSED, "use stage-size", NULL},
	{"open-cache", REFUSED, "use attr-cache", NULL},
	{"attr_timeout", REFUSED, "use attr-cache", NULL},
	{"entry_timeout", REFUSED, "use entry-cache and dir-entry-cache", NULL},
	{"negative_timeout", REFUSED, "use negative-entry-cache", NULL},
	{"readdir-cache", REFUSED, "use dir-entry-cache", NULL},
	{"storage-class", REFUSED, "use `cachefs config --storage-class`", NULL},
	{"tag", REFUSED, "use `cachefs config --tag`", NULL},
	{"check-storage", REFUSED, "use `cachefs doctor`", NULL},
	{"network-interfaces", REFUSED, "use group-ip or group-network", NULL},
	{"prefix-internal", REFUSED, "use hide-internal", NULL},
	{"sort-dir", REFUSED, "listings have the order of the metadata", NULL},
	{"update-fstab", REFUSED, "write the line into fstab", NULL},
	{"no-syslog", REFUSED, "use foreground", NULL},
};

static const struct other *find(const char *name)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(others); i++) {
		if (cfs_opt_same_name(others[i].name, name))
			return &others[i];
	}
	return NULL;
}

int mount_opts_other_name(struct mount_opts *o, const char *name, const char *value,
			  char err[CFS_OPT_ERRLEN])
{
	const struct other *other = find(name);

	if (!other)
		return -ENOENT;
	switch (other->effect) {
	case IS:
		return cfs_opt_set(mount_table, o, other->text, other->value ? other->value : value,
				   err);
	case NOTHING:
		cmd_error("option '%s' has no effect: %s", name, other->text);
		return 1;
	default:
		return cfs_fail(err, -EINVAL, "option '%s' is not supported: %s", name,
				other->text);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountopts.h"

#include <cachefs/disk.h>
#include <cachefs/group.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cmd/cmd.h"
#include "cmd/mountfile.h"

static const char *const atime_modes[] = {"noatime", "relatime", "strictatime", NULL};

/* In the order of enum cfs_disk_eviction and enum cfs_disk_verify. */
static const char *const evictions[] = {"s3-fifo", "2-random", "lru", "none", NULL};
static const char *const verify_levels[] = {"none", "full", "shrink", "extend", NULL};

#define OPT(f) .offset = offsetof(struct mount_opts, f)
const struct cfs_opt mount_table[] = {
	{.name = "foreground",
	 .kind = CFS_OPT_FLAG,
	 OPT(foreground),
	 .help = "stay in the foreground and log to stderr"},
	{.name = "mount_timeout",
	 .kind = CFS_OPT_DURATION,
	 OPT(mount_timeout_ms),
	 .def = "30",
	 .arg = "TIME",
	 .min = 1000,
	 .max = 3600000,
	 .help = "give up when the mount does not answer by then"},
	{.name = "supervise",
	 .kind = CFS_OPT_FLAG,
	 OPT(supervise),
	 .def = "true",
	 .help = "keep a small process that starts the mount's again when it dies, and lets it be "
		 "upgraded while it is in use"},
	{.name = "credentials",
	 .kind = CFS_OPT_STRING,
	 OPT(credentials),
	 .arg = "FILE",
	 .help = "KEY=VALUE lines (META_PASSWORD, ACCESS_KEY, ...), mode 0600"},
	{.name = "config",
	 .kind = CFS_OPT_STRING,
	 OPT(config),
	 .arg = "FILE",
	 .help = "where the sections of names in place of META-URL are; " MOUNT_FILE " by default"},
	{.name = "log-level",
	 .kind = CFS_OPT_STRING,
	 OPT(log_level),
	 .def = "info",
	 .arg = "LEVEL",
	 .help = "error, warning, info or debug"},
	{.name = "metrics",
	 .kind = CFS_OPT_STRING,
	 OPT(metrics),
	 .arg = "PLACE",
	 .help = "serve a status page, /metrics and /health at PORT of 127.0.0.1, ADDRESS:PORT or "
		 "unix:/PATH"},
	{.name = "fuse-debug",
	 .kind = CFS_OPT_FLAG,
	 OPT(debug),
	 .flags = CFS_OPT_HIDDEN,
	 .help = "libfuse's request trace on stderr"},
	{.name = "ro", .kind = CFS_OPT_FLAG, OPT(ro), .help = "read-only: no session, no changes"},
	{.name = "remount",
	 .kind = CFS_OPT_FLAG,
	 OPT(remount),
	 .flags = CFS_OPT_HIDDEN,
	 .help = "change the flags of a running mount"},
	{.name = "subdir",
	 .kind = CFS_OPT_STRING,
	 OPT(subdir),
	 .arg = "PATH",
	 .help = "mount this directory of the volume as the root"},
	{.name = "storage",
	 .kind = CFS_OPT_STRING,
	 OPT(storage),
	 .arg = "TYPE",
	 .help = "object store type in place of the volume's"},
	{.name = "bucket",
	 .kind = CFS_OPT_STRING,
	 OPT(bucket),
	 .arg = "PLACE",
	 .help = "bucket in place of the volume's"},
	{.name = "allow_other",
	 .kind = CFS_OPT_FLAG,
	 OPT(allow_other),
	 .def = "true",
	 .help = "let other users use the mount"},
	{.name = "default_permissions",
	 .kind = CFS_OPT_FLAG,
	 OPT(default_permissions),
	 .def = "true",
	 .help = "let the kernel check permissions"},
	{.name = "hide-internal",
	 .kind = CFS_OPT_FLAG,
	 OPT(hide_internal),
	 .def = "true",
	 .help = "leave .stats, .config, .accesslog and .trash out of listings; they open anyway"},
	{.name = "umask",
	 .kind = CFS_OPT_STRING,
	 OPT(umask),
	 .arg = "OCTAL",
	 .help = "umask of all callers in place of their own"},
	{.name = "root-squash",
	 .kind = CFS_OPT_STRING,
	 OPT(root_squash),
	 .arg = "UID:GID",
	 .help = "who root is on this mount"},
	{.name = "all-squash",
	 .kind = CFS_OPT_STRING,
	 OPT(all_squash),
	 .arg = "UID:GID",
	 .help = "who everybody is on this mount"},
	{.name = "enable-xattr",
	 .kind = CFS_OPT_FLAG,
	 OPT(xattr),
	 .def = "true",
	 .help = "extended attributes"},
	{.name = "security-xattr",
	 .kind = CFS_OPT_FLAG,
	 OPT(security_xattr),
	 .help = "also those named security.*, at the cost of a question before writes"},
	{.name = "enable-cap",
	 .kind = CFS_OPT_FLAG,
	 OPT(capability_xattr),
	 .help = "of these only security.capability"},
	{.name = "enable-selinux",
	 .kind = CFS_OPT_FLAG,
	 OPT(selinux_xattr),
	 .help = "of these only security.selinux"},
	{.name = "writeback_cache",
	 .kind = CFS_OPT_FLAG,
	 OPT(writeback_cache),
	 .help = "let the kernel gather small writes"},
	{.name = "attr-cache",
	 .kind = CFS_OPT_DURATION,
	 OPT(attr_cache_ms),
	 .def = "1",
	 .arg = "TIME",
	 .help = "how long attributes are served without asking again"},
	{.name = "entry-cache",
	 .kind = CFS_OPT_DURATION,
	 OPT(entry_cache_ms),
	 .def = "1",
	 .arg = "TIME",
	 .help = "how long names of files are"},
	{.name = "dir-entry-cache",
	 .kind = CFS_OPT_DURATION,
	 OPT(dir_entry_cache_ms),
	 .def = "1",
	 .arg = "TIME",
	 .help = "how long names of directories are"},
	{.name = "buffer-size",
	 .kind = CFS_OPT_SIZE,
	 OPT(buffer_size),
	 .unit = 1 << 20,
	 .def = "0",
	 .arg = "SIZE",
	 .max = INT64_MAX,
	 .help = "memory for data, a bare number is in MiB; 0: 300M or a quarter of the cgroup's "
		 "limit"},
	{.name = "max-readahead",
	 .kind = CFS_OPT_SIZE,
	 OPT(max_readahead),
	 .unit = 1 << 20,
	 .def = "32M",
	 .arg = "SIZE",
	 .max = INT64_MAX,
	 .help = "furthest a sequential reader is read ahead"},
	{.name = "prefetch",
	 .kind = CFS_OPT_INT,
	 OPT(prefetch),
	 .def = "1",
	 .arg = "N",
	 .max = 64,
	 .help = "whole blocks fetched at a time after random reads of parts of them; 0: none"},
	{.name = "kernel-read-ahead",
	 .kind = CFS_OPT_SIZE,
	 OPT(read_ahead),
	 .unit = 1 << 10,
	 .def = "1M",
	 .arg = "SIZE",
	 .max = 1 << 30,
	 .help = "the kernel's own read-ahead on this mount; 0: leave it"},
	{.name = "cache-dir",
	 .kind = CFS_OPT_STRING,
	 OPT(cache_dir),
	 .arg = "DIR[:DIR...]",
	 .help = "keep blocks in these local directories, which may be patterns; none: no disk "
		 "cache. Default: none for blocks in a local directory, /var/cache/cachefs or the "
		 "user's own for others"},
	{.name = "cache-size",
	 .kind = CFS_OPT_SIZE,
	 OPT(cache_size),
	 .unit = 1 << 20,
	 .def = "100G",
	 .arg = "SIZE",
	 .max = INT64_MAX,
	 .help = "size of the disk cache, a bare number is in MiB"},
	{.name = "free-space-ratio",
	 .kind = CFS_OPT_FRACTION,
	 OPT(free_space_ratio),
	 .def = "0.1",
	 .arg = "RATIO",
	 .help = "part of the space and inodes below cache-dir that the cache leaves free"},
	{.name = "cache-items",
	 .kind = CFS_OPT_INT,
	 OPT(cache_items),
	 .def = "0",
	 .arg = "N",
	 .max = CFS_DISK_ITEMS_MAX,
	 .help = "most blocks in the disk cache, of 32 bytes of memory each; 0: ten million"},
	{.name = "cache-expire",
	 .kind = CFS_OPT_DURATION,
	 OPT(cache_expire_ms),
	 .def = "0",
	 .arg = "TIME",
	 .help = "drop cached blocks that were not read for so long; 0: never"},
	{.name = "cache-eviction",
	 .kind = CFS_OPT_CHOICE,
	 OPT(cache_eviction),
	 .def = "s3-fifo",
	 .choices = evictions,
	 .help = "which block leaves a full cache: s3-fifo, 2-random or lru; none: it takes no "
		 "more"},
	{.name = "cache-partial-only",
	 .kind = CFS_OPT_FLAG,
	 OPT(cache_partial_only),
	 .help = "cache only blocks shorter than the volume's block size"},
	{.name = "cache-large-write",
	 .kind = CFS_OPT_FLAG,
	 OPT(cache_large_write),
	 .help = "cache blocks of full size when they are written, too"},
	{.name = "cache-mode",
	 .kind = CFS_OPT_STRING,
	 OPT(cache_mode),
	 .def = "0600",
	 .arg = "MODE",
	 .help = "permissions of cached files"},
	{.name = "verify-cache-checksum",
	 .kind = CFS_OPT_CHOICE,
	 OPT(verify_cache_checksum),
	 .def = "extend",
	 .choices = verify_levels,
	 .help = "none, full (reads of whole blocks), shrink (whole 32 KiB segments) or extend "
		 "(every byte)"},
	{.name = "cache-retry",
	 .kind = CFS_OPT_DURATION,
	 OPT(cache_retry_ms),
	 .flags = CFS_OPT_HIDDEN,
	 .def = "30",
	 .help = "pause before a failed cache directory is tried again"},
	{.name = "cache-tick",
	 .kind = CFS_OPT_DURATION,
	 OPT(cache_tick_ms),
	 .flags = CFS_OPT_HIDDEN,
	 .def = "5",
	 .help = "period of the cache's upkeep"},
	{.name = "writeback",
	 .kind = CFS_OPT_FLAG,
	 OPT(writeback),
	 .help = "answer writes when they are on the disk of cache-dir, upload them later: losing "
		 "that disk loses them"},
	{.name = "writeback-threshold-size",
	 .kind = CFS_OPT_SIZE,
	 OPT(writeback_threshold),
	 .def = "0",
	 .arg = "SIZE",
	 .max = INT64_MAX,
	 .help = "only blocks shorter than that, longer ones are uploaded at once; 0: all"},
	{.name = "stage-size",
	 .kind = CFS_OPT_SIZE,
	 OPT(stage_size),
	 .unit = 1 << 20,
	 .def = "0",
	 .arg = "SIZE",
	 .max = INT64_MAX,
	 .help = "most data that waits on disk, in MiB, more is uploaded at once; 0: as much as "
		 "cache-size"},
	{.name = "upload-delay",
	 .kind = CFS_OPT_DURATION,
	 OPT(upload_delay_ms),
	 .def = "0",
	 .arg = "TIME",
	 .help = "how long written blocks wait on disk, so that what is soon removed is never "
		 "uploaded"},
	{.name = "upload-hours",
	 .kind = CFS_OPT_STRING,
	 OPT(upload_hours),
	 .arg = "FROM-UNTIL",
	 .help = "upload what is on disk only in these hours of local time, as in 22-6 or 22,6"},
	{.name = "cache-group",
	 .kind = CFS_OPT_STRING,
	 OPT(cache_group),
	 .arg = "NAME",
	 .help = "share cached blocks with the mounts of the volume that name the same group"},
	{.name = "group-weight",
	 .kind = CFS_OPT_INT,
	 OPT(group_weight),
	 .def = "100",
	 .min = 0,
	 .max = 1000000,
	 .arg = "N",
	 .help = "share of the group's blocks that this mount keeps; 0: none any more"},
	{.name = "no-sharing",
	 .kind = CFS_OPT_FLAG,
	 OPT(no_sharing),
	 .help = "use the group, serve nobody; always so with ro"},
	{.name = "group-ip",
	 .kind = CFS_OPT_STRING,
	 OPT(group_ip),
	 .arg = "ADDRESS",
	 .help = "address to serve the group at; the first private one of this machine by default"},
	{.name = "group-network",
	 .kind = CFS_OPT_STRING,
	 OPT(group_network),
	 .arg = "NETWORK",
	 .help = "choose the address from this network, such as 10.1.0.0/16"},
	{.name = "group-allow-public",
	 .kind = CFS_OPT_FLAG,
	 OPT(group_allow_public),
	 .help = "group-ip may be an address that is not private"},
	{.name = "group-tls",
	 .kind = CFS_OPT_FLAG,
	 OPT(group_tls),
	 .help = "encrypt what members send each other; members without it are not talked to"},
	{.name = "group-port",
	 .kind = CFS_OPT_INT,
	 OPT(group_port),
	 .def = "0",
	 .min = 0,
	 .max = 65535,
	 .arg = "PORT",
	 .help = "port to serve the group at; 0: any"},
	{.name = "group-backup",
	 .kind = CFS_OPT_DURATION,
	 OPT(group_backup_ms),
	 .def = "10m",
	 .arg = "TIME",
	 .help = "after joining, look for what is missing at the owner before for so long"},
	{.name = "group-replicas",
	 .kind = CFS_OPT_INT,
	 OPT(group_replicas),
	 .def = "1",
	 .min = 1,
	 .max = CFS_GROUP_REPLICAS_MAX,
	 .arg = "N",
	 .help = "owners of each block; the next is asked when one is busy or gone"},
	{.name = "fill-group-cache",
	 .kind = CFS_OPT_FLAG,
	 OPT(fill_group_cache),
	 .help = "have owners fetch the blocks that are written here"},
	{.name = "group-timeout",
	 .kind = CFS_OPT_DURATION,
	 OPT(group_timeout_ms),
	 .def = "2",
	 .arg = "TIME",
	 .min = 10,
	 .max = 60000,
	 .help = "longest wait for a member before object storage is asked"},
	{.name = "group-hedge",
	 .kind = CFS_OPT_INT,
	 OPT(group_hedge),
	 .def = "2",
	 .min = 0,
	 .max = 100,
	 .arg = "PERCENT",
	 .help = "of the requests to members at most so many are also sent to object storage, "
		 "when a member is late"},
	{.name = "group-max-conns",
	 .kind = CFS_OPT_INT,
	 OPT(group_max_conns),
	 .def = "4",
	 .min = 1,
	 .max = 64,
	 .arg = "N",
	 .help = "connections to one member"},
	{.name = "group-max-inflight",
	 .kind = CFS_OPT_SIZE,
	 OPT(group_max_inflight),
	 .def = "0",
	 .unit = 1 << 20,
	 .arg = "SIZE",
	 .help = "bytes being served to the group at the same time, a bare number is in MiB; 0: "
		 "8G"},
	{.name = "group-max-requests",
	 .kind = CFS_OPT_INT,
	 OPT(group_max_requests),
	 .def = "0",
	 .min = 0,
	 .max = 100000000,
	 .arg = "N",
	 .help = "requests per second and connection that are served; 0: no limit"},
	{.name = "group-beat",
	 .kind = CFS_OPT_DURATION,
	 OPT(group_beat_ms),
	 .flags = CFS_OPT_HIDDEN,
	 .def = "5",
	 .arg = "TIME",
	 .min = 100,
	 .max = 600000,
	 .help = "period in which members show that they are alive"},
	{.name = "heartbeat",
	 .kind = CFS_OPT_DURATION,
	 OPT(heartbeat_ms),
	 .def = "12",
	 .arg = "TIME",
	 .max = 600000,
	 .help = "period of session refresh and setting reload"},
	{.name = "meta-timeout",
	 .kind = CFS_OPT_DURATION,
	 OPT(meta_timeout_ms),
	 .def = "30",
	 .arg = "TIME",
	 .min = 100,
	 .max = 3600000,
	 .help = "longest a metadata operation may take before EIO"},
	{.name = "skip-dir-mtime",
	 .kind = CFS_OPT_DURATION,
	 OPT(skip_dir_mtime_ms),
	 .def = "0",
	 .arg = "TIME",
	 .help = "update a directory's times at most this often; 0: always"},
	{.name = "atime-mode",
	 .kind = CFS_OPT_CHOICE,
	 OPT(atime_mode),
	 .def = "noatime",
	 .choices = atime_modes,
	 .help = "when access times are stored"},
	{.name = "no-bgjob",
	 .kind = CFS_OPT_FLAG,
	 OPT(no_bgjob),
	 .help = "leave clean-up jobs to other clients"},
	{.name = "max-deletes",
	 .kind = CFS_OPT_INT,
	 OPT(max_deletes),
	 .def = "2",
	 .arg = "N",
	 .min = 1,
	 .max = 64,
	 .help = "threads that remove the data of deleted files"},
	{.name = "io-timeout",
	 .kind = CFS_OPT_DURATION,
	 OPT(io_timeout_ms),
	 .def = "60",
	 .arg = "TIME",
	 .min = 100,
	 .max = 3600000,
	 .help = "longest a read or flush may take before EIO"},
	{.name = "get-timeout",
	 .kind = CFS_OPT_DURATION,
	 OPT(get_timeout_ms),
	 .def = "60",
	 .arg = "TIME",
	 .min = 100,
	 .max = 3600000,
	 .help = "deadline of one object download"},
	{.name = "put-timeout",
	 .kind = CFS_OPT_DURATION,
	 OPT(put_timeout_ms),
	 .def = "60",
	 .arg = "TIME",
	 .min = 100,
	 .max = 3600000,
	 .help = "deadline of one object upload"},
	{.name = "stop-timeout",
	 .kind = CFS_OPT_DURATION,
	 OPT(stop_timeout_ms),
	 .def = "120",
	 .arg = "TIME",
	 .min = 1000,
	 .max = 86400000,
	 .help = "longest the end of a mount may take without any data being stored; then the "
		 "process gives up"},
	{.name = "watchdog",
	 .kind = CFS_OPT_DURATION,
	 OPT(watchdog_ms),
	 .def = "120",
	 .arg = "TIME",
	 .max = 86400000,
	 .help = "tell the log of requests that take longer, and what they wait for; 0: never"},
	{.name = "watchdog-restart",
	 .kind = CFS_OPT_FLAG,
	 OPT(watchdog_restart),
	 .help = "end a mount process that has such a request, so that it is started again"},
	{.name = "max-uploads",
	 .kind = CFS_OPT_INT,
	 OPT(max_uploads),
	 .def = "20",
	 .arg = "N",
	 .min = 1,
	 .max = 1024,
	 .help = "uploads at the same time"},
	{.name = "max-downloads",
	 .kind = CFS_OPT_INT,
	 OPT(max_downloads),
	 .def = "20",
	 .arg = "N",
	 .min = 1,
	 .max = 1024,
	 .help = "downloads at the same time"},
	{.name = "upload-limit",
	 .kind = CFS_OPT_INT,
	 OPT(upload_limit_mbps),
	 .def = "-1",
	 .arg = "MBPS",
	 .min = -1,
	 .max = 10000000,
	 .help = "bandwidth of uploads in Mbit/s; 0: no limit, -1: the volume's setting"},
	{.name = "download-limit",
	 .kind = CFS_OPT_INT,
	 OPT(download_limit_mbps),
	 .def = "-1",
	 .arg = "MBPS",
	 .min = -1,
	 .max = 10000000,
	 .help = "bandwidth of downloads in Mbit/s; 0: no limit, -1: the volume's setting"},
	{.name = "max-threads",
	 .kind = CFS_OPT_INT,
	 OPT(max_threads),
	 .def = "0",
	 .arg = "N",
	 .max = 1024,
	 .help = "threads that answer the kernel; 0: 32"},
	{0},
};
#undef OPT

/* Addressed to mount(8), systemd or fsck; they reach helpers but mean nothing to them. */
static bool is_foreign(const char *name)
{
	static const char *const names[] = {
		"_netdev", "nofail", "auto",	 "noauto", "user",  "users",	"nouser",
		"owner",   "group",  "defaults", "rw",	   "async", "relatime", "norelatime"};
	static const char *const shown[] = {"user_id", "group_id", "rootmode",
					    "fd",      "blksize",  "max_read"};
	size_t i;

	if (!strncasecmp(name, "x-", 2) || !strncmp(name, "comment", 7))
		return true;
	/* libmount repeats what the kernel shows of a mount when it is to be remounted. */
	for (i = 0; i < CFS_ARRAY_SIZE(shown); i++) {
		if (!strcmp(name, shown[i]))
			return true;
	}
	for (i = 0; i < CFS_ARRAY_SIZE(names); i++) {
		if (!strcmp(name, names[i]))
			return true;
	}
	return false;
}

static bool is_kernel_flag(const char *name)
{
	static const char *const names[] = {"nodev",   "dev",	"nosuid",     "suid",
					    "noexec",  "exec",	"sync",	      "dirsync",
					    "noatime", "atime", "nodiratime", "diratime"};
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(names); i++) {
		if (!strcmp(name, names[i]))
			return true;
	}
	return false;
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
};

static int unknown_option(void *arg, const char *name, const char *value)
{
	struct list_ctx *c = arg;

	if (!strcmp(name, "rw"))
		c->o->ro = false;
	if (is_foreign(name))
		return 0;
	if (is_kernel_flag(name))
		return add_kernel_flag(c->o, name);
	if (!c->sloppy)
		return -ENOENT;
	cmd_error("ignoring unknown option '%s'", name);
	return 0;
}

int mount_opts_list(struct mount_opts *o, const char *list, bool sloppy, char err[CFS_OPT_ERRLEN])
{
	struct list_ctx c = {.o = o, .sloppy = sloppy};
	int r;

	r = cfs_opt_list(mount_table, o, list, unknown_option, &c, err);
	return r == -ENOENT ? -EINVAL : r;
}

int mount_opts_set(struct mount_opts *o, const char *name, const char *value,
		   char err[CFS_OPT_ERRLEN])
{
	int r = cfs_opt_set(mount_table, o, name, value, err);

	return r == -ENOENT && !value && is_kernel_flag(name) ? add_kernel_flag(o, name) : r;
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
		/* The last number means "no change" to chown(2). */
		if (end == p || *p < '0' || *p > '9' || errno || id[i] >= UINT32_MAX ||
		    *end != (i == 0 ? ':' : '\0')) {
			snprintf(err, CFS_OPT_ERRLEN, "%s=%s: not UID:GID", name, text);
			return -EINVAL;
		}
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
	if (end == text || *text < '0' || *text > '7' || *end || v > 0777) {
		snprintf(err, CFS_OPT_ERRLEN, "umask=%s: not an octal number up to 777", text);
		return -EINVAL;
	}
	*ret = (int)v;
	return 0;
}

void mount_opts_free(struct mount_opts *o)
{
	cfs_opt_free(mount_table, o);
	free(o->kernel_opts);
	o->kernel_opts = NULL;
}

/* The smallest memory.max from our cgroup (v2) up to the root; 0 when there is none. */
static uint64_t cgroup_limit(void)
{
	char line[512], path[700], *group = NULL, *slash;
	unsigned long long v;
	uint64_t limit = 0;
	FILE *in;

	in = fopen("/proc/self/cgroup", "re");
	if (!in)
		return 0;
	while (fgets(line, sizeof(line), in)) {
		if (!strncmp(line, "0::", 3)) {
			group = line + 3;
			group[strcspn(group, "\n")] = '\0';
			break;
		}
	}
	fclose(in);
	while (group && *group) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
		in = fopen(path, "re");
		if (in) {
			if (fscanf(in, "%llu", &v) == 1 && (!limit || v < limit))
				limit = v;
			fclose(in);
		}
		slash = strrchr(group, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	return limit;
}

uint64_t mount_default_budget(void)
{
	const uint64_t full = 300ULL << 20, least = 32ULL << 20;
	uint64_t limit = cgroup_limit();

	if (!limit || limit / 4 >= full)
		return full;
	return CFS_MAX(limit / 4, least);
}

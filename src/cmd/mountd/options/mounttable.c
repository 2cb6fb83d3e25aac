/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a mount: names, defaults, help. */
#include <cachefs/disk.h>
#include <cachefs/group.h>

#include "cmd/access/options.h"
#include "cmd/mountd/options/mountfile.h"
#include "cmd/mountd/options/mountopts.h"

/* In the order of enum mount_close. */
static const char *const closes[] = {"stored", "committing", NULL};
static const char *const group_transports[] = {"tcp", "rdma", "auto", NULL};
static const char *const passthroughs[] = {"off", "auto", NULL};
static const char *const atime_modes[] = {"noatime", "relatime", "strictatime", NULL};

/* In the order of enum cfs_disk_eviction, enum cfs_disk_verify and enum cfs_io_uring. */
static const char *const evictions[] = {"s3-fifo", "2-random", "lru", "none", NULL};
static const char *const channels[] = {"auto", "on", "off", NULL};
static const char *const verify_levels[] = {"none", "full", "shrink", "extend", NULL};

#define OPTIONS struct mount_opts
const struct cfs_opt mount_table[] = {
	OPT_FLAG("foreground", foreground, "stay in the foreground and log to stderr"),
	OPT_DURATION("mount_timeout", mount_timeout_ms, "TIME",
		     "time limit for the mount to answer", .def = "30", .min = 1000,
		     .max = 3600000),
	OPT_FLAG("supervise", supervise,
		 "keep a small process that restarts the mount's process when it dies, and allows "
		 "upgrades while the mount is in use",
		 .def = "true"),
	OPT_CREDENTIALS(credentials, "META_PASSWORD, ACCESS_KEY"),
	OPT_STRING("config", config, "FILE",
		   "file in which a NAME in place of META-URL is looked up; " MOUNT_FILE
		   " by default"),
	OPT_STRING("source", source, "TEXT", "what the kernel shows as the source of the mount",
		   .flags = CFS_OPT_HIDDEN),
	OPT_STRING("log-level", log_level, "LEVEL", "error, warning, info or debug", .def = "info"),
	OPT_STRING("log", log, "FILE", "append the log to this file, in place of syslog or stderr"),
	OPT_STRING(
		"metrics", metrics, "PLACE",
		"serve a status page, /metrics and /health at PORT of 127.0.0.1, ADDRESS:PORT or "
		"unix:/PATH"),
	OPT_FLAG("fuse-debug", debug, "libfuse's request trace on stderr", .flags = CFS_OPT_HIDDEN),
	OPT_FLAG("ro", ro, "read-only: no session, no changes"),
	OPT_FLAG("remount", remount, "change the flags of a running mount",
		 .flags = CFS_OPT_HIDDEN),
	OPT_STRING("subdir", subdir, "PATH", "mount this directory of the volume as the root"),
	OPT_STRING("storage", storage, "TYPE", "object store type in place of the volume's"),
	OPT_STRING("bucket", bucket, "PLACE", "bucket in place of the volume's"),
	OPT_FLAG("allow_other", allow_other,
		 "let other users use the mount; off unless root mounts", .def = "true"),
	OPT_FLAG("default_permissions", default_permissions, "let the kernel check permissions",
		 .def = "true"),
	OPT_FLAG("hide-internal", hide_internal,
		 "leave .stats, .config, .accesslog and .trash out of listings; they open anyway",
		 .def = "true"),
	OPT_STRING("umask", umask, "OCTAL", "umask of all callers in place of their own"),
	OPT_STRING("root-squash", root_squash, "UID:GID", "user and group that root is mapped to"),
	OPT_STRING("all-squash", all_squash, "UID:GID",
		   "user and group that every caller is mapped to"),
	OPT_FLAG("enable-xattr", xattr, "extended attributes", .def = "true"),
	OPT_FLAG("security-xattr", security_xattr,
		 "also extended attributes named security.*; each write then reads one first"),
	OPT_FLAG("enable-cap", capability_xattr, "of security.* only security.capability"),
	OPT_FLAG("enable-selinux", selinux_xattr, "of security.* only security.selinux"),
	OPT_CHOICE("io_uring", io_uring, channels, NULL,
		   "whether requests come through io_uring (Linux 6.14); on: the mount fails "
		   "without it",
		   .def = "auto"),
	OPT_FLAG("writeback_cache", writeback_cache, "let the kernel gather small writes"),
	OPT_DURATION("attr-cache", attr_cache_ms, "TIME", "how long the kernel caches attributes",
		     .def = "1"),
	OPT_DURATION("entry-cache", entry_cache_ms, "TIME",
		     "how long the kernel caches names of files", .def = "1"),
	OPT_DURATION("dir-entry-cache", dir_entry_cache_ms, "TIME",
		     "how long the kernel caches names of directories", .def = "1"),
	OPT_DURATION("negative-entry-cache", negative_entry_cache_ms, "TIME",
		     "how long the kernel caches absent names", .def = "0"),
	OPT_SIZE("buffer-size", buffer_size, "SIZE",
		 "memory for data, a bare number is in MiB; 0: 300M, or a quarter of the limit of "
		 "the control group or the process",
		 .unit = 1 << 20, .def = "0", .max = INT64_MAX),
	OPT_SIZE("max-readahead", max_readahead, "SIZE",
		 "maximum read-ahead of a sequential reader", .unit = 1 << 20, .def = "32M",
		 .max = INT64_MAX),
	OPT_INT("prefetch", prefetch, "N",
		"whole blocks fetched at a time after random reads of parts of them; 0: none",
		.def = "1", .max = 64),
	OPT_SIZE("kernel-read-ahead", read_ahead, "SIZE",
		 "the kernel's own read-ahead on this mount; 0: leave it", .unit = 1 << 10,
		 .def = "1M", .max = 1 << 30),
	OPT_STRING(
		"cache-dir", cache_dir, "DIR[:DIR...]",
		"keep blocks in these local directories, which may be patterns; none: no disk "
		"cache. Default: none for blocks in a local directory, /var/cache/cachefs or the "
		"user's own for others"),
	OPT_SIZE("cache-size", cache_size, "SIZE",
		 "size of the disk cache, a bare number is in MiB", .unit = 1 << 20, .def = "100G",
		 .max = INT64_MAX),
	OPT_FRACTION("free-space-ratio", free_space_ratio, "RATIO",
		     "fraction of the space and inodes below cache-dir that the cache leaves free",
		     .def = "0.1"),
	OPT_INT("cache-items", cache_items, "N",
		"maximum number of blocks in the disk cache, 32 bytes of memory each; 0: ten "
		"million",
		.def = "0", .max = CFS_DISK_ITEMS_MAX),
	OPT_DURATION("cache-expire", cache_expire_ms, "TIME",
		     "drop cached blocks that were not read for this long; 0: never", .def = "0"),
	OPT_CHOICE("cache-eviction", cache_eviction, evictions, NULL,
		   "which block a full cache evicts: s3-fifo, 2-random or lru; none: a full cache "
		   "takes no blocks",
		   .def = "s3-fifo"),
	OPT_FLAG("cache-partial-only", cache_partial_only,
		 "cache only blocks shorter than the volume's block size"),
	OPT_FLAG("cache-large-write", cache_large_write,
		 "cache blocks of full size when they are written, too"),
	OPT_STRING("cache-mode", cache_mode, "MODE", "permissions of cached files", .def = "0600"),
	OPT_CHOICE(
		"verify-cache-checksum", verify_cache_checksum, verify_levels, NULL,
		"which checksums a read checks: none, full (of whole blocks), shrink (of whole 32 "
		"KiB segments) or extend (of every byte)",
		.def = "extend"),
	OPT_CHOICE(
		"passthrough", passthrough, passthroughs, NULL,
		"auto: files that are opened for reading and whole in the disk cache are read by "
		"the kernel without the mount; off: all are read through the mount",
		.def = "off"),
	OPT_DURATION("cache-retry", cache_retry_ms, NULL,
		     "pause before a failed cache directory is tried again", .def = "30",
		     .flags = CFS_OPT_HIDDEN),
	OPT_DURATION("cache-tick", cache_tick_ms, NULL, "period of the cache's upkeep", .def = "5",
		     .flags = CFS_OPT_HIDDEN),
	OPT_CHOICE("close", close_mode, closes, NULL,
		   "stored: a close waits until the file is stored; committing: only fsync waits, "
		   "and files closed shortly before the mount's process dies lose data",
		   .def = "stored"),
	OPT_FLAG(
		"writeback", writeback,
		"data is stored when it is on the disk of cache-dir, and is uploaded later; losing "
		"that disk loses it"),
	OPT_SIZE("writeback-threshold-size", writeback_threshold, "SIZE",
		 "stage only blocks shorter than this and upload longer ones at once; 0: stage all",
		 .def = "0", .max = INT64_MAX),
	OPT_SIZE("stage-size", stage_size, "SIZE",
		 "limit of staged data, a bare number is in MiB; more is uploaded at once; 0: "
		 "the value of cache-size",
		 .unit = 1 << 20, .def = "0", .max = INT64_MAX),
	OPT_DURATION("upload-delay", upload_delay_ms, "TIME",
		     "shortest time that blocks stay on disk before their upload, so that "
		     "short-lived data is never uploaded",
		     .def = "0"),
	OPT_STRING("upload-hours", upload_hours, "FROM-UNTIL",
		   "upload staged blocks only in these hours of local time, as in 22-6 or 22,6"),
	OPT_STRING("cache-group", cache_group, "NAME",
		   "share cached blocks with the mounts of the volume that name the same group"),
	OPT_INT("group-weight", group_weight, "N",
		"share of the group's blocks that this mount owns; 0: none", .def = "100", .min = 0,
		.max = 1000000),
	OPT_FLAG("no-sharing", no_sharing,
		 "use the group without serving other members; always so with ro"),
	OPT_STRING(
		"group-ip", group_ip, "ADDRESS",
		"address to serve the group at; by default the first private one of this machine"),
	OPT_STRING("group-network", group_network, "NETWORK",
		   "choose the address from this network, such as 10.1.0.0/16"),
	OPT_FLAG("group-allow-public", group_allow_public,
		 "group-ip may be an address that is not private"),
	OPT_FLAG("group-tls", group_tls,
		 "encrypt connections between members; share only with members that do so too"),
	OPT_CHOICE(
		"group-transport", group_transport, group_transports, NULL,
		"rdma: read hot blocks from the memory of members that have it, the rest by tcp; "
		"auto: rdma when a device is there at the mount, else tcp",
		.def = "tcp"),
	OPT_SIZE(
		"group-rdma-buffer", group_rdma_buffer, "SIZE",
		"memory for blocks that others read by RDMA, part of buffer-size; a bare number is "
		"in MiB",
		.unit = 1 << 20, .def = "64M", .min = 5 << 20),
	OPT_INT("group-port", group_port, "PORT", "port to serve the group at; 0: any", .def = "0",
		.min = 0, .max = 65535),
	OPT_DURATION("group-backup", group_backup_ms, "TIME",
		     "after joining, ask the earlier owners for missing blocks for this long",
		     .def = "10m"),
	OPT_INT("group-replicas", group_replicas, "N",
		"owners of each block; when one is busy or gone, the next is asked", .def = "1",
		.min = 1, .max = CFS_GROUP_REPLICAS_MAX),
	OPT_FLAG("fill-group-cache", fill_group_cache,
		 "have owners fetch the blocks that are written here"),
	OPT_DURATION("group-timeout", group_timeout_ms, "TIME",
		     "longest wait for a silent member before object storage is asked", .def = "2",
		     .min = 10, .max = 60000),
	OPT_INT("group-hedge", group_hedge, "PERCENT",
		"maximum share of requests to members that are also sent to object storage, when a "
		"member is late",
		.def = "2", .min = 0, .max = 100),
	OPT_INT("group-max-conns", group_max_conns, "N", "connections to one member", .def = "4",
		.min = 1, .max = 64),
	OPT_SIZE("group-max-inflight", group_max_inflight, "SIZE",
		 "bytes being served to the group at the same time, a bare number is in MiB; 0: "
		 "8G",
		 .unit = 1 << 20, .def = "0"),
	OPT_INT("group-max-requests", group_max_requests, "N",
		"requests per second and connection that are served; 0: no limit", .def = "0",
		.min = 0, .max = 100000000),
	OPT_DURATION("group-beat", group_beat_ms, "TIME", "interval of the heartbeat of members",
		     .def = "5", .min = 100, .max = 600000, .flags = CFS_OPT_HIDDEN),
	OPT_DURATION("heartbeat", heartbeat_ms, "TIME",
		     "interval at which the session is refreshed and the setting read again",
		     .def = "12", .max = 600000),
	OPT_DURATION("meta-timeout", meta_timeout_ms, "TIME",
		     "timeout of background metadata operations", .def = "30", .min = 100,
		     .max = 3600000),
	OPT_DURATION("skip-dir-mtime", skip_dir_mtime_ms, "TIME",
		     "delay before a directory's times are stored; 0: stored with each change",
		     .def = "100ms"),
	OPT_CHOICE("atime-mode", atime_mode, atime_modes, NULL, "when access times are stored",
		   .def = "noatime"),
	OPT_FLAG("no-bgjob", no_bgjob, "leave clean-up jobs and backups to other clients"),
	OPT_INT("max-deletes", max_deletes, "N", "threads that remove the data of deleted files",
		.def = "2", .min = 1, .max = 64),
	OPT_DURATION("backup-meta", backup_meta_ms, "TIME",
		     "interval of backups of the metadata in the bucket, made by one of the "
		     "volume's mounts; 0: none",
		     .def = "1h", .max = 366ULL * 86400000),
	OPT_INT("backup-skip-inodes", backup_skip_inodes, "N",
		"with more inodes, no backups at intervals of up to an hour; 0: no limit",
		.def = "1000000", .min = 0, .max = INT64_MAX),
	OPT_STRING(
		"restore", restore, "NAME",
		"when the SQLite file does not exist, restore it from the replica of volume NAME "
		"in the bucket that storage and bucket name",
		.min = 1),
	OPT_FLAG("backup-skip-trash", backup_skip_trash, "leave the trash out of backups"),
	OPT_DURATION("io-timeout", io_timeout_ms, "TIME",
		     "timeout of a program's request, which then fails with EIO", .def = "60",
		     .min = 100, .max = 3600000),
	OPT_DURATION("get-timeout", get_timeout_ms, "TIME", "deadline of one object download",
		     .def = "60", .min = 100, .max = 3600000),
	OPT_DURATION("put-timeout", put_timeout_ms, "TIME", "deadline of one object upload",
		     .def = "60", .min = 100, .max = 3600000),
	OPT_DURATION("stop-timeout", stop_timeout_ms, "TIME",
		     "longest time without progress while an unmount stores data", .def = "120",
		     .min = 1000, .max = 86400000),
	OPT_DURATION("watchdog", watchdog_ms, "TIME",
		     "log requests that take longer, and what they wait for; 0: never",
		     .def = "120", .max = 86400000),
	OPT_FLAG("watchdog-restart", watchdog_restart,
		 "end the process of the mount when watchdog reports a request, so that it is "
		 "started again"),
	OPT_INT("max-uploads", max_uploads, "N", "uploads at the same time", .def = "20", .min = 1,
		.max = 1024),
	OPT_INT("max-downloads", max_downloads, "N", "downloads at the same time", .def = "20",
		.min = 1, .max = 1024),
	OPT_INT("upload-limit", upload_limit_mbps, "MBPS",
		"bandwidth of uploads in Mbit/s; 0: no limit, -1: the volume's setting",
		.def = "-1", .min = -1, .max = 10000000),
	OPT_INT("download-limit", download_limit_mbps, "MBPS",
		"bandwidth of downloads in Mbit/s; 0: no limit, -1: the volume's setting",
		.def = "-1", .min = -1, .max = 10000000),
	OPT_INT("max-threads", max_threads, "N", "threads that answer the kernel; 0: 32",
		.def = "0", .max = 1024),
	{0},
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a mount: one table for `cachefs mount`, `-o` and fstab. */
#ifndef CFS_CMD_MOUNTOPTS_H
#define CFS_CMD_MOUNTOPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text/opt.h"

struct mount_opts {
	/* how */
	bool foreground, fake, debug;
	bool supervise;
	bool takeover; /* of a running mount; not an option: what the command is for */
	uint64_t mount_timeout_ms;
	char *credentials, *config;
	char *source; /* the name in place of META-URL, if there was one */
	char *log_level, *log;
	char *metrics;
	/* what */
	bool ro, remount;
	char *subdir, *storage, *bucket;
	/* the kernel's generic flags, in the order seen */
	char *kernel_opts;
	bool as_shown; /* the list has what the kernel shows of a mount, and so all flags */
	bool allow_other, default_permissions, writeback_cache;
	/* names and identities */
	bool hide_internal, xattr, security_xattr, capability_xattr, selinux_xattr;
	char *umask, *root_squash, *all_squash;
	/* caches */
	uint64_t attr_cache_ms, entry_cache_ms, dir_entry_cache_ms;
	uint64_t buffer_size, max_readahead, read_ahead;
	int64_t prefetch;
	/* disk cache */
	char *cache_dir, *cache_mode;
	uint64_t cache_size, cache_expire_ms;
	double free_space_ratio;
	int64_t cache_items;
	int cache_eviction, verify_cache_checksum; /* enum cfs_disk_eviction, cfs_disk_verify */
	bool cache_partial_only, cache_large_write;
	uint64_t cache_retry_ms, cache_tick_ms;
	/* cache group */
	char *cache_group, *group_ip, *group_network;
	int64_t group_weight, group_port, group_max_conns, group_replicas, group_max_requests,
		group_hedge;
	uint64_t group_backup_ms, group_timeout_ms, group_beat_ms, group_max_inflight;
	bool no_sharing, fill_group_cache, group_allow_public, group_tls;
	/* writeback */
	bool writeback;
	uint64_t writeback_threshold, stage_size, upload_delay_ms;
	char *upload_hours;
	/* metadata */
	uint64_t heartbeat_ms, meta_timeout_ms, skip_dir_mtime_ms;
	int atime_mode;
	bool no_bgjob;
	int64_t max_deletes;
	/* data */
	uint64_t io_timeout_ms, get_timeout_ms, put_timeout_ms;
	uint64_t stop_timeout_ms, watchdog_ms;
	bool watchdog_restart;
	int64_t max_uploads, max_downloads, max_threads;
	int64_t upload_limit_mbps, download_limit_mbps; /* -1: the volume's setting */
};

extern const struct cfs_opt mount_table[];

/* What holds for this user. */
void mount_opts_defaults(struct mount_opts *o);
/*
 * Applies a comma list as mount(8) and fstab have it: generic options that mean nothing here are
 * dropped, kernel flags collected. sloppy: unknown names are warnings. 0, or -EINVAL with err.
 */
int mount_opts_list(struct mount_opts *o, const char *list, bool sloppy, char err[CFS_OPT_ERRLEN]);
/* One of our options, of the kernel's flags, or mount_opts_other_name(). */
int mount_opts_set(struct mount_opts *o, const char *name, const char *value,
		   char err[CFS_OPT_ERRLEN]);
/*
 * Options as others name them: set (0), told that they make no difference (1), or -EINVAL with err,
 * which says what there is instead. -ENOENT: nobody's.
 */
int mount_opts_other_name(struct mount_opts *o, const char *name, const char *value,
			  char err[CFS_OPT_ERRLEN]);
/* The values of root-squash, all-squash and umask. 0, or -EINVAL with err. */
int mount_opts_squash(const char *name, const char *text, uint32_t *ret_uid, uint32_t *ret_gid,
		      char err[CFS_OPT_ERRLEN]);
int mount_opts_umask(const char *text, int *ret, char err[CFS_OPT_ERRLEN]);
void mount_opts_free(struct mount_opts *o);

/* Budget for data pages when buffer-size is not given: 300 MiB, or a quarter of the cgroup's limit.
 */
uint64_t mount_default_budget(void);

#endif

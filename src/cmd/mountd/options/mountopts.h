/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a mount: one table for `cachefs mount`, `-o` and fstab. */
#ifndef CFS_CMD_MOUNTOPTS_H
#define CFS_CMD_MOUNTOPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text/opt.h"

enum mount_passthrough { MOUNT_PASSTHROUGH_OFF, MOUNT_PASSTHROUGH_AUTO };
enum mount_close { MOUNT_CLOSE_STORED, MOUNT_CLOSE_COMMITTING };

struct mount_opts {
	/* the process */
	bool foreground, fake, debug;
	bool supervise;
	bool takeover; /* take over a running mount; set by the command, not an option */
	uint64_t mount_timeout_ms;
	char *credentials, *config;
	char *source; /* the name given in place of META-URL, or NULL */
	char *log_level, *log;
	char *metrics;
	/* the mount */
	bool ro, remount;
	char *subdir, *storage, *bucket;
	/* the kernel's generic flags, in the order seen */
	char *kernel_opts;
	bool as_shown; /* the list was made of what the kernel shows of a mount: it has all flags */
	bool allow_other, default_permissions, writeback_cache;
	int io_uring; /* enum cfs_io_uring */
	/* names and identities */
	bool hide_internal, xattr, security_xattr, capability_xattr, selinux_xattr;
	char *umask, *root_squash, *all_squash;
	/* caches */
	uint64_t attr_cache_ms, entry_cache_ms, dir_entry_cache_ms, negative_entry_cache_ms;
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
	int group_transport; /* enum cfs_group_rdma */
	uint64_t group_rdma_buffer;
	/* writes */
	int passthrough; /* enum mount_passthrough */
	int close_mode;	 /* enum mount_close */
	bool writeback;
	uint64_t writeback_threshold, stage_size, upload_delay_ms;
	char *upload_hours;
	/* metadata */
	uint64_t heartbeat_ms, meta_timeout_ms, skip_dir_mtime_ms;
	int atime_mode;
	bool no_bgjob;
	int64_t max_deletes;
	uint64_t backup_meta_ms;
	int64_t backup_skip_inodes;
	bool backup_skip_trash;
	char *restore;
	/* data */
	uint64_t io_timeout_ms, get_timeout_ms, put_timeout_ms;
	uint64_t stop_timeout_ms, watchdog_ms;
	bool watchdog_restart;
	int64_t max_uploads, max_downloads, max_threads;
	int64_t upload_limit_mbps, download_limit_mbps; /* -1: the volume's setting */
};

extern const struct cfs_opt mount_table[];

/* Sets the defaults, some of which depend on the user. */
void mount_opts_defaults(struct mount_opts *o);
/*
 * Applies a comma list of mount(8) or fstab: drops generic options that have no meaning here,
 * collects kernel flags. sloppy: only warns of unknown names. 0, or -EINVAL with err.
 */
int mount_opts_list(struct mount_opts *o, const char *list, bool sloppy, char err[CFS_OPT_ERRLEN]);
/* The flags of mount(2) that an option of the kernel sets and clears. False: it is none. */
bool mount_opts_kernel_flag(const char *name, size_t len, unsigned long *ret_set,
			    unsigned long *ret_clear);
/* Applies an option: of cachefs, of the kernel, or as mount_opts_other_name(). */
int mount_opts_set(struct mount_opts *o, const char *name, const char *value,
		   char err[CFS_OPT_ERRLEN]);
/*
 * Handles options of JuiceFS and libfuse. 0: applied; 1: a message says that it has no effect;
 * -EINVAL: err names the alternative; -ENOENT: an unknown option.
 */
int mount_opts_other_name(struct mount_opts *o, const char *name, const char *value,
			  char err[CFS_OPT_ERRLEN]);
/* Parses the values of root-squash, all-squash and umask. 0, or -EINVAL with err. */
int mount_opts_squash(const char *name, const char *text, uint32_t *ret_uid, uint32_t *ret_gid,
		      char err[CFS_OPT_ERRLEN]);
int mount_opts_umask(const char *text, int *ret, char err[CFS_OPT_ERRLEN]);
void mount_opts_free(struct mount_opts *o);

/*
 * Default of buffer-size, the budget for data pages: 300 MiB, or a quarter of the limit of the
 * control group or of the process.
 */
uint64_t mount_default_budget(void);

#endif

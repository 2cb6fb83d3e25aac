/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's side: one FUSE session over libfuse's low-level interface, decoding requests into
 * calls of the VFS and replying. It knows nothing of metadata, data or stores.
 */
#ifndef CFS_FUSE_H
#define CFS_FUSE_H

#include <cachefs/vfs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cfs_fuse;

/* Each holds a request buffer of max_io once it has carried data. */
#define CFS_FUSE_THREADS 32

struct cfs_fuse_conf {
	struct cfs_vfs *vfs; /* borrowed */
	const char *mount_point;
	const char *source;	 /* shown by mount(8): "cachefs:NAME" */
	const char *kernel_opts; /* "ro,nodev,nosuid,noexec,noatime", comma list for the kernel; may
				    be NULL */
	bool allow_other;
	bool default_permissions;
	bool writeback_cache;
	bool local_locks;	/* file locks are the kernel's own and end with this mount */
	bool posix_acl;		/* the kernel judges by ACLs, which implies default_permissions */
	bool debug;		/* libfuse's own request trace on stderr */
	int umask;		/* of all callers; -1: each its own */
	unsigned max_threads;	/* 0: CFS_FUSE_THREADS */
	uint32_t max_io;	/* bytes per request, 1 MiB */
	uint32_t read_ahead_kb; /* of the mount's backing device; 0: leave the kernel's */
};

/* Creates the session and mounts. err: one line. -EBUSY: already a mount of ours there. */
int cfs_fuse_mount(const struct cfs_fuse_conf *conf, struct cfs_fuse **ret, char err[256]);
/*
 * Serves requests until the kernel ends the connection (0) or a signal (SIGTERM, SIGINT, SIGHUP:
 * the positive signal number) asks to stop. Call it after daemonising.
 */
int cfs_fuse_loop(struct cfs_fuse *f);
/* Callable from any thread: makes the loop return. */
void cfs_fuse_stop(struct cfs_fuse *f);
/*
 * The kernel forgets what it knows of a name and of its directory's attributes. Not on a thread
 * that holds up a change of that directory.
 */
void cfs_fuse_name_changed(struct cfs_fuse *f, cfs_ino_t parent, const char *name, size_t len);
/* Unmounts (lazily when busy) and frees the session. */
void cfs_fuse_unmount(struct cfs_fuse *f);

/* What this build and this kernel can do, for `cachefs version`. */
struct cfs_fuse_features {
	const char *libfuse_built, *libfuse_running;
	bool passthrough_built, io_uring_built;
};
void cfs_fuse_features(struct cfs_fuse_features *ret);

#endif

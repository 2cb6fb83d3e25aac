/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's side: one FUSE session over libfuse's low-level interface, decoding requests into
 * calls of the VFS and replying. It knows nothing of metadata, data or stores.
 */
#ifndef CFS_FUSE_H
#define CFS_FUSE_H

#include <cachefs/keep.h>
#include <cachefs/vfs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cfs_fuse;

/* Each holds a request buffer of max_io once it has carried data. */
#define CFS_FUSE_THREADS 32

struct cfs_fuse_conf {
	struct cfs_vfs *vfs;   /* borrowed */
	struct cfs_keep *keep; /* borrowed; what was agreed on with the kernel goes there. May be
				  NULL */
	/* The connection of a mount that another process has served, as keep says; -1: mount. It
	 * is closed in the end, also when cfs_fuse_mount() fails. */
	int device;
	/* Inodes of whose content and attributes the kernel has a wrong idea; borrowed. */
	const cfs_ino_t *wrong;
	size_t n_wrong;
	const char *mount_point;
	const char *source;	 /* shown by mount(8), which finds fstab's line by it */
	const char *kernel_opts; /* "ro,nodev,nosuid,noexec,noatime", comma list for the kernel; may
				    be NULL */
	bool allow_other;
	bool default_permissions;
	bool writeback_cache;
	bool local_locks; /* file locks are the kernel's own and end with this mount */
	bool posix_acl;	  /* the kernel judges by ACLs, which implies default_permissions */
	/* The kernel leaves setuid and setgid to the VFS when content changes, and need not ask for
	 * security.capability before each write. Not where that attribute can be set: it would
	 * stay. */
	bool drops_set_id;
	bool debug; /* libfuse's own request trace on stderr */
	int umask;  /* of all callers; -1: each its own */
	/*
	 * The end has been asked for, by a signal or cfs_fuse_stop(): called once, from a thread of
	 * the session, before the loop ends, which takes as long as requests do. May be NULL.
	 */
	void (*stopping)(void *arg);
	void *stopping_arg;
	unsigned max_threads;	/* 0: CFS_FUSE_THREADS */
	uint32_t max_io;	/* bytes per request, 1 MiB */
	uint32_t read_ahead_kb; /* of the mount's backing device; 0: leave the kernel's */
};

/* Creates the session and mounts, or goes on with a mount. err: one line. -EBUSY: already a mount
 * of ours there. */
int cfs_fuse_mount(const struct cfs_fuse_conf *conf, struct cfs_fuse **ret, char err[256]);
/*
 * Serves requests until the kernel ends the connection (0) or a signal (SIGTERM, SIGINT, SIGHUP:
 * the positive signal number) asks to stop. Call it after daemonising.
 */
int cfs_fuse_loop(struct cfs_fuse *f);
/* Callable from any thread: makes the loop return. */
void cfs_fuse_stop(struct cfs_fuse *f);
/*
 * The same for a mount that goes on with another process: what is under way is finished and
 * answered, but for waits for file locks, which the kernel sends to that one.
 */
void cfs_fuse_hand_over(struct cfs_fuse *f);
/* The connection, for who is to go on with it; borrowed. */
int cfs_fuse_device(const struct cfs_fuse *f);
/* The kernel can be asked to send again what a process that died has left unanswered. */
bool cfs_fuse_can_resume(struct cfs_keep *keep);
/*
 * In place of a process that is not ready to go on with the connection: requests get EIO
 * `timeout_ms` after they came, or (those that have waited since since_ms of cfs_now_ms(), as the
 * process before died) when that has passed, but not at once. It is ended before cfs_fuse_loop(),
 * to which everything else is sent again. Of handles that were closed meanwhile keep says so.
 */
struct cfs_fuse_hold;
int cfs_fuse_hold_begin(int device, struct cfs_keep *keep, uint64_t timeout_ms, uint64_t since_ms,
			struct cfs_fuse_hold **ret);
/* The connection has ended. */
bool cfs_fuse_hold_is_ended(struct cfs_fuse_hold *h);
/* h may be NULL. Returns how many requests have failed. */
uint64_t cfs_fuse_hold_end(struct cfs_fuse_hold *h);
/*
 * The kernel forgets what it knows of a name and of its directory's attributes. Not on a thread
 * that holds up a change of that directory.
 */
void cfs_fuse_name_changed(struct cfs_fuse *f, cfs_ino_t parent, const char *name, size_t len);
/* Unmounts (lazily when busy) and frees the session. */
void cfs_fuse_unmount(struct cfs_fuse *f);
/* The kernel has: the mount is gone, or will not work again. device: or -1, which has not. */
bool cfs_fuse_has_ended(int device);
/*
 * As umount2(2) without following links, by fusermount3(1) for a user who mounted it himself.
 * lazy: detaches what is busy.
 */
int cfs_fuse_umount(const char *mount_point, bool lazy);
/* Detaches what is mounted there, unless `device` (or -1) says that it has ended. */
int cfs_fuse_detach(const char *mount_point, int device);
/*
 * For a process that ends right afterwards, from any thread: takes the mount away without waiting
 * for anything. Who waits in it gets an error.
 */
void cfs_fuse_abandon(struct cfs_fuse *f);

/* What this build and this kernel can do, for `cachefs version`. */
struct cfs_fuse_features {
	const char *libfuse_built, *libfuse_running;
	bool passthrough_built, io_uring_built;
};
void cfs_fuse_features(struct cfs_fuse_features *ret);

#endif

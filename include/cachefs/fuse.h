/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front end to the kernel: one FUSE session over libfuse's low-level interface, decoding
 * requests into calls of the VFS and replying. It knows nothing of metadata, data or stores.
 */
#ifndef CFS_FUSE_H
#define CFS_FUSE_H

#include <cachefs/handoff.h>
#include <cachefs/vfs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/metric.h"

struct cfs_fuse;

/* Threads by default. Each has a request buffer of max_io once it has carried data. */
#define CFS_FUSE_THREADS 32

/*
 * Whether requests come through io_uring. AUTO: if the kernel allows it, else the log says why not.
 * ON: the mount fails without it. A mount with a handoff has none: requests that the kernel has put
 * into this process's memory would be lost for a successor.
 */
enum cfs_io_uring { CFS_IO_URING_AUTO, CFS_IO_URING_ON, CFS_IO_URING_OFF };

struct cfs_fuse_conf {
	struct cfs_vfs *vfs;	     /* borrowed */
	struct cfs_handoff *handoff; /* borrowed; records the answer to FUSE_INIT. May be NULL */
	/* Borrowed; the one in the handoff, if there is one. cfs_fuse_mount() writes it. */
	struct cfs_agreement *agreement;
	/*
	 * The FUSE connection of a mount that a previous process served and that `handoff`
	 * describes; -1: create a mount. The session closes it at its end, also when
	 * cfs_fuse_mount() fails.
	 */
	int device;
	/* Inodes whose content and attributes the kernel caches wrongly; borrowed. */
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
	bool passthrough; /* opens may be answered with a whole file of the disk cache */
	bool posix_acl;	  /* the kernel judges by ACLs, which implies default_permissions */
	/*
	 * The VFS clears setuid and setgid when content changes, and the kernel does not read
	 * security.capability before each write. Must be off where that attribute can be set: a
	 * write would not remove it.
	 */
	bool drops_set_id;
	bool debug; /* libfuse's own request trace on stderr */
	int umask;  /* of all callers; -1: each its own */
	/*
	 * Called on a thread of the session after a signal or cfs_fuse_stop(), and for a hand-over
	 * only after a signal. The loop ends later, when the requests under way have ended. May be
	 * NULL.
	 */
	void (*stopping)(void *arg);
	void *stopping_arg;
	enum cfs_io_uring io_uring;
	unsigned max_threads;	/* 0: CFS_FUSE_THREADS */
	uint32_t max_io;	/* bytes per request, 1 MiB */
	uint32_t read_ahead_kb; /* of the mount's backing device; 0: leave the kernel's */
};

/*
 * Creates the session and mounts, or takes over an existing mount. err: one line. -EBUSY: cachefs
 * is already mounted there.
 */
int cfs_fuse_mount(const struct cfs_fuse_conf *conf, struct cfs_fuse **ret, char err[256]);
/*
 * Serves requests until the kernel ends the connection (0) or a signal (SIGTERM, SIGINT, SIGHUP:
 * the positive signal number) asks to stop. Call it after daemonising.
 */
int cfs_fuse_loop(struct cfs_fuse *f);
/* Makes the loop return. Any thread. */
void cfs_fuse_stop(struct cfs_fuse *f);
/*
 * The same for a mount that a successor process takes over. Requests under way are finished and
 * answered, except waits for file locks and reads that wait for the object store: the kernel
 * resends these to the successor.
 */
void cfs_fuse_hand_over(struct cfs_fuse *f);
/*
 * After the loop has returned for that: there is no successor, and cfs_fuse_loop() may be called
 * again. The kernel then sends again what was left unanswered.
 */
void cfs_fuse_take_back(struct cfs_fuse *f);
/* The FUSE connection, for the successor process; borrowed. */
int cfs_fuse_device(const struct cfs_fuse *f);
/* Whether the kernel can resend the requests that a dead process left unanswered. */
bool cfs_fuse_can_resume(struct cfs_handoff *handoff);
/*
 * Stands in while no process is ready to serve the connection. A request fails with EIO
 * `timeout_ms` after its arrival. Requests of the previous process fail `timeout_ms` after its
 * death (since_ms, as cfs_now_ms()), but not at once. The standby must end before cfs_fuse_loop(),
 * which has the unanswered requests resent. handoff records the handles that are closed meanwhile.
 */
struct cfs_fuse_standby;
int cfs_fuse_standby_begin(int device, struct cfs_handoff *handoff, uint64_t timeout_ms,
			   uint64_t since_ms, struct cfs_fuse_standby **ret);
/* Whether the connection has ended. s may be NULL. */
bool cfs_fuse_standby_is_ended(struct cfs_fuse_standby *s);
/* s may be NULL. Returns how many requests have failed. */
uint64_t cfs_fuse_standby_end(struct cfs_fuse_standby *s);
/*
 * Makes the kernel drop a cached name and its directory's cached attributes. Must not be called on
 * a thread that a change of that directory waits for.
 */
void cfs_fuse_name_changed(struct cfs_fuse *f, cfs_ino_t parent, const char *name, size_t len);
/* Unmounts (lazily when busy) and frees the session. */
void cfs_fuse_unmount(struct cfs_fuse *f);
/* Whether the kernel has ended the connection: the mount cannot work again. device -1: false. */
bool cfs_fuse_has_ended(int device);
/*
 * As umount2(2) without following links, by fusermount3(1) for the user who mounted it. lazy:
 * detaches what is busy.
 */
int cfs_fuse_umount(const char *mount_point, bool lazy);
/* Detaches the mount there, unless the connection `device` has ended. -1: always. */
int cfs_fuse_detach(const char *mount_point, int device);
/*
 * For a process that ends right afterwards: removes the mount without waiting for anything. Waiting
 * requests get an error. Any thread.
 */
void cfs_fuse_abandon(struct cfs_fuse *f);

/*
 * Prints the agreement of a running mount as a table: each flag of FUSE_INIT, and the limits. fd:
 * of the memory file named CFS_HANDOFF_NAME that the mount's process has open. -ENODATA: an older
 * program agreed with the kernel.
 */
int cfs_fuse_print_agreement(int fd, FILE *out);
extern const struct cfs_metric_table cfs_fuse_metrics; /* of a struct cfs_agreement */

/* Features of this build and this kernel, for `cachefs version`. */
struct cfs_fuse_features {
	const char *libfuse_built, *libfuse_running;
	bool passthrough_built, io_uring_built;
	/* Whether this build has rings, and whether this kernel offers them to new mounts. */
	bool ring_built;
	enum { CFS_RING_ABSENT, CFS_RING_SWITCHED_OFF, CFS_RING_SWITCHED_ON } ring_kernel;
};
void cfs_fuse_features(struct cfs_fuse_features *ret);

#endif

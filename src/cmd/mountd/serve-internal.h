/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of a process that serves a mount: its life (serve.c), its layers (layers.c),
 * and the resumption of an earlier process's mount (resume.c).
 */
#ifndef CFS_CMD_SERVE_INTERNAL_H
#define CFS_CMD_SERVE_INTERNAL_H

#include <cachefs/fuse.h>
#include <cachefs/replica.h>
#include <cachefs/vfs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cmd/access/control.h"
#include "cmd/mountd/backups.h"
#include "cmd/mountd/options/mountopts.h"
#include "cmd/mountd/supervise/worker.h"

struct serve {
	const struct mount_opts *o;
	const char *url, *dir;
	struct cfs_setting *setting;
	struct cfs_meta *meta;
	struct cfs_object_store *objects;
	struct cfs_pool *pool;
	struct cfs_store *store;
	struct cfs_disk *disk;
	struct cfs_peers *peers;
	struct cfs_data *data;
	struct cfs_vfs *vfs;
	struct backups *backups;
	struct cfs_replica *replica;
	struct cfs_object_store *replica_objects;
	struct cfs_metrics numbers; /* the metrics of all layers */
	struct metrics *metrics;
	struct health *health;
	struct notify *notify;
	struct shutdown *shutdown;
	struct control_server control;
	struct worker *worker;
	struct cfs_agreement own_agreement; /* without a supervisor */
	struct cfs_fuse_standby *standby;   /* of a resumed mount, until the VFS can answer */
	cfs_deadline_t tell;		    /* when the next log line about the outage is due */
	struct cfs_vfs_restored restored;
	_Atomic(struct cfs_fuse *) fuse; /* while the mount is served */
	_Atomic bool lost;		 /* the volume is gone */
};

/* serve.c; arg: the struct serve. */
/* The volume is gone: ends the session. Called from a background thread. */
void serve_lost(void *arg, const char *reason);
/* A request is stuck and the process must end. */
__attribute__((noreturn)) void serve_stuck(void *arg);
/* A command has changed a name that the kernel may have cached. */
void serve_name_changed(void *arg, cfs_ino_t parent, const char *name, size_t len);

/* layers.c */
/* Opens metadata and objects. After a failure, layers_close_backends() closes what was opened. */
int layers_open_backends(struct serve *s, char err[256]);
void layers_close_backends(struct serve *s);
/* Opens the remaining layers, up to the VFS. */
int layers_open(struct serve *s, char err[256]);
/*
 * Closes the layers that are open, from the top down. session: cfs_meta_start() has succeeded. 0,
 * or the first error of storing data.
 */
int layers_close(struct serve *s, bool session);
/* The agreement of mount and kernel; in the handoff state when there is a supervisor. */
struct cfs_agreement *layers_agreement(struct serve *s);
/* Whether the kernel checks permissions. */
bool layers_kernel_checks(const struct serve *s);
/* Bytes of data in a request. Each thread keeps such a buffer after its first large write. */
uint32_t layers_request_size(const struct mount_opts *o);

/* resume.c */
/*
 * layers_open_backends() after a death. Retries through an outage of the metadata: it may be what
 * killed the earlier process, and must not end the mount. From this call on a standby answers
 * requests with EIO at their deadlines.
 */
int resume_open(struct serve *s, char err[256]);
/* A step of resuming has failed with r and err. True, after a pause: repeat it. */
bool resume_tries_again(struct serve *s, int r, char err[256]);
/* Restores the open files of the earlier process. */
int resume_restore(struct serve *s, char err[256]);
/* Ends the standby: the VFS answers the kernel's requests from this call on. */
void resume_end_standby(struct serve *s);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The process that serves a mount, as its supervisor sees it; the other end is supervisor.c. */
#ifndef CFS_CMD_WORKER_H
#define CFS_CMD_WORKER_H

#include <cachefs/fuse.h>
#include <cachefs/keep.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <unistd.h>

#include "cmd/mountd/supervise/daemon.h"

struct worker {
	int link;	       /* to the supervisor; -1: there is none */
	struct daemon *report; /* without a supervisor; NULL: in the foreground */
	bool daemon;	       /* leave the terminal when ready */
	bool takes_over;       /* keep and device come with worker_checked() */
	uint64_t timeout_ms;   /* for the answers of supervisors */
	uint64_t leave_ms;     /* for the object store, before it leaves the mount */
	/* What the mount had before this process; NULL and -1: there was nothing. */
	struct cfs_keep *keep;
	int device;
	struct cfs_object_descs objects;
	uint64_t since_ms; /* after a death: since when nobody serves, as cfs_now_ms() says */

	/* Set by worker_watch(). */
	pthread_t watcher;
	_Atomic bool watching;
	_Atomic bool leaving; /* another process goes on with the mount */
	_Atomic pid_t pid;    /* whose end is the end of the mount */
	struct cfs_store *store;
	struct cfs_vfs *vfs;
	struct cfs_fuse *fuse;
};

/* This process goes on with a mount that another one has served. */
static inline bool worker_resumes(const struct worker *w)
{
	return w->device >= 0;
}

/* Another one is started when it dies. */
static inline bool worker_is_supervised(struct worker *w)
{
	return atomic_load(&w->watching) && atomic_load(&w->pid) != getpid();
}

/*
 * The volume is there and is this one: what is kept is for it. A mount that is taken over stops
 * taking requests here, so that whatever can be done before should be.
 */
int worker_checked(struct worker *w, const char *uuid, bool read_only, char err[256]);
/* Everything is there but the loop; returns when that may begin. Then the supervisor is heard. */
int worker_ready(struct worker *w, struct cfs_store *store, struct cfs_vfs *vfs,
		 struct cfs_fuse *fuse, char err[256]);
/* After the loop. */
void worker_unwatch(struct worker *w);
/* The start has failed. */
void worker_failed(struct worker *w, int status, const char *reason);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The process that serves a mount, as its supervisor sees it. The other end is supervisor.c. */
#ifndef CFS_CMD_WORKER_H
#define CFS_CMD_WORKER_H

#include <cachefs/fuse.h>
#include <cachefs/handoff.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <unistd.h>

#include "cmd/mountd/supervise/daemon.h"

struct worker {
	int link;	       /* connection to the supervisor; -1: there is none */
	struct daemon *report; /* used without a supervisor; NULL: in the foreground */
	bool daemon;	       /* leave the terminal when ready */
	bool takes_over;       /* handoff and device arrive with worker_checked() */
	uint64_t timeout_ms;   /* for the answers of supervisors */
	/* The state of the mount that this process resumes; NULL and -1: it starts a mount. */
	struct cfs_handoff *handoff;
	int device;
	struct cfs_object_descs objects;
	uint64_t since_ms; /* after a death: when requests were last taken, by cfs_now_ms() */

	/* Set by worker_watch(). */
	pthread_t watcher;
	_Atomic bool watching;
	_Atomic bool leaving; /* another process takes over the mount */
	_Atomic pid_t pid;    /* the mount ends when it exits */
	struct cfs_store *store;
	struct cfs_data *data;
	struct cfs_fuse *fuse;
};

/* This process resumes a mount that another one has served. */
static inline bool worker_resumes(const struct worker *w)
{
	return w->device >= 0;
}

/* A supervisor starts another worker when this one dies. */
static inline bool worker_is_supervised(struct worker *w)
{
	return atomic_load(&w->watching) && atomic_load(&w->pid) != getpid();
}

/*
 * Called when the volume is open and checked: the kept state belongs to it. Before a takeover, the
 * running mount stops taking requests in here, so as much as possible should be done before.
 */
int worker_checked(struct worker *w, const char *uuid, bool read_only, char err[256]);
/*
 * Called when everything is ready except the loop; returns when the loop may begin. Messages of the
 * supervisor are received from then on.
 */
int worker_ready(struct worker *w, struct cfs_store *store, struct cfs_data *data,
		 struct cfs_fuse *fuse, char err[256]);
/* Whether the supervisor is there to give the mount to another process. */
bool worker_may_leave(struct worker *w);
/*
 * After the loop has returned for that: the process goes on with the mount, and loops again.
 * -ECANCELED: the mount is to end.
 */
void worker_stay(struct worker *w, int err);
/* Called after the loop. */
void worker_unwatch(struct worker *w);
/* Reports that the start has failed. */
void worker_failed(struct worker *w, int status, const char *reason);

#endif

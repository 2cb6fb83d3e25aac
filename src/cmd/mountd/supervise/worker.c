/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/supervise/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "cmd/mountd/supervise/handover.h"
#include "cmd/mountd/supervise/notify.h"

/* Deadline of the thread that waits for messages of the supervisor: every wait has one. */
#define LISTEN_MS 3600000

static int receive_take(struct worker *w, char err[256])
{
	struct handover m;
	int r = handover_receive(w->link, cfs_deadline_in(w->timeout_ms), &m);

	if (r == 0 && (m.kind != HANDOVER_TAKE || m.fds[1] < 0))
		r = -EPROTO;
	if (r < 0)
		return cfs_fail(err, r, "the running mount was not handed over: %s", strerror(-r));
	w->device = m.fds[0];
	notify_watchdog_every(strtoull(m.text, NULL, 10));
	return cfs_handoff_attach(m.fds[1], &w->handoff, err);
}

static int same_mount(const struct cfs_handoff_header *h, const char *uuid, bool read_only,
		      char err[256])
{
	if (strcmp(h->uuid, uuid) != 0)
		return cfs_fail(err, -EBUSY, "another volume is mounted there: uuid=%s", h->uuid);
	if (h->read_only != read_only)
		return cfs_fail(err, -EBUSY, "the running mount is %s: unmount it to change that",
				h->read_only ? "read-only" : "writable");
	return 0;
}

int worker_checked(struct worker *w, const char *uuid, bool read_only, char err[256])
{
	struct cfs_handoff_header *h;
	int r = 0;

	if (w->takes_over) {
		r = handover_send(w->link, HANDOVER_CHECKED, 0, uuid, NULL);
		r = r < 0 ? r : receive_take(w, err);
	}
	if (r < 0 || !w->handoff)
		return r;
	h = cfs_handoff_header(w->handoff);
	if (worker_resumes(w))
		return same_mount(h, uuid, read_only, err);
	snprintf(h->uuid, sizeof(h->uuid), "%s", uuid);
	h->read_only = read_only;
	return 0;
}

static int refuse(struct worker *w, int err)
{
	char why[200] = "the running mount is to end";

	if (err != -ECANCELED)
		snprintf(why, sizeof(why),
			 "the running mount goes on, as it cannot store all data: %s",
			 strerror(-err));
	return handover_send(w->link, HANDOVER_FAILED, 0, why, NULL);
}

static void go_on_alone(struct worker *w)
{
	cfs_warn("the supervisor is gone, this process goes on alone: when it dies the mount does");
	atomic_store(&w->pid, getpid());
}

/* Data is stored while requests are still taken, so that the pause is short. */
static void leave(struct worker *w, cfs_deadline_t deadline)
{
	int r;

	cfs_info("another process asks for the mount, data is stored before");
	r = cfs_data_store(w->data, deadline);
	if (r == 0)
		r = cfs_store_hand_over(w->store, deadline);
	if (r < 0) {
		cfs_err("the mount is not left to another process, this one goes on: error=%s",
			cfs_errname(r));
		refuse(w, r);
		return;
	}
	handover_send(w->link, HANDOVER_LEFT, cfs_now_ns(), NULL, NULL);
	atomic_store(&w->leaving, true);
	cfs_fuse_hand_over(w->fuse);
}

bool worker_may_leave(struct worker *w)
{
	return getppid() == atomic_load(&w->pid);
}

void worker_stay(struct worker *w, int err)
{
	if (err == -ECANCELED)
		cfs_info("the mount is to end, and is not left to another process");
	else
		cfs_err("the mount is not left to another process, this one serves again: error=%s",
			cfs_errname(err));
	cfs_store_take_back(w->store);
	cfs_fuse_take_back(w->fuse);
	atomic_store(&w->leaving, false);
	/* listen_to_supervisor() has not reported it. */
	if (refuse(w, err) < 0)
		go_on_alone(w);
}

static void *listen_to_supervisor(void *arg)
{
	struct worker *w = arg;
	struct handover m;
	int r;

	for (;;) {
		r = handover_receive(w->link, cfs_deadline_in(LISTEN_MS), &m);
		if (r == 0 && m.kind == HANDOVER_LEAVE && !atomic_load(&w->leaving))
			leave(w, cfs_deadline_in(m.number));
		else if (r < 0 && r != -ETIMEDOUT)
			break;
	}
	if (w->watching && !atomic_load(&w->leaving))
		go_on_alone(w);
	return NULL;
}

static void list_objects(const struct worker *w, int *ret)
{
	size_t i;

	for (i = 0; i < w->objects.n; i++)
		ret[i] = w->objects.fd[i];
	ret[i] = -1;
}

static int await_go(struct worker *w, char err[256])
{
	struct handover m;
	int fds[HANDOVER_FDS], r;

	list_objects(w, fds);
	r = handover_send(w->link, HANDOVER_READY, 0, NULL, fds);
	r = r < 0 ? r : handover_receive(w->link, cfs_deadline_in(w->timeout_ms), &m);
	if (r == 0 && m.kind != HANDOVER_GO)
		r = -EPROTO;
	if (r < 0)
		snprintf(err, 256, "the supervisor does not answer: %s", strerror(-r));
	return r;
}

static int watch_supervisor(struct worker *w, char err[256])
{
	int r;

	w->watching = true;
	r = cfs_thread_start("supervisor", listen_to_supervisor, w, &w->watcher);
	w->watching = r == 0;
	if (r < 0)
		snprintf(err, 256, "cannot listen to the supervisor: %s", strerror(-r));
	return r;
}

int worker_ready(struct worker *w, struct cfs_store *store, struct cfs_data *data,
		 struct cfs_fuse *fuse, char err[256])
{
	int fds[HANDOVER_FDS] = {cfs_fuse_device(fuse)}, r;

	list_objects(w, fds + 1);
	w->store = store;
	w->data = data;
	w->fuse = fuse;
	atomic_store(&w->pid, w->link >= 0 ? getppid() : getpid());
	if (w->link < 0) {
		if (w->report)
			daemon_ready(w->report, "");
		return 0;
	}
	if (worker_resumes(w))
		r = await_go(w, err);
	else
		r = watch_supervisor(w, err);
	if (r == 0 && !worker_resumes(w))
		r = handover_send(w->link, HANDOVER_MOUNTED, 0, NULL, fds);
	if (r < 0) {
		worker_unwatch(w);
		return r;
	}
	/* From here on the worker survives the death of its supervisor. */
	prctl(PR_SET_PDEATHSIG, 0);
	if (w->daemon)
		daemon_detach();
	return worker_resumes(w) ? watch_supervisor(w, err) : 0;
}

void worker_unwatch(struct worker *w)
{
	if (!w->watching)
		return;
	w->watching = false;
	shutdown(w->link, SHUT_RD);
	pthread_join(w->watcher, NULL);
}

void worker_failed(struct worker *w, int status, const char *reason)
{
	if (w->link >= 0)
		handover_send(w->link, HANDOVER_FAILED, (uint64_t)status, reason, NULL);
}

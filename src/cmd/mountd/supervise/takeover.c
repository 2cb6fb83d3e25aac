/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upgrade side that gets the mount: the messages between this supervisor and the old one until
 * the mount is ours.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mounted.h"
#include "cmd/access/cmd.h"
#include "cmd/access/respawn.h"
#include "cmd/mountd/supervise/handover.h"
#include "cmd/mountd/supervise/notify.h"
#include "cmd/mountd/supervise/supervisor-internal.h"

#define END_MS	 2000
#define LOOK_MS	 5
#define AGAIN_MS 1000 /* a supervisor makes its socket in this time after the mount */

/* Gives up. The running mount is unaffected: its supervisor notices that this one ends. */
static void abandon(struct supervisor *s, const char *why)
{
	supervisor_failed(s, CMD_MOUNT_FAILED, why);
	/* A worker that cannot end yet holds nothing of the mount for itself. */
	if (s->worker) {
		kill(s->worker, SIGKILL);
		reap_child(s->worker, cfs_deadline_in(END_MS));
		s->worker = 0;
	}
	supervisor_finish(s, CMD_MOUNT_FAILED);
}

/*
 * The service goes on with this process as its main process. The manager hears only of its own
 * children's ends, and this process becomes its child when the command that started it has exited.
 */
static void become_main(struct supervisor *s)
{
	struct pollfd p = {.events = POLLIN};

	if (s->conf->report) {
		p.fd = (int)syscall(SYS_pidfd_open, s->starter, 0);
		if (p.fd >= 0)
			poll(&p, 1, ORPHAN_MS);
		supervisor_close_fd(&p.fd);
	}
	notify_send("MAINPID=%d", (int)getpid());
}

static void serve_on(struct supervisor *s)
{
	char note[120];

	if (handover_send(s->link, HANDOVER_GO, 0, NULL, NULL) < 0)
		cfs_warn("the process of the mount has ended before it served, starting another: "
			 "mount=%s",
			 s->point);
	snprintf(note, sizeof(note), "took over the running mount, requests waited %.3f s",
		 (double)(cfs_now_ns() - s->since) / 1e9);
	atomic_fetch_add(&cfs_handoff_header(s->handoff)->takeovers, 1);
	s->state = SERVING;
	successor_listen(s);
	supervisor_report(s, note);
	if (notify_wanted())
		become_main(s);
	supervisor_close_fd(&s->old);
}

int takeover_connect(struct supervisor *s)
{
	cfs_deadline_t deadline = cfs_deadline_in(AGAIN_MS);
	char path[sizeof(s->path)];
	struct mounted m;
	int r;

	do {
		if (mounted_at(s->point, &m) < 0 || strcmp(m.type, CFS_FSTYPE) != 0)
			return -ENODEV;
		r = handover_path(m.dev_minor, path, sizeof(path));
		if (r < 0)
			return r;
		r = handover_connect(path, &s->old);
	} while ((r == -ENOENT || r == -ECONNREFUSED) && !cfs_deadline_passed(deadline) &&
		 poll(NULL, 0, LOOK_MS) == 0);
	/*
	 * Ignores the caller's NOTIFY_SOCKET during an upgrade, unless it is the mount's own
	 * service.
	 */
	if (r == 0 && s->conf->report && !handover_same_group(s->old))
		notify_init(false);
	return r;
}

static void ask(struct supervisor *s)
{
	handover_send(s->old, HANDOVER_ASK, s->conf->mount_timeout_ms, s->uuid, NULL);
}

/*
 * The connection was closed without an answer: the socket was that of another mount, which has
 * ended and had the device number before.
 */
static void connect_again(struct supervisor *s)
{
	int r = -ENODEV;

	supervisor_close_fd(&s->old);
	if (!s->again_until)
		s->again_until = cfs_deadline_in(AGAIN_MS);
	if (!cfs_deadline_passed(s->again_until) && poll(NULL, 0, LOOK_MS) == 0)
		r = takeover_connect(s);
	if (r < 0)
		abandon(s, r == -ENODEV ? "the running mount has ended" : TAKEOVER_NONE);
	else if (s->uuid[0])
		ask(s);
}

void takeover_ask(struct supervisor *s, const char *uuid)
{
	snprintf(s->uuid, sizeof(s->uuid), "%s", uuid);
	/* The old supervisor may have refused already: its message has the reason. */
	if (handover_send(s->old, HANDOVER_ASK, s->conf->mount_timeout_ms, uuid, NULL) < 0)
		takeover_receive(s);
}

/* A BYE after the deadline must not be lost, because its sender is gone. */
static int await_bye(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->old, cfs_deadline_in(BYE_MS), &m);

	if (r == -ETIMEDOUT) {
		shutdown(s->old, SHUT_RD);
		r = handover_receive(s->old, cfs_deadline_in(0), &m);
		r = r == -ENOTCONN ? -ETIMEDOUT : r;
	}
	return r == 0 && m.kind != HANDOVER_BYE ? -EPROTO : r;
}

/*
 * The mount is ours from here on, if the old supervisor knows it or is gone. A supervisor that
 * takes the mount back kills this one. The command that started this one must not, because the
 * mount would then be lost.
 */
void takeover_end(struct supervisor *s)
{
	int r = -ENOTCONN;

	if (s->conf->report && !daemon_keep(s->conf->report)) {
		abandon(s, "the command that waited for the mount has given up");
		return;
	}
	if (s->old >= 0) {
		handover_send(s->old, HANDOVER_STARTED, 0, NULL, NULL);
		r = await_bye(s);
	}
	if (r == 0 || r == -ENOTCONN)
		serve_on(s);
	else
		abandon(s, "the running mount was taken back");
}

static void given(struct supervisor *s, struct handover *m)
{
	char err[256] = "";

	s->since = m->number;
	s->device = m->fds[0];
	if (m->fds[1] < 0 || cfs_handoff_attach(m->fds[1], &s->handoff, err) < 0) {
		supervisor_close_fd(&m->fds[1]);
		abandon(s, err[0] ? err : "the running mount was handed over incompletely");
		return;
	}
	atomic_fetch_add(&cfs_handoff_header(s->handoff)->workers, 1);
	notify_watchdog_every(strtoull(m->text, NULL, 10));
	if (handover_send(s->link, HANDOVER_TAKE, 0, m->text, m->fds) < 0)
		abandon(s, "the process for the mount has ended");
}

void takeover_receive(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->old, cfs_deadline_in(0), &m);

	if (r == 0 && m.kind == HANDOVER_GIVE)
		given(s, &m);
	else if (r == 0)
		abandon(s, m.text[0] ? m.text : "the running mount is not handed over");
	else if (r != -ETIMEDOUT && s->handoff)
		supervisor_close_fd(&s->old);
	else if (r != -ETIMEDOUT)
		connect_again(s);
}

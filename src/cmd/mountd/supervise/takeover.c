/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side of an upgrade that gets the mount: what this supervisor and the one before it say to
 * each other until the mount is ours.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/access/cmd.h"
#include "cmd/mountd/supervise/handover.h"
#include "cmd/mountd/supervise/notify.h"
#include "cmd/mountd/supervise/supervisor-internal.h"

#define END_MS	2000
#define LOOK_MS 5

static void await_end(pid_t pid)
{
	cfs_deadline_t deadline = cfs_deadline_in(END_MS);

	while (waitpid(pid, NULL, WNOHANG) == 0 && !cfs_deadline_passed(deadline))
		poll(NULL, 0, LOOK_MS);
}

/* Nothing has happened to the running mount: its supervisor notices that this one ends. */
static void stay_away(struct supervisor *s, const char *why)
{
	supervisor_failed(s, CMD_MOUNT_FAILED, why);
	/* One that cannot end yet has nothing of the mount to itself. */
	if (s->worker) {
		kill(s->worker, SIGKILL);
		await_end(s->worker);
		s->worker = 0;
	}
	supervisor_finish(s, CMD_MOUNT_FAILED);
}

/*
 * The service goes on with us. Its manager hears of the end of its own children only, and we are
 * one when the command that has started us is gone.
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
		cfs_warn("the process of the mount ended when it was to begin: mount=%s", s->point);
	snprintf(note, sizeof(note), "took over the running mount, requests waited %.3f s",
		 (double)(cfs_now_ns() - s->since) / 1e9);
	atomic_fetch_add(&cfs_keep_header(s->keep)->takeovers, 1);
	s->state = SERVING;
	successor_open_door(s);
	supervisor_report(s, note);
	if (notify_wanted())
		become_main(s);
	supervisor_close_fd(&s->old);
}

void takeover_ask(struct supervisor *s, const char *uuid)
{
	/* It may have refused already, and says why. */
	if (handover_send(s->old, HANDOVER_ASK, s->conf->mount_timeout_ms, uuid, NULL) < 0)
		takeover_hear(s);
}

/* A BYE that comes after the deadline must not be lost, as who has sent it is gone. */
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
 * From here on the mount is ours, if the supervisor before knows or is gone. One that takes the
 * mount back kills us; the command that has started us must not do so any more, as nobody would
 * take it back.
 */
void takeover_end(struct supervisor *s)
{
	int r = -ENOTCONN;

	if (s->conf->report && !daemon_keep(s->conf->report)) {
		stay_away(s, "the command that waited for the mount has given up");
		return;
	}
	if (s->old >= 0) {
		handover_send(s->old, HANDOVER_STARTED, 0, NULL, NULL);
		r = await_bye(s);
	}
	if (r == 0 || r == -ENOTCONN)
		serve_on(s);
	else
		stay_away(s, "the running mount was taken back");
}

static void given(struct supervisor *s, struct handover *m)
{
	char err[256] = "";

	s->since = m->number;
	s->device = m->fds[0];
	if (m->fds[1] < 0 || cfs_keep_attach(m->fds[1], &s->keep, err) < 0) {
		supervisor_close_fd(&m->fds[1]);
		stay_away(s, err[0] ? err : "the running mount was handed over incompletely");
		return;
	}
	atomic_fetch_add(&cfs_keep_header(s->keep)->workers, 1);
	notify_watchdog_every(strtoull(m->text, NULL, 10));
	if (handover_send(s->link, HANDOVER_TAKE, 0, m->text, m->fds) < 0)
		stay_away(s, "the process for the mount has ended");
}

void takeover_hear(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->old, cfs_deadline_in(0), &m);

	if (r == 0 && m.kind == HANDOVER_GIVE)
		given(s, &m);
	else if (r == 0)
		stay_away(s, m.text[0] ? m.text : "the running mount is not handed over");
	else if (r != -ETIMEDOUT && s->keep)
		supervisor_close_fd(&s->old);
	else if (r != -ETIMEDOUT)
		stay_away(s, "the running mount has ended");
}

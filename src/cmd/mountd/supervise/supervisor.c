/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of a supervisor, and the life and death of its workers. */
#include <cachefs/fuse.h>
#include <cachefs/handoff.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/module.h"
#include "base/thread.h"
#include "cmd/access/cgroup.h"
#include "cmd/access/cmd.h"
#include "cmd/mountd/supervise/handover.h"
#include "cmd/mountd/supervise/notify.h"
#include "cmd/mountd/supervise/supervisor-internal.h"
#include "cmd/mountd/supervise/worker.h"

#define DEATHS_MS     60000
#define FIRST_WAIT_MS 100
#define WAIT_MAX_MS   5000
#define KILL_MS	      5000 /* for a process that was killed to end */

void supervisor_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static const char *signal_name(int sig)
{
	const char *name = sigabbrev_np(sig);

	return name ? name : "?";
}

/* ---- workers ---- */

static void close_objects(struct supervisor *s)
{
	size_t i;

	for (i = 0; i < CFS_OBJECT_DESCS; i++)
		supervisor_close_fd(&s->objects[i]);
}

/* Replaces the kept object descriptors by those of a message, from `first` on. */
static void take_objects(struct supervisor *s, struct handover *m, size_t first)
{
	size_t i;

	close_objects(s);
	for (i = 0; i < CFS_OBJECT_DESCS; i++) {
		s->objects[i] = m->fds[first + i];
		m->fds[first + i] = -1;
	}
}

static void give_objects(const struct supervisor *s, struct cfs_object_descs *d)
{
	while (d->n_before < CFS_OBJECT_DESCS && s->objects[d->n_before] >= 0) {
		d->before[d->n_before] = s->objects[d->n_before];
		d->n_before++;
	}
}

__attribute__((noreturn)) static void become_worker(struct supervisor *s, int link)
{
	const struct supervised *conf = s->conf;
	struct worker w = {
		.link = link,
		.daemon = conf->report != NULL,
		.takes_over = s->old >= 0,
		.timeout_ms = CFS_MAX(conf->mount_timeout_ms, conf->io_timeout_ms) + LEAVE_EXTRA_MS,
		.handoff = s->handoff,
		.device = s->device,
		.since_ms = s->unserved_ms,
	};
	char err[256] = "";
	int r;

	/* Until the worker is ready, only its supervisor would end it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (conf->report)
		daemon_close(conf->report);
	supervisor_close_fd(&s->signals);
	supervisor_close_fd(&s->listener);
	supervisor_close_fd(&s->successor);
	supervisor_close_fd(&s->successor_process);
	supervisor_close_fd(&s->link);
	supervisor_close_fd(&s->old);
	/* One that resumes the mount takes a signal that ends it when it serves. */
	if (s->device < 0)
		sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
	give_objects(s, &w.objects);
	r = conf->serve(conf->url, conf->point, conf->opts, &w, err);
	if (err[0])
		worker_failed(&w, r ? r : CMD_MOUNT_FAILED, err);
	cfs_log_flush();
	exit(r);
}

static int start_worker(struct supervisor *s)
{
	int pair[2], r = handover_pair(pair);

	if (r < 0)
		return r;
	if (s->handoff)
		atomic_fetch_add(&cfs_handoff_header(s->handoff)->workers, 1);
	s->kills = cgroup_kills(s->kills_file);
	cfs_log_flush();
	fflush(NULL);
	s->worker = fork();
	if (s->worker < 0) {
		r = -errno;
		s->worker = 0;
		close(pair[0]);
		close(pair[1]);
		return r;
	}
	if (s->worker == 0) {
		close(pair[0]);
		become_worker(s, pair[1]);
	}
	close(pair[1]);
	supervisor_close_fd(&s->link);
	s->link = pair[0];
	return 0;
}

void supervisor_finish(struct supervisor *s, int status)
{
	s->status = status;
	s->end = true;
}

void supervisor_give_up(struct supervisor *s, const char *why)
{
	int r;

	cfs_err("the mount is given up and detached: mount=%s reason=\"%s\" deaths=%u "
		"last_signal=%s",
		s->point, why, s->in_row, s->last_signal ? signal_name(s->last_signal) : "none");
	r = cfs_fuse_detach(s->point, s->device);
	if (r < 0)
		cfs_err("the mount could not be detached, its requests fail: mount=%s error=%s",
			s->point, cfs_errname(r));
	supervisor_finish(s, CMD_SYSTEM);
}

/* The worker ends as soon as it serves, so that nothing is left of the session in the metadata. */
static void finish_when_ready(struct supervisor *s)
{
	kill(s->worker, SIGTERM);
	s->state = FINISHING;
	s->next = cfs_deadline_in(LEAVE_EXTRA_MS);
}

void supervisor_resume(struct supervisor *s)
{
	int r = start_worker(s);

	if (r < 0) {
		cfs_err("cannot start a process for the mount, giving up: mount=%s error=%s",
			s->point, cfs_errname(r));
		supervisor_give_up(s, "no process could be started");
		return;
	}
	s->state = RESUMING;
	if (s->stopped)
		finish_when_ready(s);
}

/* More than DEATHS_MAX within DEATHS_MS. */
static bool too_many_deaths(struct supervisor *s)
{
	uint64_t now = cfs_now_ms();
	uint64_t oldest = s->deaths[s->n_deaths % DEATHS_MAX];
	bool many = s->n_deaths >= DEATHS_MAX && now - oldest < DEATHS_MS;

	if (s->n_deaths && now - s->deaths[(s->n_deaths - 1) % DEATHS_MAX] >= DEATHS_MS)
		s->in_row = 0;
	s->deaths[s->n_deaths++ % DEATHS_MAX] = now;
	s->in_row++;
	return many;
}

/* The worker has died, or could not resume: starts another one, after growing pauses. */
static void after_death(struct supervisor *s, pid_t pid)
{
	uint64_t wait_ms;

	if (cfs_fuse_has_ended(s->device)) {
		cfs_info("the mount has ended while no process served it: mount=%s", s->point);
		supervisor_finish(s, CMD_OK);
		return;
	}
	if (!cfs_fuse_can_resume(s->handoff)) {
		supervisor_give_up(s, "this kernel cannot resend requests (from Linux 6.9)");
		return;
	}
	if (too_many_deaths(s)) {
		supervisor_give_up(s, "its processes keep dying");
		return;
	}
	/* Deaths that are hours apart must not lengthen the pause for requests. */
	wait_ms = CFS_MIN((uint64_t)FIRST_WAIT_MS << CFS_MIN(s->in_row - 1, 16),
			  (uint64_t)WAIT_MAX_MS);
	cfs_err("the process of the mount has died, starting another: mount=%s pid=%d signal=%s "
		"deaths=%u wait_ms=%llu",
		s->point, (int)pid, s->last_signal ? signal_name(s->last_signal) : "none",
		s->in_row, (unsigned long long)wait_ms);
	atomic_fetch_add(&cfs_handoff_header(s->handoff)->restarts, 1);
	if (s->state != RESUMING)
		s->unserved_ms = cfs_now_ms();
	s->state = WAITING;
	s->next = cfs_deadline_in(wait_ms);
}

void supervisor_report(struct supervisor *s, const char *note)
{
	if (s->conf->report) {
		daemon_ready(s->conf->report, note);
	} else if (note[0]) {
		cfs_info("%s", note);
	}
}

void supervisor_failed(struct supervisor *s, int status, const char *why)
{
	if (!s->told && s->conf->report)
		daemon_failed(s->conf->report, status, why);
	else if (!s->told)
		cmd_error("%s", why);
	s->told = true;
	s->status = status;
}

/* ---- messages of the worker ---- */

static void serve_again(struct supervisor *s)
{
	handover_send(s->link, HANDOVER_GO, 0, NULL, NULL);
	cfs_info("another process serves the mount: mount=%s pid=%d", s->point, (int)s->worker);
	s->state = SERVING;
}

/* The worker was told to end before it served, and ends as soon as it serves. */
static void end_in_order(struct supervisor *s)
{
	handover_send(s->link, HANDOVER_GO, 0, NULL, NULL);
	s->next = NO_DEADLINE;
}

/* False when no message is there. */
static bool receive_from_worker(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->link, cfs_deadline_in(0), &m);

	if (r < 0) {
		/* A signal reports the worker's exit. */
		if (r != -ETIMEDOUT)
			supervisor_close_fd(&s->link);
		return false;
	}
	switch (m.kind) {
	case HANDOVER_FAILED:
		if (s->state == STARTING)
			supervisor_failed(s, (int)m.number, m.text);
		else if (s->state == STORING || s->state == LEAVING)
			successor_keep_out(s, m.text);
		else if (s->state != SERVING) /* it was late, and goes on */
			cfs_err("the mount could not be resumed: mount=%s reason=\"%s\"", s->point,
				m.text);
		break;
	case HANDOVER_MOUNTED:
		s->device = m.fds[0];
		take_objects(s, &m, 1);
		s->state = SERVING;
		successor_listen(s);
		supervisor_report(s, "");
		break;
	case HANDOVER_CHECKED:
		takeover_ask(s, m.text);
		break;
	case HANDOVER_LEFT:
		successor_await_end(s, m.number);
		break;
	case HANDOVER_READY:
		take_objects(s, &m, 0);
		if (s->state == RESUMING)
			serve_again(s);
		else if (s->state == FINISHING)
			end_in_order(s);
		else
			takeover_end(s);
		break;
	default:
		break;
	}
	return true;
}

/* Whether the kernel has killed the worker for want of memory, as far as that is counted. */
static bool was_too_large(const struct supervisor *s, pid_t pid)
{
	uint64_t kills = cgroup_kills(s->kills_file);

	if (s->last_signal != SIGKILL || kills <= s->kills)
		return false;
	cfs_err("the kernel killed the process of the mount for want of memory; a smaller "
		"buffer-size needs less: mount=%s pid=%d count=%llu file=%s",
		s->point, (int)pid, (unsigned long long)(kills - s->kills), s->kills_file);
	return true;
}

static void worker_ended(struct supervisor *s, int status)
{
	bool died = WIFSIGNALED(status), too_large;
	pid_t pid = s->worker;
	int code = died ? CMD_SYSTEM : WEXITSTATUS(status);

	/* Messages that it sent before it died. */
	while (s->link >= 0 && !s->end && receive_from_worker(s))
		;
	s->worker = 0;
	s->last_signal = died ? WTERMSIG(status) : 0;
	too_large = was_too_large(s, pid);
	if (s->end)
		return;
	switch (s->state) {
	case STARTING:
		supervisor_failed(s, code ? code : CMD_MOUNT_FAILED,
				  too_large
					  ? "the kernel killed the mount process while it started, "
					    "for want of memory; a smaller buffer-size needs less"
					  : "the mount process died while starting");
		if (s->device >= 0 && s->old < 0)
			cfs_fuse_detach(s->point, s->device);
		supervisor_finish(s, s->status);
		break;
	case STORING:
		/* The mount was unmounted meanwhile. */
		if (!died)
			supervisor_finish(s, code);
		else
			successor_give(s);
		break;
	case LEAVING:
		successor_give(s);
		break;
	case RESUMING:
		after_death(s, pid);
		break;
	case FINISHING:
		if (s->next != NO_DEADLINE && cfs_fuse_has_ended(s->device))
			supervisor_finish(s, CMD_OK);
		else if (died || s->next != NO_DEADLINE)
			supervisor_give_up(s, s->next != NO_DEADLINE
						      ? "it is to end while no process serves it"
						      : "its process died while it was to end");
		else
			supervisor_finish(s, code);
		break;
	default:
		if (died)
			after_death(s, pid);
		else
			supervisor_finish(s, code);
		break;
	}
}

static void reap(struct supervisor *s)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == s->worker)
			worker_ended(s, status);
	}
}

static void on_signal(struct supervisor *s)
{
	struct signalfd_siginfo info;

	while (!s->end && read(s->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD) {
			reap(s);
			continue;
		}
		s->stopped = true;
		if (s->state == WAITING) {
			supervisor_resume(s);
		} else if (s->state == RESUMING) {
			finish_when_ready(s);
		} else if (s->worker) {
			kill(s->worker, (int)info.ssi_signo);
			if (s->state == SERVING) {
				s->next = NO_DEADLINE;
				s->state = FINISHING;
			}
		}
	}
}

static void on_deadline(struct supervisor *s)
{
	switch (s->state) {
	case WAITING:
		supervisor_resume(s);
		break;
	case STORING:
		successor_keep_out(s, "the process of the running mount does not store its data in "
				      "time");
		break;
	case LEAVING:
		cfs_warn("the process of the mount does not exit, killing it: mount=%s pid=%d",
			 s->point, (int)s->worker);
		kill(s->worker, SIGKILL);
		s->next = cfs_deadline_in(KILL_MS);
		break;
	case GIVEN:
		successor_take_back(s, "it was not ready in time");
		break;
	case FINISHING:
		kill(s->worker, SIGKILL);
		s->next = cfs_deadline_in(KILL_MS);
		break;
	default:
		break;
	}
}

static bool state_is_timed(const struct supervisor *s)
{
	return s->state == WAITING || s->state == STORING || s->state == LEAVING ||
	       s->state == GIVEN || (s->state == FINISHING && s->next != NO_DEADLINE);
}

/* For poll(). */
static int time_left(const struct supervisor *s)
{
	uint64_t ms = UINT64_MAX;

	if (state_is_timed(s))
		ms = cfs_deadline_left_ms(s->next);
	if (s->ask_until)
		ms = CFS_MIN(ms, cfs_deadline_left_ms(s->ask_until));
	return ms == UINT64_MAX ? -1 : (int)CFS_MIN(ms, (uint64_t)INT_MAX);
}

static void step(struct supervisor *s)
{
	struct pollfd p[] = {
		{.fd = s->signals, .events = POLLIN},	{.fd = s->link, .events = POLLIN},
		{.fd = s->successor, .events = POLLIN}, {.fd = s->old, .events = POLLIN},
		{.fd = s->listener, .events = POLLIN},
	};

	if (poll(p, sizeof(p) / sizeof(p[0]), time_left(s)) < 0)
		return;
	if (state_is_timed(s) && cfs_deadline_passed(s->next))
		on_deadline(s);
	if (!s->end && s->ask_until && cfs_deadline_passed(s->ask_until))
		successor_is_silent(s);
	/*
	 * The handlers close descriptors, so each condition checks that its descriptor is still
	 * open.
	 */
	if (!s->end && p[1].revents && s->link == p[1].fd)
		receive_from_worker(s);
	if (!s->end && p[3].revents && s->old >= 0)
		takeover_receive(s);
	if (!s->end && p[2].revents && s->successor >= 0)
		successor_receive(s);
	if (!s->end && p[4].revents && s->listener >= 0)
		successor_accept(s);
	if (!s->end && p[0].revents)
		on_signal(s);
}

static int take_signals(struct supervisor *s)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};
	sigset_t set;

	/* SIGPIPE would come from a log whose reader is gone. */
	sigaction(SIGPIPE, &ignore, NULL);
	cfs_end_signals(&set);
	sigaddset(&set, SIGCHLD);
	s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->signals < 0)
		return -errno;
	sigprocmask(SIG_BLOCK, &set, &s->old_mask);
	return 0;
}

int supervise(const struct supervised *conf)
{
	struct supervisor s = {
		.conf = conf,
		.point = conf->point,
		.device = -1,
		.link = -1,
		.listener = -1,
		.successor = -1,
		.successor_process = -1,
		.signals = -1,
		.old = -1,
		.starter = getppid(),
		.status = CMD_SYSTEM,
	};
	char text[200];
	int r;

	memset(s.objects, -1, sizeof(s.objects));
	r = conf->takes_over ? takeover_connect(&s) : 0;
	if (r < 0) {
		snprintf(text, sizeof(text), TAKEOVER_NONE ": %s", strerror(-r));
		supervisor_failed(&s, CMD_MOUNT_FAILED, text);
		return s.status;
	}
	if (conf->report && s.old < 0)
		notify_init(false);
	/*
	 * Keeps the modules loaded: after an upgrade of the package a worker still matches this
	 * program.
	 */
	cfs_module_hold();
	cgroup_kills_file(s.kills_file, sizeof(s.kills_file));
	r = take_signals(&s);
	if (r == 0 && s.old < 0)
		r = cfs_handoff_create(&s.handoff);
	if (r == 0)
		r = start_worker(&s);
	if (r < 0) {
		snprintf(text, sizeof(text), "cannot start a process: %s", strerror(-r));
		supervisor_failed(&s, CMD_SYSTEM, text);
	}
	while (r == 0 && !s.end)
		step(&s);
	successor_unlisten(&s);
	successor_drop(&s);
	supervisor_close_fd(&s.old);
	supervisor_close_fd(&s.link);
	supervisor_close_fd(&s.device);
	close_objects(&s);
	supervisor_close_fd(&s.signals);
	cfs_handoff_close(s.handoff);
	cfs_log_flush();
	return s.status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/supervisor.h"

#include <cachefs/fuse.h>
#include <cachefs/keep.h>
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
#include "cmd/cmd.h"
#include "cmd/daemon.h"
#include "cmd/handover.h"
#include "cmd/mount.h"
#include "cmd/mounted.h"
#include "cmd/notify.h"
#include "cmd/worker.h"

#define DEATHS_MAX    5 /* in DEATHS_MS; one more ends the mount */
#define DEATHS_MS     60000
#define FIRST_WAIT_MS 100
/* What a worker that leaves may need beyond the deadlines of its own requests. */
#define LEAVE_EXTRA_MS 10000
#define KILL_MS	       5000
#define BYE_MS	       5000
#define ORPHAN_MS      5000

enum state {
	STARTING, /* a first worker, or the one that takes over */
	SERVING,
	WAITING,   /* before the next try */
	RESUMING,  /* a worker after a death, until it is ready */
	LEAVING,   /* the worker was told to, for the successor */
	GIVEN,	   /* the successor has everything, and is not ready yet */
	FINISHING, /* the worker has been told to end */
};

struct supervisor {
	const struct supervised *conf;
	const char *point;
	enum state state;
	sigset_t old_mask;
	int signals;

	struct cfs_keep *keep;
	int device; /* -1: not mounted yet */
	pid_t worker;
	int link;
	int last_signal;
	bool told;    /* the reason of a failed start has been reported */
	bool stopped; /* by a signal, as the end of the mount */
	int status;

	uint64_t deaths[DEATHS_MAX]; /* when, ms; a ring */
	unsigned n_deaths, in_row;
	cfs_deadline_t next; /* of the state */

	char path[108];
	int door; /* where a successor knocks; -1 */
	ino_t door_ino;
	int successor, successor_process; /* connection, and pidfd; -1 */
	uint64_t successor_ms;
	uint64_t left_ns;

	int old;	/* the supervisor before, until it is gone */
	pid_t starter;	/* the command that waits for the report */
	uint64_t since; /* when requests were last taken, ns */
	bool end;
};

static void close_fd(int *fd)
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

__attribute__((noreturn)) static void become_worker(struct supervisor *s, int link)
{
	const struct supervised *conf = s->conf;
	struct worker w = {
		.link = link,
		.report = -1,
		.daemon = conf->report >= 0,
		.takes_over = s->old >= 0,
		.timeout_ms = CFS_MAX(conf->opts->mount_timeout_ms, conf->opts->io_timeout_ms) +
			      LEAVE_EXTRA_MS,
		.keep = s->keep,
		.device = s->device,
	};
	char err[256] = "";
	int r;

	/* Until it is ready nobody else would end it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (conf->report >= 0)
		close(conf->report);
	close_fd(&s->signals);
	close_fd(&s->door);
	close_fd(&s->successor);
	close_fd(&s->successor_process);
	close_fd(&s->link);
	close_fd(&s->old);
	sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
	r = serve_mount(conf->url, conf->point, conf->opts, &w, err);
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
	if (s->keep)
		atomic_fetch_add(&cfs_keep_header(s->keep)->workers, 1);
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
	close_fd(&s->link);
	s->link = pair[0];
	return 0;
}

static void finish(struct supervisor *s, int status)
{
	s->status = status;
	s->end = true;
}

static void give_up(struct supervisor *s, const char *why)
{
	int r;

	cfs_err("the mount is given up and detached: mount=%s reason=\"%s\" deaths=%u "
		"last_signal=%s",
		s->point, why, s->in_row, s->last_signal ? signal_name(s->last_signal) : "none");
	r = cfs_fuse_detach(s->point, s->device);
	if (r < 0)
		cfs_err("it could not be detached: mount=%s error=%s", s->point, cfs_errname(r));
	finish(s, CMD_SYSTEM);
}

static void resume(struct supervisor *s)
{
	int r = start_worker(s);

	if (r < 0) {
		cfs_err("cannot start a process for the mount: error=%s", cfs_errname(r));
		give_up(s, "no process could be started");
		return;
	}
	s->state = RESUMING;
	s->next = cfs_deadline_in(UINT32_MAX);
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

/* The worker has died, or could not go on: another one is started, later and later. */
static void after_death(struct supervisor *s, pid_t pid)
{
	uint64_t wait_ms;

	if (!cfs_fuse_can_resume(s->keep)) {
		give_up(s, "this kernel cannot send requests again, which takes Linux 6.9");
		return;
	}
	if (too_many_deaths(s)) {
		give_up(s, "its processes keep dying");
		return;
	}
	wait_ms = (uint64_t)FIRST_WAIT_MS << (s->in_row - 1);
	cfs_err("the process of the mount has died, starting another: mount=%s pid=%d signal=%s "
		"deaths=%u wait_ms=%llu",
		s->point, (int)pid, s->last_signal ? signal_name(s->last_signal) : "none",
		s->in_row, (unsigned long long)wait_ms);
	atomic_fetch_add(&cfs_keep_header(s->keep)->restarts, 1);
	s->state = WAITING;
	s->next = cfs_deadline_in(wait_ms);
}

/* ---- the door for a successor ---- */

static void open_door(struct supervisor *s)
{
	struct mounted m;
	int r;

	r = mounted_at(s->point, &m);
	if (r == 0)
		r = handover_path(m.dev_minor, s->path, sizeof(s->path));
	if (r == 0)
		r = handover_listen(s->path, &s->door, &s->door_ino);
	if (r < 0)
		cfs_info("the mount cannot be upgraded while it is mounted, there is no place for "
			 "its socket: mount=%s error=%s",
			 s->point, cfs_errname(r));
}

static void close_door(struct supervisor *s)
{
	if (s->door >= 0)
		handover_unlisten(s->path, s->door, s->door_ino);
	s->door = -1;
}

static void drop_successor(struct supervisor *s)
{
	close_fd(&s->successor);
	close_fd(&s->successor_process);
}

static void refuse(struct supervisor *s, const char *why)
{
	cfs_warn("the mount is not handed over: mount=%s reason=\"%s\"", s->point, why);
	handover_send(s->successor, HANDOVER_FAILED, 0, why, NULL);
	drop_successor(s);
}

/*
 * The successor did not start, or is gone. It is killed before it can see that the connection to it
 * is closed: that would tell it that there is nobody who takes the mount back. Its worker dies with
 * it.
 */
static void take_back(struct supervisor *s, const char *why)
{
	syscall(SYS_pidfd_send_signal, s->successor_process, SIGKILL, NULL, 0);
	drop_successor(s);
	if (s->stopped) {
		give_up(s, "it is to end while it is handed over");
		return;
	}
	cfs_warn("the mount was not taken over, going on with it: mount=%s reason=\"%s\"", s->point,
		 why);
	resume(s);
}

static void keep_serving(struct supervisor *s, const char *why)
{
	s->state = SERVING;
	refuse(s, why);
}

static void asked(struct supervisor *s, const struct handover *m)
{
	char text[200];

	if (strcmp(m->text, cfs_keep_header(s->keep)->uuid) != 0) {
		snprintf(text, sizeof(text), "another volume is mounted there: uuid=%s",
			 cfs_keep_header(s->keep)->uuid);
		refuse(s, text);
		return;
	}
	if (!cfs_fuse_can_resume(s->keep)) {
		refuse(s, "this kernel cannot send requests again, which takes Linux 6.9");
		return;
	}
	if (s->state != SERVING || handover_send(s->link, HANDOVER_LEAVE, 0, NULL, NULL) < 0) {
		refuse(s, "the mount is just being started or ended, try again");
		return;
	}
	s->successor_ms = m->number;
	s->left_ns = cfs_now_ns();
	s->state = LEAVING;
	s->next = cfs_deadline_in(2 * s->conf->opts->io_timeout_ms + LEAVE_EXTRA_MS);
}

static void give(struct supervisor *s)
{
	const int fds[HANDOVER_FDS] = {s->device, cfs_keep_fd(s->keep)};
	char watchdog[32];

	snprintf(watchdog, sizeof(watchdog), "%llu", (unsigned long long)notify_watchdog_ms());
	if (s->successor < 0 || s->stopped) {
		take_back(s, "it is gone");
		return;
	}
	if (handover_send(s->successor, HANDOVER_GIVE, s->left_ns, watchdog, fds) < 0) {
		take_back(s, "it does not listen");
		return;
	}
	s->state = GIVEN;
	s->next = cfs_deadline_in(s->successor_ms);
}

static void say_bye(struct supervisor *s)
{
	struct handover m;

	close_door(s);
	handover_send(s->successor, HANDOVER_BYE, 0, NULL, NULL);
	/* Until the service manager has heard of the other: with us it would take the mount for
	 * gone. */
	if (notify_wanted())
		handover_receive(s->successor, cfs_deadline_in(BYE_MS + ORPHAN_MS), &m);
	cfs_info("the mount was handed over: mount=%s", s->point);
	finish(s, CMD_OK);
}

static void hear_successor(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->successor, cfs_deadline_in(0), &m);

	if (r == 0 && m.kind == HANDOVER_ASK && s->state != LEAVING && s->state != GIVEN) {
		asked(s, &m);
	} else if (r == 0 && m.kind == HANDOVER_STARTED && s->state == GIVEN) {
		say_bye(s);
	} else if (r != -ETIMEDOUT) {
		if (s->state == GIVEN)
			take_back(s, r == 0 ? m.text : "it has ended");
		else
			drop_successor(s);
	}
}

static void answer_door(struct supervisor *s)
{
	int fd, process, r = handover_accept(s->door, &fd, &process);

	if (r < 0)
		return;
	if (s->successor >= 0) {
		handover_send(fd, HANDOVER_FAILED, 0, "somebody else is taking it over", NULL);
		close(fd);
		close(process);
		return;
	}
	if (notify_wanted() && !handover_same_group(fd)) {
		handover_send(fd, HANDOVER_FAILED, 0,
			      "the mount is a service, which would end: upgrade it by a reload of "
			      "that (systemctl reload)",
			      NULL);
		close(fd);
		close(process);
		return;
	}
	s->successor = fd;
	s->successor_process = process;
}

/* ---- being the successor ---- */

static void report(struct supervisor *s, const char *note)
{
	if (s->conf->report >= 0) {
		daemon_ready(s->conf->report, note);
	} else if (note[0]) {
		cfs_info("%s", note);
	}
}

static void failed(struct supervisor *s, int status, const char *why)
{
	if (!s->told && s->conf->report >= 0)
		daemon_failed(s->conf->report, status, why);
	else if (!s->told)
		cmd_error("%s", why);
	s->told = true;
	s->status = status;
}

/* Nothing has happened to the running mount: its supervisor notices that this one ends. */
static void stay_away(struct supervisor *s, const char *why)
{
	failed(s, CMD_MOUNT_FAILED, why);
	if (s->worker) {
		kill(s->worker, SIGKILL);
		waitpid(s->worker, NULL, 0);
		s->worker = 0;
	}
	finish(s, CMD_MOUNT_FAILED);
}

/*
 * The service goes on with us. Its manager hears of the end of its own children only, and we are
 * one when the command that has started us is gone.
 */
static void become_main(struct supervisor *s)
{
	struct pollfd p = {.events = POLLIN};

	if (s->conf->report >= 0) {
		p.fd = (int)syscall(SYS_pidfd_open, s->starter, 0);
		if (p.fd >= 0)
			poll(&p, 1, ORPHAN_MS);
		close_fd(&p.fd);
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
	open_door(s);
	report(s, note);
	if (notify_wanted())
		become_main(s);
	close_fd(&s->old);
}

/*
 * From here on the mount is ours, if the supervisor before knows or is gone. One that takes the
 * mount back kills us.
 */
static void worker_is_ready(struct supervisor *s)
{
	struct handover m;
	int r = 0;

	if (s->state == RESUMING) {
		handover_send(s->link, HANDOVER_GO, 0, NULL, NULL);
		cfs_info("another process serves the mount: mount=%s pid=%d", s->point,
			 (int)s->worker);
		s->state = SERVING;
		return;
	}
	/* With nobody to take it back the mount is ours. */
	if (s->old < 0) {
		serve_on(s);
		return;
	}
	handover_send(s->old, HANDOVER_STARTED, 0, NULL, NULL);
	r = handover_receive(s->old, cfs_deadline_in(BYE_MS), &m);
	if ((r == 0 && m.kind == HANDOVER_BYE) || r == -ENOTCONN)
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
		close_fd(&m->fds[1]);
		stay_away(s, err[0] ? err : "the running mount was handed over incompletely");
		return;
	}
	atomic_fetch_add(&cfs_keep_header(s->keep)->workers, 1);
	notify_watchdog_every(strtoull(m->text, NULL, 10));
	if (handover_send(s->link, HANDOVER_TAKE, 0, m->text, m->fds) < 0)
		stay_away(s, "the process for the mount has ended");
}

static void hear_old(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->old, cfs_deadline_in(0), &m);

	if (r == 0 && m.kind == HANDOVER_GIVE)
		given(s, &m);
	else if (r == 0)
		stay_away(s, m.text[0] ? m.text : "the running mount is not handed over");
	else if (r != -ETIMEDOUT && s->keep)
		close_fd(&s->old);
	else if (r != -ETIMEDOUT)
		stay_away(s, "the running mount has ended");
}

/* ---- the worker's side ---- */

static void hear_worker(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->link, cfs_deadline_in(0), &m);

	if (r < 0) {
		/* Its end is told by a signal. */
		if (r != -ETIMEDOUT)
			close_fd(&s->link);
		return;
	}
	switch (m.kind) {
	case HANDOVER_FAILED:
		if (s->state == STARTING)
			failed(s, (int)m.number, m.text);
		else if (s->state == LEAVING)
			keep_serving(s, m.text);
		else
			cfs_err("the mount could not be resumed: mount=%s reason=\"%s\"", s->point,
				m.text);
		break;
	case HANDOVER_MOUNTED:
		s->device = m.fds[0];
		s->state = SERVING;
		open_door(s);
		report(s, "");
		break;
	case HANDOVER_CHECKED:
		/* It may have refused already, and says why. */
		if (handover_send(s->old, HANDOVER_ASK, s->conf->opts->mount_timeout_ms, m.text,
				  NULL) < 0)
			hear_old(s);
		break;
	case HANDOVER_LEFT:
		s->left_ns = m.number;
		break;
	case HANDOVER_READY:
		worker_is_ready(s);
		break;
	default:
		break;
	}
}

static void worker_ended(struct supervisor *s, int status)
{
	bool died = WIFSIGNALED(status);
	pid_t pid = s->worker;
	int code = died ? CMD_SYSTEM : WEXITSTATUS(status);

	/* What it said before. */
	while (s->link >= 0 && !s->end)
		hear_worker(s);
	s->worker = 0;
	s->last_signal = died ? WTERMSIG(status) : 0;
	if (s->end)
		return;
	switch (s->state) {
	case STARTING:
		failed(s, code ? code : CMD_MOUNT_FAILED, "the mount process died while starting");
		if (s->device >= 0 && s->old < 0)
			cfs_fuse_detach(s->point, s->device);
		finish(s, s->status);
		break;
	case LEAVING:
		give(s);
		break;
	case RESUMING:
		after_death(s, pid);
		break;
	case FINISHING:
		if (died)
			give_up(s, "its process died while it was to end");
		else
			finish(s, code);
		break;
	default:
		if (died)
			after_death(s, pid);
		else
			finish(s, code);
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
		if (s->worker) {
			kill(s->worker, (int)info.ssi_signo);
			if (s->state == SERVING || s->state == RESUMING)
				s->state = FINISHING;
			continue;
		}
		if (s->state == WAITING)
			give_up(s, "it is to end while no process serves it");
	}
}

static void on_deadline(struct supervisor *s)
{
	switch (s->state) {
	case WAITING:
		resume(s);
		break;
	case LEAVING:
		cfs_warn("the process of the mount does not leave, ending it: mount=%s pid=%d",
			 s->point, (int)s->worker);
		kill(s->worker, SIGKILL);
		s->next = cfs_deadline_in(KILL_MS);
		break;
	case GIVEN:
		take_back(s, "it was not ready in time");
		break;
	default:
		break;
	}
}

static void step(struct supervisor *s)
{
	bool timed = s->state == WAITING || s->state == LEAVING || s->state == GIVEN;
	struct pollfd p[] = {
		{.fd = s->signals, .events = POLLIN},	{.fd = s->link, .events = POLLIN},
		{.fd = s->successor, .events = POLLIN}, {.fd = s->old, .events = POLLIN},
		{.fd = s->door, .events = POLLIN},
	};
	int wait = timed ? (int)CFS_MIN(cfs_deadline_left_ms(s->next), (uint64_t)INT_MAX) : -1;

	if (poll(p, sizeof(p) / sizeof(p[0]), wait) < 0)
		return;
	if (timed && cfs_deadline_passed(s->next))
		on_deadline(s);
	/* The handlers close descriptors: each looks at what is still there. */
	if (!s->end && p[1].revents && s->link == p[1].fd)
		hear_worker(s);
	if (!s->end && p[3].revents && s->old >= 0)
		hear_old(s);
	if (!s->end && p[2].revents && s->successor >= 0)
		hear_successor(s);
	if (!s->end && p[4].revents && s->door >= 0)
		answer_door(s);
	if (!s->end && p[0].revents)
		on_signal(s);
}

static int take_signals(struct supervisor *s)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
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
		.door = -1,
		.successor = -1,
		.successor_process = -1,
		.signals = -1,
		.old = -1,
		.starter = getppid(),
		.status = CMD_SYSTEM,
	};
	char text[200];
	int r;

	r = conf->old ? handover_connect(conf->old, &s.old) : 0;
	if (r < 0) {
		snprintf(text, sizeof(text),
			 "already mounted, and has no supervisor that could hand it over: %s",
			 strerror(-r));
		failed(&s, CMD_MOUNT_FAILED, text);
		return s.status;
	}
	/* The manager of whoever runs an upgrade is not meant, unless it is that of the mount. */
	if (conf->report >= 0 && (s.old < 0 || !handover_same_group(s.old)))
		notify_init(false);
	r = take_signals(&s);
	if (r == 0 && s.old < 0)
		r = cfs_keep_create(&s.keep);
	if (r == 0)
		r = start_worker(&s);
	if (r < 0) {
		snprintf(text, sizeof(text), "cannot start a process: %s", strerror(-r));
		failed(&s, CMD_SYSTEM, text);
	}
	while (r == 0 && !s.end)
		step(&s);
	close_door(&s);
	drop_successor(&s);
	close_fd(&s.old);
	close_fd(&s.link);
	close_fd(&s.device);
	close_fd(&s.signals);
	cfs_keep_close(s.keep);
	cfs_log_flush();
	return s.status;
}

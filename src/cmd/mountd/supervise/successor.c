/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upgrade side that gives the mount away. A successor connects, sends ASK when its worker has
 * opened the volume, and gets everything when our worker has left. Until it reports that it serves,
 * the mount can be taken back.
 */
#include <cachefs/fuse.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mounted.h"
#include "cmd/access/cmd.h"
#include "cmd/mountd/supervise/handover.h"
#include "cmd/mountd/supervise/notify.h"
#include "cmd/mountd/supervise/supervisor-internal.h"

#define END_MS 2000

void successor_listen(struct supervisor *s)
{
	struct mounted m;
	int r;

	r = mounted_at(s->point, &m);
	if (r == 0)
		r = handover_path(m.dev_minor, s->path, sizeof(s->path));
	if (r == 0)
		r = handover_listen(s->path, &s->listener, &s->listener_ino);
	if (r < 0)
		cfs_info("the mount cannot be upgraded while it is mounted, its socket cannot be "
			 "made: mount=%s error=%s",
			 s->point, cfs_errname(r));
}

void successor_unlisten(struct supervisor *s)
{
	if (s->listener >= 0)
		handover_unlisten(s->path, s->listener, s->listener_ino);
	s->listener = -1;
}

void successor_drop(struct supervisor *s)
{
	s->ask_until = 0;
	supervisor_close_fd(&s->successor);
	supervisor_close_fd(&s->successor_process);
}

static void refuse(struct supervisor *s, const char *why)
{
	cfs_warn("the mount is not handed over: mount=%s reason=\"%s\"", s->point, why);
	handover_send(s->successor, HANDOVER_FAILED, 0, why, NULL);
	successor_drop(s);
}

/* Its worker ends with it. While that worker lives, it may take requests and never answer them. */
static void end_successor(const struct supervisor *s)
{
	struct pollfd p = {.fd = s->successor_process, .events = POLLIN};

	if (p.fd < 0)
		return;
	syscall(SYS_pidfd_send_signal, s->successor_process, SIGKILL, NULL, 0);
	poll(&p, 1, END_MS);
}

void successor_take_back(struct supervisor *s, const char *why)
{
	end_successor(s);
	successor_drop(s);
	if (s->stopped && s->last_signal) {
		supervisor_give_up(s, "its process died while it was to end");
		return;
	}
	cfs_warn("the mount was not taken over, going on with it: mount=%s reason=\"%s\"", s->point,
		 why);
	s->unserved_ms = s->left_ns / 1000000;
	supervisor_resume(s);
}

void successor_keep_out(struct supervisor *s, const char *why)
{
	s->state = s->stopped ? FINISHING : SERVING;
	s->next = NO_DEADLINE;
	refuse(s, why);
}

void successor_await_end(struct supervisor *s, uint64_t left_ns)
{
	/* The handover was given up: the mount is taken back when its process has ended. */
	if (s->state != STORING)
		successor_drop(s);
	s->left_ns = left_ns;
	s->state = LEAVING;
	/* The requests under way end, and the rest is stored. */
	s->next = cfs_deadline_in(2 * s->conf->io_timeout_ms + LEAVE_EXTRA_MS);
}

/*
 * True: the mount has ended, though its process may still store data. The number of its device, by
 * which successors find the socket, may be another mount's. The caller closes the connection
 * without an answer, so that the successor looks for the socket again.
 */
static bool is_of_another(struct supervisor *s)
{
	if (!cfs_fuse_has_ended(s->device))
		return false;
	successor_unlisten(s);
	return true;
}

static void asked(struct supervisor *s, const struct handover *m)
{
	/* The successor, which also needs time to start, must receive the reason of a refusal. */
	uint64_t limit_ms = CFS_MIN(s->conf->io_timeout_ms, m->number / 4 * 3);
	char text[200];

	if (is_of_another(s)) {
		successor_drop(s);
		return;
	}
	if (strcmp(m->text, cfs_handoff_header(s->handoff)->uuid) != 0) {
		snprintf(text, sizeof(text), "another volume is mounted there: uuid=%s",
			 cfs_handoff_header(s->handoff)->uuid);
		refuse(s, text);
		return;
	}
	if (!cfs_fuse_can_resume(s->handoff)) {
		refuse(s, "this kernel cannot resend requests (from Linux 6.9)");
		return;
	}
	if (s->state != SERVING ||
	    handover_send(s->link, HANDOVER_LEAVE, limit_ms, NULL, NULL) < 0) {
		refuse(s, "the mount is just being started or ended, try again");
		return;
	}
	s->ask_until = 0;
	s->successor_ms = m->number;
	s->left_ns = cfs_now_ns();
	s->state = STORING;
	s->next = cfs_deadline_in(limit_ms + LEAVE_EXTRA_MS);
}

void successor_give(struct supervisor *s)
{
	const int fds[HANDOVER_FDS] = {s->device, cfs_handoff_fd(s->handoff), -1};
	char watchdog[32];

	snprintf(watchdog, sizeof(watchdog), "%llu", (unsigned long long)notify_watchdog_ms());
	if (s->successor < 0 || s->stopped) {
		successor_take_back(s, "it is gone");
		return;
	}
	if (handover_send(s->successor, HANDOVER_GIVE, s->left_ns, watchdog, fds) < 0) {
		successor_take_back(s, "it does not listen");
		return;
	}
	s->state = GIVEN;
	s->next = cfs_deadline_in(s->successor_ms);
}

static void end_handover(struct supervisor *s)
{
	struct handover m;

	/*
	 * Closed before the successor opens its own socket, which must not be mistaken for this
	 * one.
	 */
	successor_unlisten(s);
	/* If BYE cannot be sent, the successor gives up. */
	if (handover_send(s->successor, HANDOVER_BYE, 0, NULL, NULL) < 0) {
		successor_listen(s);
		successor_take_back(s, "it does not listen any more");
		return;
	}
	/*
	 * A stop signal arrived too late for this supervisor, so it is passed on to the successor.
	 */
	if (s->stopped)
		syscall(SYS_pidfd_send_signal, s->successor_process, SIGTERM, NULL, 0);
	/*
	 * A manager that sees this process exit before it knows the other takes the mount for gone.
	 */
	if (notify_wanted())
		handover_receive(s->successor, cfs_deadline_in(BYE_MS + ORPHAN_MS), &m);
	cfs_info("the mount was handed over: mount=%s", s->point);
	supervisor_finish(s, CMD_OK);
}

void successor_receive(struct supervisor *s)
{
	struct handover m;
	int r = handover_receive(s->successor, cfs_deadline_in(0), &m);

	if (r == 0)
		handover_close_fds(&m);
	if (r == 0 && m.kind == HANDOVER_ASK && s->state != LEAVING && s->state != GIVEN) {
		asked(s, &m);
	} else if (r == 0 && m.kind == HANDOVER_STARTED && s->state == GIVEN) {
		end_handover(s);
	} else if (r != -ETIMEDOUT) {
		if (s->state == GIVEN)
			successor_take_back(s, r == 0 ? m.text : "it has ended");
		else
			successor_drop(s);
	}
}

void successor_accept(struct supervisor *s)
{
	int fd, process, r = handover_accept(s->listener, &fd, &process);
	const char *why = NULL;

	if (r < 0)
		return;
	if (!is_of_another(s) && s->successor < 0 &&
	    (!notify_wanted() || handover_same_group(fd))) {
		s->successor = fd;
		s->successor_process = process;
		s->ask_until = cfs_deadline_in(s->conf->mount_timeout_ms);
		return;
	}
	if (s->listener >= 0)
		why = s->successor >= 0
			      ? "another process is taking it over"
			      : "the mount is a service, which would end: upgrade it by a "
				"reload of that (systemctl reload)";
	if (why)
		handover_send(fd, HANDOVER_FAILED, 0, why, NULL);
	close(fd);
	close(process);
}

void successor_is_silent(struct supervisor *s)
{
	char why[120];

	snprintf(why, sizeof(why), "it was not asked for within %llu s (mount_timeout)",
		 (unsigned long long)(s->conf->mount_timeout_ms / 1000));
	refuse(s, why);
}

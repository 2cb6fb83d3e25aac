/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/supervise/health.h"

#include <errno.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "cmd/access/respawn.h"

/* Longest sleep without questions. It exists because every wait has a deadline. */
#define IDLE_MS 60000

struct health {
	const char *dir;
	pthread_t watcher;
	pid_t asker; /* 0: none; the watcher's */
	/* Protects the rest; a leaf. */
	pthread_mutex_t lock;
	pthread_cond_t asked, answered;
	/*
	 * Questions are numbered. One that is sent answers all that were asked before it was sent.
	 */
	uint64_t wanted, put, done;
	cfs_deadline_t late; /* deadline of the question in progress */
	bool well;	     /* the answer to question `done` */
	bool known;	     /* it was well once */
	bool told;	     /* the log says that it is not well */
	bool stop;
	int sock; /* connection to the asker, -1; closed by the watcher */
};

/* ---- the asker: a separate process ---- */

/*
 * A thread blocked in a FUSE request cannot be killed. It would keep its process from ending, and
 * with it the connection to the kernel. So a separate process, without the connection, asks. It is
 * the program executed anew: a forked copy would have the memory of its parent. It ends when its
 * socket closes.
 */
int health_ask_for(const char *dir)
{
	struct statfs st;
	char byte;

	/* A signal that ends the mount reaches its children only after the mount has ended. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	while (recv(STDIN_FILENO, &byte, 1, 0) == 1) {
		byte = statfs(dir, &st) == 0 && st.f_type == FUSE_SUPER_MAGIC;
		if (send(STDIN_FILENO, &byte, 1, MSG_NOSIGNAL) != 1)
			break;
	}
	return 0;
}

static void end_asker(struct health *h)
{
	int sock = h->sock;

	if (h->asker) {
		kill(h->asker, SIGKILL);
		/* A child that cannot end yet becomes an orphan; init reaps it. */
		waitpid(h->asker, NULL, WNOHANG);
	}
	h->asker = 0;
	pthread_mutex_lock(&h->lock);
	h->sock = -1;
	pthread_mutex_unlock(&h->lock);
	if (sock >= 0)
		close(sock);
}

static int start_asker(struct health *h)
{
	char name[] = "cachefs", command[] = HEALTH_ASKER;
	char *const argv[] = {name, command, (char *)h->dir, NULL};
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	r = respawn(argv, pair[1], -1, &h->asker);
	close(pair[1]);
	if (r < 0) {
		cfs_err("cannot check the mount, it counts as not answering: "
			"mount=%s error=%s",
			h->dir, cfs_errname(r));
		h->asker = 0;
		close(pair[0]);
		return r;
	}
	pthread_mutex_lock(&h->lock);
	h->sock = pair[0];
	if (h->stop)
		shutdown(h->sock, SHUT_RDWR);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

/* Waits until the mount answers or has ended, or for health_stop(). */
static bool mount_answers(struct health *h)
{
	char byte = 0;

	if (!h->asker && start_asker(h) < 0)
		return false;
	if (send(h->sock, &byte, 1, MSG_NOSIGNAL) == 1 && recv(h->sock, &byte, 1, 0) == 1)
		return byte;
	end_asker(h);
	return false;
}

/* ---- the questions ---- */

static void *watch(void *arg)
{
	struct health *h = arg;
	bool well;

	pthread_mutex_lock(&h->lock);
	while (!h->stop) {
		if (h->wanted == h->done) {
			cfs_cond_wait(&h->asked, &h->lock, cfs_deadline_in(IDLE_MS));
			continue;
		}
		h->put = h->wanted;
		h->late = cfs_deadline_in(HEALTH_ANSWER_MS);
		pthread_mutex_unlock(&h->lock);
		well = mount_answers(h);
		pthread_mutex_lock(&h->lock);
		h->well = well;
		h->done = h->put;
		pthread_cond_broadcast(&h->answered);
	}
	pthread_mutex_unlock(&h->lock);
	end_asker(h);
	return NULL;
}

bool health_ask(struct health *h)
{
	cfs_deadline_t deadline = cfs_deadline_in(HEALTH_ANSWER_MS);
	uint64_t mine;
	bool well, hangs, tell;

	pthread_mutex_lock(&h->lock);
	mine = h->wanted + 1;
	/* While an earlier question is late, the answer is known: no wait. */
	hangs = h->put != h->done && cfs_deadline_passed(h->late);
	if (!hangs) {
		h->wanted = mine;
		pthread_cond_signal(&h->asked);
	}
	while (!hangs && h->done < mine && !h->stop) {
		if (cfs_cond_wait(&h->answered, &h->lock, deadline) == -ETIMEDOUT)
			break;
	}
	well = h->done >= mine && h->well;
	h->known = h->known || well;
	tell = well == h->told && h->known && !h->stop;
	if (tell)
		h->told = !well;
	pthread_mutex_unlock(&h->lock);
	if (tell && well)
		cfs_info("the mount answers again: mount=%s", h->dir);
	else if (tell)
		cfs_warn("the mount does not answer: mount=%s timeout_ms=%d", h->dir,
			 HEALTH_ANSWER_MS);
	return well;
}

static void destroy(struct health *h)
{
	pthread_cond_destroy(&h->asked);
	pthread_cond_destroy(&h->answered);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

int health_start(const char *dir, struct health **ret)
{
	struct health *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->dir = dir;
	h->sock = -1;
	pthread_mutex_init(&h->lock, NULL);
	cfs_cond_init(&h->asked);
	cfs_cond_init(&h->answered);
	r = cfs_thread_start("health", watch, h, &h->watcher);
	if (r < 0) {
		destroy(h);
		return r;
	}
	*ret = h;
	return 0;
}

void health_stop(struct health *h)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	if (h->sock >= 0)
		shutdown(h->sock, SHUT_RDWR);
	pthread_cond_signal(&h->asked);
	pthread_cond_broadcast(&h->answered);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->watcher, NULL);
	destroy(h);
}

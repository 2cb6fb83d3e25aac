/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipes for splicing files to sockets. The content of a pipe can be read from the file again, so a
 * slow receiver loses its pipe when another connection needs one.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "transport-internal.h"

#define PIPE_SIZE (1u << 20)
#define PIPE_MIN  (64u << 10) /* smaller ones: beyond fs.pipe-user-pages-soft */
#define RETRY_MS  100

static void destroy(struct cfs_transport *t, struct cfs_pipe *p)
{
	close(p->rd);
	close(p->wr);
	free(p);
	t->n_pipes--;
}

static struct cfs_pipe *create(struct cfs_transport *t)
{
	struct cfs_pipe *p = calloc(1, sizeof(*p));
	int fds[2], size;

	if (!p)
		return NULL;
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
		free(p);
		return NULL;
	}
	p->rd = fds[0];
	p->wr = fds[1];
	t->n_pipes++;
	for (size = PIPE_SIZE; size > (int)PIPE_MIN; size /= 2) {
		if (fcntl(p->wr, F_SETPIPE_SZ, size) >= 0)
			break;
	}
	size = fcntl(p->wr, F_GETPIPE_SZ);
	if (size >= (int)PIPE_MIN) {
		p->size = (uint32_t)size;
		return p;
	}
	destroy(t, p);
	if (!t->no_pipes_until_ms)
		cfs_warn("peer transport: a pipe holds only %d bytes (fs.pipe-user-pages-soft), "
			 "large answers beyond %u at a time are copied until there is room",
			 size, t->n_pipes);
	t->no_pipes_until_ms = t->loop.now_ms + RETRY_MS;
	return NULL;
}

void cfs_pipe_blocked(struct cfs_reply *j, bool blocked)
{
	struct cfs_transport *t = j->sc->c.t;

	if (j->blocked == blocked)
		return;
	j->blocked = blocked;
	if (blocked)
		TAILQ_INSERT_TAIL(&t->blocked, j, block);
	else
		TAILQ_REMOVE(&t->blocked, j, block);
}

struct cfs_pipe *cfs_pipe_get(struct cfs_transport *t)
{
	struct cfs_pipe *p = t->pipes;
	struct cfs_reply *slow = TAILQ_FIRST(&t->blocked);

	if (p) {
		t->pipes = p->next;
		return p;
	}
	if (t->n_pipes >= CFS_PIPES_MAX && slow) {
		cfs_pipe_blocked(slow, false);
		cfs_pipe_put(t, slow->pipe);
		slow->pipe = NULL;
		return cfs_pipe_get(t);
	}
	if (t->n_pipes >= CFS_PIPES_MAX || t->loop.now_ms < t->no_pipes_until_ms)
		return NULL;
	return create(t);
}

void cfs_pipe_put(struct cfs_transport *t, struct cfs_pipe *p)
{
	if (!p)
		return;
	if (p->held > 0) {
		destroy(t, p);
		return;
	}
	p->next = t->pipes;
	t->pipes = p;
}

void cfs_pipes_free(struct cfs_transport *t)
{
	struct cfs_pipe *p;

	while ((p = t->pipes)) {
		t->pipes = p->next;
		destroy(t, p);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a member that has a block cached: asks all for one byte of it at once. */
#include <errno.h>

#include "base/cleanup.h"
#include "group-internal.h"

struct search;

struct probe {
	struct cfs_peer_get get; /* first */
	struct search *search;
	struct iovec iov;
	char byte;
	bool running;
};

struct search {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	struct probe probes[CFS_PLACEMENT_PICK_MAX];
	unsigned running;
	int found; /* index of the first that has it; -1 */
};

static void note_end(struct cfs_peer_get *g, int err)
{
	struct probe *p = (struct probe *)g;
	struct search *s = p->search;
	CFS_LOCK_GUARD(&s->lock);

	p->running = false;
	s->running--;
	if (err == 0 && s->found < 0)
		s->found = (int)(p - s->probes);
	pthread_cond_signal(&s->ended);
}

static void start(struct search *s, struct cfs_peer *peer, unsigned i,
		  const struct cfs_peer_block *b, cfs_deadline_t deadline)
{
	struct probe *p = &s->probes[i];

	*p = (struct probe){.search = s, .running = true};
	p->iov = (struct iovec){.iov_base = &p->byte, .iov_len = 1};
	p->get = (struct cfs_peer_get){
		.block = *b,
		.len = 1,
		.flags = CFS_PEER_ONLY_CACHED,
		.dst = &p->iov,
		.n_dst = 1,
		.deadline = deadline,
		.done = note_end,
	};
	pthread_mutex_lock(&s->lock);
	s->running++;
	pthread_mutex_unlock(&s->lock);
	if (cfs_peer_start(peer, &p->get) == 0)
		return;
	pthread_mutex_lock(&s->lock);
	p->running = false;
	s->running--;
	pthread_mutex_unlock(&s->lock);
}

int cfs_group_locate(struct group_node *const *nodes, unsigned n, const struct cfs_peer_block *b,
		     cfs_deadline_t deadline)
{
	struct search s = {.found = -1};
	unsigned i;

	if (cfs_cond_init(&s.ended) < 0)
		return -ENOMEM;
	pthread_mutex_init(&s.lock, NULL);
	for (i = 0; i < n; i++)
		start(&s, nodes[i]->peer, i, b, deadline);
	pthread_mutex_lock(&s.lock);
	/* The transport observes the deadline. */
	while (s.running && s.found < 0)
		pthread_cond_wait(&s.ended, &s.lock);
	for (i = 0; i < n; i++) {
		bool running = s.probes[i].running;

		pthread_mutex_unlock(&s.lock);
		if (running)
			cfs_peer_cancel(nodes[i]->peer, &s.probes[i].get);
		pthread_mutex_lock(&s.lock);
	}
	while (s.running)
		pthread_cond_wait(&s.ended, &s.lock);
	pthread_mutex_unlock(&s.lock);
	pthread_mutex_destroy(&s.lock);
	pthread_cond_destroy(&s.ended);
	return s.found < 0 ? -ENOENT : s.found;
}

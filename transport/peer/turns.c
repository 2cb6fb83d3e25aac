/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "transport-internal.h"

static struct cfs_turns *turns_of(const struct cfs_job *j)
{
	return &j->sc->c.t->turns[j->a.disk % CFS_TURN_DISKS];
}

static bool hangs(const struct cfs_transport *t, const struct cfs_turns *d)
{
	return d->taken > 0 && t->loop.now_ms - d->heard_ms >= t->conf.disk_timeout_ms;
}

bool cfs_turns_hang(struct cfs_transport *t, unsigned disk)
{
	return hangs(t, &t->turns[disk % CFS_TURN_DISKS]);
}

static void begin(struct cfs_turns *d, struct cfs_job *j)
{
	struct cfs_loop *loop = &j->sc->c.t->loop;

	if (d->taken++ == 0)
		d->heard_ms = loop->now_ms;
	j->has_turn = true;
	cfs_loop_touch(loop);
}

static void get_in_line(struct cfs_turns *d, struct cfs_job *j)
{
	struct cfs_loop *loop = &j->sc->c.t->loop;

	j->turn_next = NULL;
	j->turn_prev = d->last;
	if (d->last)
		d->last->turn_next = j;
	else
		d->first = j;
	d->last = j;
	j->in_line = true;
	j->line_ms = loop->now_ms;
	cfs_loop_touch(loop);
}

static void leave_line(struct cfs_turns *d, struct cfs_job *j)
{
	if (j->turn_prev)
		j->turn_prev->turn_next = j->turn_next;
	else
		d->first = j->turn_next;
	if (j->turn_next)
		j->turn_next->turn_prev = j->turn_prev;
	else
		d->last = j->turn_prev;
	j->in_line = false;
}

int cfs_turn_take(struct cfs_job *j)
{
	struct cfs_transport *t = j->sc->c.t;
	struct cfs_turns *d = turns_of(j);

	if (j->has_turn)
		return 0;
	if (hangs(t, d)) {
		if (d->taken == CFS_TURNS_MAX ||
		    t->loop.now_ms - d->tried_ms < t->conf.disk_timeout_ms)
			return -EBUSY;
		d->tried_ms = t->loop.now_ms;
	} else if (d->first || d->taken == CFS_TURNS_MAX) {
		get_in_line(d, j);
		return -EINPROGRESS;
	}
	begin(d, j);
	return 0;
}

void cfs_turn_end(struct cfs_job *j)
{
	struct cfs_turns *d = turns_of(j);

	if (j->in_line)
		leave_line(d, j);
	if (!j->has_turn)
		return;
	free(j->buf);
	j->buf = NULL;
	j->has_turn = false;
	d->taken--;
	d->heard_ms = j->sc->c.t->loop.now_ms;
}

static bool is_due(const struct cfs_turns *d)
{
	return d->first && d->taken < CFS_TURNS_MAX;
}

bool cfs_turns_are_due(const struct cfs_transport *t)
{
	unsigned i;

	for (i = 0; i < CFS_TURN_DISKS; i++) {
		if (is_due(&t->turns[i]))
			return true;
	}
	return false;
}

void cfs_turns_run(struct cfs_transport *t)
{
	unsigned i, n;

	for (i = 0; i < CFS_TURN_DISKS; i++) {
		struct cfs_turns *d = &t->turns[i];

		for (n = 0; n < CFS_TURNS_MAX && is_due(d); n++) {
			struct cfs_job *j = d->first;

			leave_line(d, j);
			begin(d, j);
			cfs_answer_advance(j);
		}
	}
}

/* An answer whose header was sent cannot be refused. */
static void refuse_overdue(const struct cfs_transport *t, struct cfs_turns *d)
{
	struct cfs_job *j, *next;

	for (j = d->first; j && t->loop.now_ms - j->line_ms >= t->conf.disk_timeout_ms; j = next) {
		next = j->turn_next;
		if (j->out.job)
			continue;
		leave_line(d, j);
		j->a.err = -EBUSY;
		cfs_answer_advance(j);
	}
}

bool cfs_turns_tick(struct cfs_transport *t)
{
	bool busy = false;
	unsigned i;

	for (i = 0; i < CFS_TURN_DISKS; i++) {
		struct cfs_turns *d = &t->turns[i];

		refuse_overdue(t, d);
		busy |= d->taken > 0 || d->first;
	}
	return busy;
}

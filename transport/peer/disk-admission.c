/* SPDX-License-Identifier: Apache-2.0 */
/* Admission of reads to cache disks: transport-internal.h. */
#include <errno.h>
#include <stdlib.h>

#include "transport-internal.h"

void cfs_admission_init(struct cfs_transport *t)
{
	unsigned i;

	for (i = 0; i < CFS_ADMISSION_DISKS; i++)
		TAILQ_INIT(&t->admission[i].queue);
}

static struct cfs_disk_admission *admission_of(const struct cfs_reply *j)
{
	return &j->sc->c.t->admission[j->s.a.disk % CFS_ADMISSION_DISKS];
}

static bool hangs(const struct cfs_transport *t, const struct cfs_disk_admission *d)
{
	return d->taken > 0 && cfs_loop_ran_ms(&t->loop) - d->heard_ms >= t->conf.disk_timeout_ms;
}

bool cfs_admission_hangs(struct cfs_transport *t, unsigned disk)
{
	return hangs(t, &t->admission[disk % CFS_ADMISSION_DISKS]);
}

static void begin(struct cfs_disk_admission *d, struct cfs_reply *j)
{
	struct cfs_loop *loop = &j->sc->c.t->loop;

	if (d->taken++ == 0)
		d->heard_ms = cfs_loop_ran_ms(loop);
	j->has_slot = true;
	cfs_loop_touch(loop);
}

static void enqueue(struct cfs_disk_admission *d, struct cfs_reply *j)
{
	struct cfs_loop *loop = &j->sc->c.t->loop;

	TAILQ_INSERT_TAIL(&d->queue, j, queue);
	j->queued = true;
	j->queued_ms = cfs_loop_ran_ms(loop);
	cfs_loop_touch(loop);
}

static void dequeue(struct cfs_disk_admission *d, struct cfs_reply *j)
{
	TAILQ_REMOVE(&d->queue, j, queue);
	j->queued = false;
}

int cfs_admission_enter(struct cfs_reply *j)
{
	struct cfs_transport *t = j->sc->c.t;
	struct cfs_disk_admission *d = admission_of(j);

	if (j->has_slot)
		return 0;
	if (hangs(t, d)) {
		if (d->taken == CFS_ADMISSION_MAX ||
		    cfs_loop_ran_ms(&t->loop) - d->tried_ms < t->conf.disk_timeout_ms)
			return -EBUSY;
		d->tried_ms = cfs_loop_ran_ms(&t->loop);
	} else if (!TAILQ_EMPTY(&d->queue) || d->taken == CFS_ADMISSION_MAX) {
		enqueue(d, j);
		return -EINPROGRESS;
	}
	begin(d, j);
	return 0;
}

void cfs_admission_leave(struct cfs_reply *j)
{
	struct cfs_disk_admission *d = admission_of(j);

	if (j->queued)
		dequeue(d, j);
	if (!j->has_slot)
		return;
	free(j->buf);
	j->buf = NULL;
	j->has_slot = false;
	d->taken--;
	d->heard_ms = cfs_loop_ran_ms(&j->sc->c.t->loop);
}

static bool is_due(const struct cfs_disk_admission *d)
{
	return !TAILQ_EMPTY(&d->queue) && d->taken < CFS_ADMISSION_MAX;
}

bool cfs_admission_is_due(const struct cfs_transport *t)
{
	unsigned i;

	for (i = 0; i < CFS_ADMISSION_DISKS; i++) {
		if (is_due(&t->admission[i]))
			return true;
	}
	return false;
}

void cfs_admission_run(struct cfs_transport *t)
{
	unsigned i, n;

	for (i = 0; i < CFS_ADMISSION_DISKS; i++) {
		struct cfs_disk_admission *d = &t->admission[i];

		for (n = 0; n < CFS_ADMISSION_MAX && is_due(d); n++) {
			struct cfs_reply *j = TAILQ_FIRST(&d->queue);

			dequeue(d, j);
			begin(d, j);
			cfs_answer_advance(j);
		}
	}
}

/* Answers whose header is queued cannot be refused. */
static void refuse_overdue(const struct cfs_transport *t, struct cfs_disk_admission *d)
{
	struct cfs_reply *j, *next;

	for (j = TAILQ_FIRST(&d->queue);
	     j && cfs_loop_ran_ms(&t->loop) - j->queued_ms >= t->conf.disk_timeout_ms; j = next) {
		next = TAILQ_NEXT(j, queue);
		if (j->out.reply)
			continue;
		dequeue(d, j);
		j->s.a.err = -EBUSY;
		cfs_answer_advance(j);
	}
}

bool cfs_admission_tick(struct cfs_transport *t)
{
	bool busy = false;
	unsigned i;

	for (i = 0; i < CFS_ADMISSION_DISKS; i++) {
		struct cfs_disk_admission *d = &t->admission[i];

		refuse_overdue(t, d);
		busy |= d->taken > 0 || !TAILQ_EMPTY(&d->queue);
	}
	return busy;
}

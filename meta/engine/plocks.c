/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of POSIX locks of one owner: sorted, not overlapping, ends inclusive. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/engine/rules.h"

static bool overlap(const struct cfs_plock *a, const struct cfs_plock *b)
{
	return a->start <= b->end && b->start <= a->end;
}

const struct cfs_plock *cfs_rules_plock_conflict(const struct cfs_plock *list, size_t n,
						 const struct cfs_plock *lock)
{
	size_t i;

	if (lock->type == CFS_LOCK_NONE)
		return NULL;
	for (i = 0; i < n; i++)
		if (overlap(&list[i], lock) &&
		    (list[i].type == CFS_LOCK_WRITE || lock->type == CFS_LOCK_WRITE))
			return &list[i];
	return NULL;
}

static void append(struct cfs_plock *v, size_t *n, const struct cfs_plock *l)
{
	struct cfs_plock *prev = *n ? &v[*n - 1] : NULL;

	if (l->type == CFS_LOCK_NONE)
		return;
	if (prev && prev->type == l->type && prev->pid == l->pid && prev->end + 1 == l->start)
		prev->end = l->end;
	else
		v[(*n)++] = *l;
}

ssize_t cfs_rules_plock_apply(const struct cfs_plock *list, size_t n, const struct cfs_plock *lock,
			      struct cfs_plock **ret)
{
	/* At most two ranges are added: the lock itself, and one range split in two. */
	struct cfs_plock *v = calloc(n + 2, sizeof(*v));
	bool placed = false;
	size_t i, count = 0;

	if (!v)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		struct cfs_plock l = list[i];

		if (l.start < lock->start) {
			struct cfs_plock head = l;

			if (head.end >= lock->start)
				head.end = lock->start - 1;
			append(v, &count, &head);
		}
		if (!placed && l.end >= lock->start) {
			append(v, &count, lock);
			placed = true;
		}
		if (l.end > lock->end) {
			if (l.start <= lock->end)
				l.start = lock->end + 1;
			append(v, &count, &l);
		}
	}
	if (!placed)
		append(v, &count, lock);
	*ret = v;
	return (ssize_t)count;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of POSIX locks of one owner: sorted, not overlapping, ends inclusive; their stored form. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
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

/* ---- stored lists ---- */

#define PLOCK_BYTES 24

/* *ret is malloc'ed, also when it is empty. */
static int decode(cfs_ino_t ino, const uint8_t *p, size_t len, struct cfs_plock **ret,
		  size_t *ret_n)
{
	size_t i, n = len / PLOCK_BYTES;
	struct cfs_plock *v;

	if (len % PLOCK_BYTES) {
		cfs_err("lock record is damaged: inode=%" PRIu64 " bytes=%zu", ino, len);
		return -EIO;
	}
	v = calloc(n ? n : 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (i = 0; i < n; i++, p += PLOCK_BYTES)
		v[i] = (struct cfs_plock){
			.type = cfs_get_be32(p),
			.pid = cfs_get_be32(p + 4),
			.start = cfs_get_be64(p + 8),
			.end = cfs_get_be64(p + 16),
		};
	*ret = v;
	*ret_n = n;
	return 0;
}

int cfs_plocks_see(struct cfs_plock_search *s, uint64_t sid, uint64_t owner, const void *list,
		   size_t len)
{
	const struct cfs_plock *l;
	struct cfs_plock *v;
	size_t n;
	int r = decode(s->ino, list, len, &v, &n);

	if (r)
		return r;
	if (sid == s->sid && owner == s->owner) {
		free(s->mine);
		s->mine = v;
		s->n_mine = n;
		return 0;
	}
	l = cfs_rules_plock_conflict(v, n, &s->lock);
	if (l && (!s->conflict || l->start < s->found.start)) {
		s->conflict = true;
		s->found = *l;
		s->found_sid = sid;
		s->found_owner = owner;
	}
	free(v);
	return 0;
}

ssize_t cfs_plocks_change(const struct cfs_plock_search *s, uint8_t **ret)
{
	struct cfs_plock *v;
	ssize_t i, n = cfs_rules_plock_apply(s->mine, s->n_mine, &s->lock, &v);
	uint8_t *out;

	if (n < 0)
		return n;
	out = *ret = malloc((size_t)n * PLOCK_BYTES + 1);
	for (i = 0; i < n && *ret; i++, out += PLOCK_BYTES) {
		cfs_put_be32(out, v[i].type);
		cfs_put_be32(out + 4, v[i].pid);
		cfs_put_be64(out + 8, v[i].start);
		cfs_put_be64(out + 16, v[i].end);
	}
	free(v);
	return *ret ? n * PLOCK_BYTES : -ENOMEM;
}

void cfs_plocks_answer(const struct cfs_plock_search *s, struct cfs_plock *lock, uint64_t *ret_sid,
		       uint64_t *ret_owner)
{
	if (!s->conflict) {
		lock->type = CFS_LOCK_NONE;
		return;
	}
	*lock = s->found;
	*ret_sid = s->found_sid;
	*ret_owner = s->found_owner;
}

char cfs_lock_letter(unsigned type)
{
	return type == CFS_LOCK_READ ? 'R' : type == CFS_LOCK_WRITE ? 'W' : 'U';
}

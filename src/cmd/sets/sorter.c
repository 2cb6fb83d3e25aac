/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/sorter.h"
#include "base/array.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cmd/sets/tempfile.h"

#define RUN_BUFFER (64u << 10)
#define FIRST_ROOM 1024

/* A sorted run: a range of the file, or (the only one) of memory. */
struct run {
	uint64_t off, end; /* the rest that is not in the buffer */
	uint8_t *buf;
	size_t at, len; /* bytes of buf */
};

struct sorter {
	size_t size;  /* of a record */
	size_t limit; /* records in memory */
	int (*compare)(const void *a, const void *b);
	uint8_t *v;
	size_t n, cap;
	int fd;
	uint64_t written;
	struct run *runs;
	size_t n_runs;
	size_t *heap; /* runs with records left, ordered by their smallest record */
	size_t n_heap;
};

int sorter_compare_u64(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return CFS_COMPARE(*x, *y);
}

int sorter_create(size_t record_size, int (*compare)(const void *a, const void *b), size_t memory,
		  struct sorter **ret)
{
	struct sorter *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->size = record_size;
	s->compare = compare;
	s->limit = CFS_MAX((memory ? memory : SORTER_MEMORY) / record_size, (size_t)2);
	s->fd = -1;
	*ret = s;
	return 0;
}

void sorter_destroy(struct sorter *s)
{
	size_t i;

	if (!s)
		return;
	for (i = 0; i < s->n_runs; i++)
		free(s->runs[i].buf);
	free(s->runs);
	free(s->heap);
	free(s->v);
	if (s->fd >= 0)
		close(s->fd);
	free(s);
}

static int add_run(struct sorter *s, uint64_t off, uint64_t end)
{
	struct run *v = reallocarray(s->runs, s->n_runs + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	s->runs = v;
	v[s->n_runs++] = (struct run){.off = off, .end = end};
	return 0;
}

/* Turns the records in memory into a run of the file. */
static int spill(struct sorter *s)
{
	size_t len = s->n * s->size;
	int r;

	if (s->fd < 0)
		s->fd = temp_open();
	if (s->fd < 0)
		return s->fd;
	qsort(s->v, s->n, s->size, s->compare);
	r = temp_write(s->fd, s->v, len, s->written);
	if (r < 0)
		return r;
	s->n = 0;
	s->written += len;
	return add_run(s, s->written - len, s->written);
}

int sorter_add(struct sorter *s, const void *record)
{
	size_t cap;
	int r;

	if (s->n == s->limit) {
		r = spill(s);
		if (r < 0)
			return r;
	}
	if (s->n == s->cap) {
		cap = CFS_MIN(CFS_MAX(2 * s->cap, (size_t)FIRST_ROOM), s->limit);
		r = cfs_array_reserve(&s->v, cap, &s->cap, s->size);
		if (r < 0)
			return r;
	}
	memcpy(s->v + s->n++ * s->size, record, s->size);
	return 0;
}

/* Returns 1 when the run has a current record, 0 at its end. */
static int fill(struct sorter *s, struct run *run)
{
	size_t room = RUN_BUFFER / s->size * s->size, len;
	int r;

	if (run->at < run->len)
		return 1;
	if (run->off == run->end)
		return 0;
	if (!run->buf)
		run->buf = malloc(room);
	if (!run->buf)
		return -ENOMEM;
	run->at = run->len = 0;
	len = (size_t)CFS_MIN((uint64_t)room, run->end - run->off);
	r = temp_read(s->fd, run->buf, len, run->off);
	if (r < 0)
		return r;
	run->len = len;
	run->off += len;
	return 1;
}

static const void *head(const struct sorter *s, size_t i)
{
	const struct run *run = &s->runs[s->heap[i]];

	return run->buf + run->at;
}

static void sift_down(struct sorter *s, size_t i)
{
	for (;;) {
		size_t least = i, child = 2 * i + 1, tmp;

		if (child < s->n_heap && s->compare(head(s, child), head(s, least)) < 0)
			least = child;
		child++;
		if (child < s->n_heap && s->compare(head(s, child), head(s, least)) < 0)
			least = child;
		if (least == i)
			return;
		tmp = s->heap[i];
		s->heap[i] = s->heap[least];
		s->heap[least] = tmp;
		i = least;
	}
}

int sorter_sort(struct sorter *s)
{
	size_t i;
	int r;

	if (!s->n_runs) {
		if (s->n)
			qsort(s->v, s->n, s->size, s->compare);
		r = add_run(s, 0, 0);
		if (r < 0)
			return r;
		s->runs[0].buf = s->v;
		s->runs[0].len = s->n * s->size;
		s->v = NULL;
	} else {
		r = s->n ? spill(s) : 0;
		if (r < 0)
			return r;
		free(s->v);
		s->v = NULL;
	}
	s->heap = calloc(s->n_runs, sizeof(*s->heap));
	if (!s->heap)
		return -ENOMEM;
	for (i = 0; i < s->n_runs; i++) {
		r = fill(s, &s->runs[i]);
		if (r < 0)
			return r;
		if (r)
			s->heap[s->n_heap++] = i;
	}
	for (i = s->n_heap / 2; i-- > 0;)
		sift_down(s, i);
	return 0;
}

int sorter_next(struct sorter *s, void *ret)
{
	struct run *run;
	int r;

	if (!s->n_heap)
		return 0;
	run = &s->runs[s->heap[0]];
	memcpy(ret, run->buf + run->at, s->size);
	run->at += s->size;
	r = fill(s, run);
	if (r < 0)
		return r;
	if (!r)
		s->heap[0] = s->heap[--s->n_heap];
	sift_down(s, 0);
	return 1;
}

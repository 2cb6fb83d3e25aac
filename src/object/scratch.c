/* SPDX-License-Identifier: Apache-2.0 */
#include "scratch.h"

#include <errno.h>
#include <stdlib.h>

#include "base/unwanted.h"

/* Rounds sizes up, so that buffers can be reused for similar ones. */
#define STEP ((size_t)64 << 10)

int cfs_scratch_init(struct cfs_scratch *s)
{
	*s = (struct cfs_scratch){0};
	pthread_mutex_init(&s->lock, NULL);
	return cfs_cond_init(&s->changed);
}

/* With the lock held: takes the kept buffers until `kept` would fit, for the caller to free. */
static struct cfs_scratch_buf *drop_kept(struct cfs_scratch *s, size_t max_kept)
{
	struct cfs_scratch_buf *drop = NULL, *buf;

	while (s->free && s->kept > max_kept) {
		buf = s->free;
		s->free = buf->next;
		s->kept -= buf->size;
		buf->next = drop;
		drop = buf;
	}
	return drop;
}

static void free_list(struct cfs_scratch_buf *buf)
{
	struct cfs_scratch_buf *next;

	for (; buf; buf = next) {
		next = buf->next;
		free(buf);
	}
}

void cfs_scratch_fini(struct cfs_scratch *s)
{
	free_list(drop_kept(s, 0));
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
}

/* With the lock held: takes a kept buffer that is large enough and not much too large. */
static struct cfs_scratch_buf *take_kept(struct cfs_scratch *s, size_t size)
{
	struct cfs_scratch_buf **at, *buf;

	for (at = &s->free; (buf = *at) != NULL; at = &buf->next) {
		if (buf->size >= size && buf->size / 2 <= size) {
			*at = buf->next;
			s->kept -= buf->size;
			return buf;
		}
	}
	return NULL;
}

int cfs_scratch_get(struct cfs_scratch *s, size_t size, cfs_deadline_t deadline,
		    struct cfs_scratch_buf **ret)
{
	struct cfs_scratch_buf *buf = NULL, *drop = NULL;
	int r = 0;

	size = (size + STEP - 1) / STEP * STEP;
	pthread_mutex_lock(&s->lock);
	while (s->used && s->used + size > CFS_SCRATCH_MAX && r == 0)
		r = cfs_unwanted_cond_wait(&s->changed, &s->lock, deadline);
	if (r == 0) {
		buf = take_kept(s, size);
		s->used += buf ? buf->size : size;
		drop = drop_kept(s, s->used < CFS_SCRATCH_MAX ? CFS_SCRATCH_MAX - s->used : 0);
	}
	pthread_mutex_unlock(&s->lock);
	free_list(drop);
	if (r < 0)
		return r;

	if (!buf) {
		buf = malloc(sizeof(*buf) + size);
		if (!buf) {
			pthread_mutex_lock(&s->lock);
			s->used -= size;
			pthread_cond_broadcast(&s->changed);
			pthread_mutex_unlock(&s->lock);
			return -ENOMEM;
		}
		buf->size = size;
	}
	*ret = buf;
	return 0;
}

void cfs_scratch_put(struct cfs_scratch *s, struct cfs_scratch_buf *buf)
{
	if (!buf)
		return;
	pthread_mutex_lock(&s->lock);
	s->used -= buf->size;
	if (s->used + s->kept + buf->size <= CFS_SCRATCH_MAX) {
		buf->next = s->free;
		s->free = buf;
		s->kept += buf->size;
		buf = NULL;
	}
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	free(buf);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .accesslog: one line per request for each open of the file. Without readers a request costs the
 * load of a flag. A reader that is too slow loses lines, and is told how many.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "vfs-internal.h"

#define RING_SIZE   (1u << 20)
#define READERS_MAX 8
#define LINE_SIZE   1024
#define WAIT_MS	    1000

struct log_reader {
	struct log_reader *next;
	size_t head, used; /* in ring: the first unread byte, and the number of unread bytes */
	uint64_t lost;
	char ring[RING_SIZE];
};

int access_log_init(struct access_log *l)
{
	int r = cfs_cond_init(&l->more);

	if (r == 0)
		pthread_mutex_init(&l->lock, NULL);
	return r;
}

void access_log_fini(struct access_log *l)
{
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->more);
}

int access_log_open(struct access_log *l, struct log_reader **ret)
{
	struct log_reader *reader = malloc(sizeof(*reader));
	int r = 0;

	if (!reader)
		return -ENOMEM;
	reader->head = reader->used = 0;
	reader->lost = 0;
	pthread_mutex_lock(&l->lock);
	if (atomic_load(&l->n_readers) == READERS_MAX) {
		r = -EBUSY;
	} else {
		reader->next = l->readers;
		l->readers = reader;
		atomic_fetch_add(&l->n_readers, 1);
	}
	pthread_mutex_unlock(&l->lock);
	if (r < 0)
		free(reader);
	else
		*ret = reader;
	return r;
}

void access_log_close(struct access_log *l, struct log_reader *reader)
{
	struct log_reader **p;

	pthread_mutex_lock(&l->lock);
	for (p = &l->readers; *p != reader; p = &(*p)->next)
		;
	*p = reader->next;
	atomic_fetch_sub(&l->n_readers, 1);
	pthread_mutex_unlock(&l->lock);
	free(reader);
}

static bool append(struct log_reader *reader, const char *text, size_t len)
{
	size_t at = (reader->head + reader->used) % RING_SIZE;
	size_t first = CFS_MIN(len, RING_SIZE - at);

	if (len > RING_SIZE - reader->used)
		return false;
	memcpy(reader->ring + at, text, first);
	memcpy(reader->ring, text + first, len - first);
	reader->used += len;
	return true;
}

static void append_line(struct log_reader *reader, const char *line, size_t len)
{
	char note[64];
	int n;

	if (reader->lost) {
		n = snprintf(note, sizeof(note), "# %llu lines lost\n",
			     (unsigned long long)reader->lost);
		if (len + (size_t)n > RING_SIZE - reader->used ||
		    !append(reader, note, (size_t)n)) {
			reader->lost++;
			return;
		}
		reader->lost = 0;
	}
	if (!append(reader, line, len))
		reader->lost++;
}

static size_t format_line(char line[LINE_SIZE], const struct cfs_ctx *ctx, const char *op,
			  const char *args, int result, uint64_t took_ns)
{
	struct timespec now = cfs_wall();
	struct tm tm;
	size_t n, i;
	int len;

	localtime_r(&now.tv_sec, &tm);
	n = strftime(line, LINE_SIZE, "%Y.%m.%d %H:%M:%S", &tm);
	len = snprintf(line + n, LINE_SIZE - n,
		       ".%06ld [uid:%u,gid:%u,pid:%d] %s (%s): %s <%llu.%06llu>",
		       now.tv_nsec / 1000, ctx->uid, ctx->gid, (int)ctx->pid, op, args,
		       result < 0 ? strerrordesc_np(-result) : "OK",
		       (unsigned long long)(took_ns / 1000000000),
		       (unsigned long long)(took_ns / 1000 % 1000000));
	n = CFS_MIN(n + (size_t)len, (size_t)LINE_SIZE - 1);
	/* A name may contain a line feed, which must not begin another line. */
	for (i = 0; i < n; i++) {
		if ((unsigned char)line[i] < ' ')
			line[i] = '?';
	}
	line[n] = '\n';
	return n + 1;
}

void cfs_vfs_log(struct cfs_vfs *v, const struct cfs_ctx *ctx, const char *op, const char *args,
		 int result, uint64_t took_ns)
{
	struct access_log *l = &v->log;
	struct log_reader *reader;
	char line[LINE_SIZE];
	size_t len = format_line(line, ctx, op, args, result, took_ns);
	CFS_LOCK_GUARD(&l->lock);

	for (reader = l->readers; reader; reader = reader->next)
		append_line(reader, line, len);
	pthread_cond_broadcast(&l->more);
}

bool cfs_vfs_logging(const struct cfs_vfs *v)
{
	return atomic_load_explicit(&v->log.n_readers, memory_order_relaxed) != 0;
}

size_t access_log_read(struct access_log *l, struct log_reader *reader, cfs_deadline_t deadline,
		       char *buf, size_t size)
{
	size_t n, first;
	int r = 0;

	deadline = cfs_deadline_min(deadline, cfs_deadline_in(WAIT_MS));
	pthread_mutex_lock(&l->lock);
	while (!reader->used && r == 0)
		r = cfs_cond_wait(&l->more, &l->lock, deadline);
	n = CFS_MIN(size, reader->used);
	first = CFS_MIN(n, RING_SIZE - reader->head);
	memcpy(buf, reader->ring + reader->head, first);
	memcpy(buf + first, reader->ring, n - first);
	reader->head = (reader->head + n) % RING_SIZE;
	reader->used -= n;
	pthread_mutex_unlock(&l->lock);
	if (n || size < 2)
		return n;
	/* cat(1) and tail(1) would take an empty read for the end of the file. */
	memcpy(buf, "#\n", 2);
	return 2;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read sessions. A session is a stream of reads that goes up through the file. The kernel's own
 * read-ahead sends such requests out of order, so a read belongs to a session when it is near its
 * end. The distance that the session has covered is compared with the bytes that were read of it:
 * random reads that happen to be close together leave gaps, and are no stream.
 *
 * The window starts at a block, or a quarter of the first one of a file. It doubles each time half
 * of it was read, up to max_readahead, and shrinks while fetches and dirty pages fill the pool. So
 * a stream of n bytes costs less than 3 n, and soon has many blocks in flight.
 *
 * Large random reads arrive as a few requests each, and look like many short streams. So read-ahead
 * is judged by its use over all sessions of a file. While more of it is left unread than was read,
 * and more than TRUST_BLOCKS, a window is opened only for a session that has covered that distance
 * itself.
 */
#include "data-internal.h"

#define WINDOW_MIN    CFS_PAGE_LARGE
#define SLACK_MAX     ((uint64_t)8 << 20) /* several requests of the kernel */
#define STREAM_MIN    3			  /* reads */
#define GAP_READS     4			  /* read lengths; a shorter way says nothing about gaps */
#define MEMORY	      ((uint64_t)16 << 20)
#define TRUST_BLOCKS  4
#define JUDGED_BLOCKS 16 /* bytes of use and waste that count; older ones fade */

static bool belongs(const struct cfs_session_read *s, uint64_t stream, uint64_t off, uint64_t end)
{
	uint64_t slack = CFS_MIN(s->window, SLACK_MAX) + (end - off);

	return s->used && s->stream == stream && off <= s->end + slack && end + slack >= s->end;
}

static struct cfs_session_read *session_find(struct cfs_file *f, uint64_t stream, uint64_t off,
					     uint64_t end)
{
	unsigned i;

	for (i = 0; i < CFS_FILE_SESSIONS; i++) {
		if (belongs(&f->sessions[i], stream, off, end))
			return &f->sessions[i];
	}
	return NULL;
}

static uint64_t unread(const struct cfs_session_read *s)
{
	return s->used && s->ahead > s->end ? s->ahead - s->end : 0;
}

static void note_use(struct cfs_file *f, uint64_t used, uint64_t wasted)
{
	struct cfs_ahead_use *u = &f->ahead_use;

	u->used += used;
	u->wasted += wasted;
	if (u->used + u->wasted > (uint64_t)JUDGED_BLOCKS * f->data->conf.block_size) {
		u->used /= 2;
		u->wasted /= 2;
	}
}

static bool is_trusted(const struct cfs_file *f, const struct cfs_session_read *s)
{
	uint64_t wasted = f->ahead_use.wasted;
	uint64_t trust = (uint64_t)TRUST_BLOCKS * f->data->conf.block_size;
	unsigned i;

	if (s->sequential >= trust)
		return true;
	for (i = 0; i < CFS_FILE_SESSIONS; i++)
		wasted += unread(&f->sessions[i]);
	return wasted <= f->ahead_use.used + trust;
}

static void session_end(struct cfs_file *f, struct cfs_session_read *s)
{
	note_use(f, 0, unread(s));
	*s = (struct cfs_session_read){0};
}

/* Random reads share one slot in turn, so that they do not evict the streams. */
static struct cfs_session_read *session_new(struct cfs_file *f, uint64_t stream, uint64_t off)
{
	struct cfs_session_read *s = &f->sessions[0], *t;
	unsigned i;

	for (i = 1; i < CFS_FILE_SESSIONS; i++) {
		t = &f->sessions[i];
		if ((t->window == 0) == (s->window == 0) ? t->used < s->used : t->window == 0)
			s = t;
	}
	session_end(f, s);
	*s = (struct cfs_session_read){.stream = stream, .end = off, .ahead = off};
	/* A reader that begins at the start of the file usually goes on. */
	if (off == 0)
		s->window = CFS_MIN(CFS_MAX(f->data->conf.block_size / 4, WINDOW_MIN),
				    f->data->conf.max_readahead);
	return s;
}

/* The share of read-ahead: half of the pool less the bytes in flight. */
static uint64_t room(struct cfs_data *d)
{
	struct cfs_pool_stats st;
	uint64_t busy;

	cfs_pool_stats(d->conf.pool, &st);
	busy = st.used[CFS_USE_READ] + st.used[CFS_USE_WRITE] + st.used[CFS_USE_PEER];
	return busy < st.budget / 2 ? st.budget / 2 - busy : 0;
}

/* Records a read, and judges what kind of session it belongs to. */
static void advance(struct cfs_file *f, struct cfs_session_read *s, uint64_t off, uint64_t end)
{
	uint64_t len = end - off, step = end > s->end ? end - s->end : 0;
	uint64_t window_max = f->data->conf.max_readahead;
	uint32_t block = f->data->conf.block_size;

	note_use(f, CFS_MIN(step, unread(s)), 0);
	s->sequential += step;
	s->reads++;
	s->got += len;
	s->way += step;
	s->run += step;
	s->end += step;
	if (s->way > MEMORY) {
		s->way /= 2;
		s->got /= 2;
	}
	if (s->way >= GAP_READS * len && s->got < s->way / 2) {
		s->window = s->run = 0;
		s->reads = 1;
		s->got = s->way = len;
		s->sequential = 0;
	} else if (off > 0 && s->reads >= STREAM_MIN && s->run >= s->window / 2 &&
		   s->got >= s->way / 2 && step && (s->window || is_trusted(f, s))) {
		s->window = CFS_MIN(CFS_MAX(2 * s->window, block), window_max);
		s->run = 0;
	}
}

bool cfs_session_advance(struct cfs_file *f, uint64_t stream, uint64_t off, uint64_t end,
			 struct cfs_span *ret, bool *ret_random)
{
	struct cfs_data *d = f->data;
	struct cfs_session_read *s;
	uint64_t target, align, space;

	*ret_random = true;
	if (!d->conf.max_readahead)
		return false;
	s = session_find(f, stream, off, end);
	if (!s)
		s = session_new(f, stream, off);
	s->used = ++f->clock;
	advance(f, s, off, end);
	*ret_random = !s->window;
	if (!s->window || s->end >= f->length)
		return false;
	s->ahead = CFS_MAX(s->ahead, s->end);
	target = s->end + s->window;
	if (target < s->ahead + s->window / 2)
		return false;
	space = room(d);
	if (space < s->window) {
		s->window = CFS_MAX(s->window / 2, WINDOW_MIN);
		target = s->end + CFS_MIN(s->window, space);
	}
	align = s->window >= d->conf.block_size ? d->conf.block_size : CFS_PAGE_LARGE;
	target = CFS_MIN((target + align - 1) & ~(align - 1), f->length);
	if (target <= s->ahead)
		return false;
	*ret = (struct cfs_span){.off = s->ahead, .end = target};
	s->ahead = target;
	return true;
}

void cfs_session_withdraw(struct cfs_file *f, uint64_t stream, uint64_t end, uint64_t reached)
{
	unsigned i;

	for (i = 0; i < CFS_FILE_SESSIONS; i++) {
		struct cfs_session_read *s = &f->sessions[i];

		if (s->used && s->stream == stream && s->ahead == end)
			s->ahead = reached;
	}
}

void cfs_file_end_stream(struct cfs_file *f, uint64_t stream)
{
	bool any = false;
	unsigned i;

	pthread_mutex_lock(&f->lock);
	for (i = 0; i < CFS_FILE_SESSIONS; i++) {
		if (!f->sessions[i].used || f->sessions[i].stream != stream)
			continue;
		any = true;
		session_end(f, &f->sessions[i]);
	}
	pthread_mutex_unlock(&f->lock);
	if (any)
		cfs_store_cancel(f->data->conf.store, cfs_session_owner(f, stream));
}

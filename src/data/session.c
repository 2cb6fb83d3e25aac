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
 * Large random reads arrive as a few requests each, and look like the beginnings of streams. So the
 * last sessions of a file that have ended tell how far the others will go: of those that went as
 * far as a session has, half went on to a certain length. There its read-ahead ends, and so does
 * the fetch of a read that misses. A session that outlives all of them is read ahead as far as its
 * window. Where too few have ended, the first blocks of a session cost at most twice what is read;
 * a session that begins at the start of the file is taken to continue.
 *
 * A session has ended when its handle is closed, or after so many reads of others. That number
 * grows when such a session continues after all, as in a program that merges many runs. It shrinks
 * with each session that does not. Short sessions say nothing about large ones and are not kept.
 */
#include "data-internal.h"

#define WINDOW_MIN   CFS_PAGE_LARGE
#define SLACK_MAX    ((uint64_t)8 << 20) /* several requests of the kernel */
#define STREAM_MIN   3			 /* reads */
#define GAP_READS    4			 /* read lengths; a shorter way says nothing about gaps */
#define MEMORY	     ((uint64_t)16 << 20)
#define LARGE_PARTS  4 /* of a block: a session that is shorter is no large read */
#define JUDGED_MIN   2 /* sessions; with fewer their length says nothing */
#define SHORT_BLOCKS 2 /* a longer session is taken to continue, although few have ended */
#define PAUSE_MIN    8 /* reads of other sessions; a shorter pause does not end one */
#define PAUSE_MAX    4096

/* Whether others were read for so long that it has probably ended. */
static bool is_over(const struct cfs_file *f, const struct cfs_session_read *s)
{
	return s->used && f->clock - s->used >= f->pause;
}

static bool continues(uint64_t session_end, uint64_t off, uint64_t end)
{
	return off >= session_end && off - session_end <= end - off;
}

static bool belongs(const struct cfs_file *f, const struct cfs_session_read *s, uint64_t stream,
		    uint64_t off, uint64_t end)
{
	uint64_t slack = CFS_MIN(s->window, SLACK_MAX) + (end - off);

	if (!s->used || s->stream != stream)
		return false;
	if (is_over(f, s))
		return continues(s->end, off, end);
	return off <= s->end + slack && end + slack >= s->end;
}

static bool is_large(const struct cfs_file *f, const struct cfs_session_read *s)
{
	return (s->end - s->start) * LARGE_PARTS >= f->data->conf.block_size;
}

/* A session continues that was taken for ended: sessions of this file make longer pauses. */
static void note_resumed(struct cfs_file *f)
{
	f->pause = CFS_MIN(2 * f->pause, PAUSE_MAX);
}

static void session_end(struct cfs_file *f, struct cfs_session_read *s)
{
	if (is_large(f, s)) {
		f->past[f->next_past] = (struct cfs_session_past){s->start, s->end};
		f->next_past = (f->next_past + 1) % CFS_FILE_PAST;
		f->pause = CFS_MAX(f->pause * 3 / 4, PAUSE_MIN);
	}
	*s = (struct cfs_session_read){0};
}

static struct cfs_session_read *session_find(struct cfs_file *f, uint64_t stream, uint64_t off,
					     uint64_t end)
{
	unsigned i;

	f->pause = CFS_MAX(f->pause, PAUSE_MIN);
	for (i = 0; i < CFS_FILE_SESSIONS; i++) {
		struct cfs_session_read *s = &f->sessions[i];

		if (!belongs(f, s, stream, off, end))
			continue;
		if (!is_over(f, s))
			return s;
		note_resumed(f);
		if (s->end - s->start >= MEMORY)
			return s;
		*s = (struct cfs_session_read){0};
		return NULL;
	}
	for (i = 0; i < CFS_FILE_PAST; i++) {
		if (!f->past[i].end || !continues(f->past[i].end, off, end))
			continue;
		note_resumed(f);
		f->past[i].end = 0;
	}
	return NULL;
}

struct lengths {
	uint64_t v[CFS_FILE_PAST + CFS_FILE_SESSIONS]; /* sorted */
	unsigned n;
};

static void add_length(struct lengths *l, uint64_t len, uint64_t least)
{
	unsigned at;

	if (len < least)
		return;
	for (at = l->n++; at > 0 && l->v[at - 1] > len; at--)
		l->v[at] = l->v[at - 1];
	l->v[at] = len;
}

/* Where half of the ended sessions have ended that went as far as this one; 0: not known. */
static uint64_t likely_end(const struct cfs_file *f, const struct cfs_session_read *s)
{
	uint64_t gone = s->end - s->start;
	struct lengths l = {.n = 0};
	unsigned i;

	if (!is_large(f, s))
		return 0;
	for (i = 0; i < CFS_FILE_PAST; i++) {
		if (f->past[i].end)
			add_length(&l, f->past[i].end - f->past[i].start, gone);
	}
	for (i = 0; i < CFS_FILE_SESSIONS; i++) {
		if (is_over(f, &f->sessions[i]))
			add_length(&l, f->sessions[i].end - f->sessions[i].start, gone);
	}
	if (l.n >= JUDGED_MIN)
		return s->start + l.v[l.n / 2];
	return s->start > 0 && gone < SHORT_BLOCKS * f->data->conf.block_size ? s->end + gone : 0;
}

static bool is_stream(const struct cfs_file *f, const struct cfs_session_read *s)
{
	return s->window > 0 && !is_over(f, s);
}

/* Random reads share one slot in turn, so that they do not evict the streams. */
static struct cfs_session_read *session_new(struct cfs_file *f, uint64_t stream, uint64_t off)
{
	struct cfs_session_read *s = &f->sessions[0], *t;
	unsigned i;

	for (i = 1; i < CFS_FILE_SESSIONS; i++) {
		t = &f->sessions[i];
		if (is_stream(f, t) == is_stream(f, s) ? t->used < s->used : is_stream(f, s))
			s = t;
	}
	if (is_over(f, s))
		session_end(f, s);
	*s = (struct cfs_session_read){.stream = stream, .start = off, .end = off, .ahead = off};
	/* A reader that begins at the start of the file usually reads on. */
	if (off == 0)
		s->window = CFS_MIN(CFS_MAX(f->data->conf.block_size / 4, WINDOW_MIN),
				    f->data->conf.max_readahead);
	return s;
}

/* Half of the pool less the bytes in flight. */
uint64_t cfs_session_room(struct cfs_data *d)
{
	struct cfs_pool_stats st;
	uint64_t busy;

	cfs_pool_stats(d->conf.pool, &st);
	busy = st.used[CFS_USE_READ] + st.used[CFS_USE_WRITE] + st.used[CFS_USE_PEER];
	return busy < st.budget / 2 ? st.budget / 2 - busy : 0;
}

/* Records a read, and whether its session is sequential. */
static void advance(struct cfs_file *f, struct cfs_session_read *s, uint64_t off, uint64_t end)
{
	uint64_t len = end - off, step = end > s->end ? end - s->end : 0;
	uint64_t window_max = f->data->conf.max_readahead;
	uint32_t block = f->data->conf.block_size;

	s->start = CFS_MIN(s->start, off);
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
		s->start = off;
	} else if (off > 0 && s->reads >= STREAM_MIN && s->run >= s->window / 2 &&
		   s->got >= s->way / 2 && step) {
		s->window = CFS_MIN(CFS_MAX(2 * s->window, block), window_max);
		s->run = 0;
	}
}

/* Plans the read-ahead of a session, up to `most`. */
static void plan_ahead(struct cfs_file *f, struct cfs_session_read *s, uint64_t most,
		       struct cfs_forecast *ret)
{
	struct cfs_data *d = f->data;
	uint64_t target = s->end + s->window, align, space;

	s->ahead = CFS_MAX(s->ahead, s->end);
	if (target < s->ahead + s->window / 2)
		return;
	space = cfs_session_room(d);
	if (space < s->window) {
		s->window = CFS_MAX(s->window / 2, WINDOW_MIN);
		target = s->end + CFS_MIN(s->window, space);
	}
	align = s->window >= d->conf.block_size ? d->conf.block_size : CFS_PAGE_LARGE;
	target = CFS_MIN((target + align - 1) & ~(align - 1), most);
	if (target <= s->ahead)
		return;
	ret->off = s->ahead;
	ret->end = s->ahead = target;
}

void cfs_session_advance(struct cfs_file *f, uint64_t stream, uint64_t off, uint64_t end,
			 bool repeated, struct cfs_forecast *ret)
{
	struct cfs_session_read *s;

	*ret = (struct cfs_forecast){.random = true};
	if (!f->data->conf.max_readahead)
		return;
	s = session_find(f, stream, off, end);
	if (!s && repeated)
		return;
	if (!s)
		s = session_new(f, stream, off);
	if (!repeated) {
		s->used = ++f->clock;
		advance(f, s, off, end);
	}
	ret->random = !s->window;
	ret->likely_end = likely_end(f, s);
	if (!repeated && s->window && s->end < f->length)
		plan_ahead(f, s, ret->likely_end ? CFS_MIN(ret->likely_end, f->length) : f->length,
			   ret);
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

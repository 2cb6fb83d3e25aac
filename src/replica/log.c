/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "replica-internal.h"

#define LOG_HEADER   32
#define FRAME_HEADER 24
#define MAGIC	     0x377f0682u /* bit 0: checksums are of big-endian integers */
#define READ_BYTES   ((size_t)256 << 10)
/* Pages of an entry, in bytes, at which it takes no more commits. */
#define ENTRY_SOFT ((size_t)4 << 20)
#define FULL_MS	   1000

/* ---- connections ---- */

static int to_errno(sqlite3 *handle, int rc)
{
	switch (rc & 0xff) {
	case SQLITE_OK:
		return 0;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
	case SQLITE_PROTOCOL:
		return -EAGAIN;
	case SQLITE_NOMEM:
		return -ENOMEM;
	}
	cfs_err("replica: the database cannot be read: code=%d error=%s", rc,
		handle ? sqlite3_errmsg(handle) : sqlite3_errstr(rc));
	return -EIO;
}

static int run(sqlite3 *handle, const char *text)
{
	return to_errno(handle, sqlite3_exec(handle, text, NULL, NULL, NULL));
}

static int open_handle(const char *path, sqlite3 **ret)
{
	int rc = sqlite3_open_v2(path, ret, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);

	if (rc)
		return to_errno(*ret, rc);
	sqlite3_extended_result_codes(*ret, 1);
	/* The log stays when the last connection closes: the next process continues with it. */
	sqlite3_db_config(*ret, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	sqlite3_wal_autocheckpoint(*ret, 0);
	return run(*ret, "PRAGMA synchronous=NORMAL; PRAGMA cache_size=-64");
}

/* Begins a read transaction; its first statement fixes the state that it sees. */
static int begin(sqlite3 *handle)
{
	int r = run(handle, "BEGIN");

	if (!r)
		r = run(handle, "SELECT 1 FROM sqlite_master LIMIT 1");
	if (r && !sqlite3_get_autocommit(handle))
		run(handle, "ROLLBACK");
	return r;
}

static void end(sqlite3 *handle)
{
	if (!sqlite3_get_autocommit(handle))
		run(handle, "ROLLBACK");
}

/* SQLite's own descriptor of the database: closing another one would drop SQLite's locks. */
static sqlite3_file *file_of(sqlite3 *handle)
{
	sqlite3_file *f = NULL;

	sqlite3_file_control(handle, "main", SQLITE_FCNTL_FILE_POINTER, &f);
	return f && f->pMethods ? f : NULL;
}

static int read_page_size(sqlite3 *handle, uint32_t *ret)
{
	sqlite3_file *f = file_of(handle);
	uint8_t head[100];
	uint32_t n;

	if (!f || f->pMethods->xRead(f, head, sizeof(head), 0))
		return -EIO;
	n = cfs_get_be16(head + 16);
	*ret = n == 1 ? 65536 : n;
	return n ? 0 : -EIO;
}

int log_open(const char *path, struct log *ret, char err[256])
{
	struct log l = {.held = -1, .path = strdup(path)};
	int r = 0;

	if (!l.path || asprintf(&l.log_path, "%s-wal", path) < 0) {
		l.log_path = NULL;
		r = -ENOMEM;
	}
	if (!r)
		r = open_handle(path, &l.reader[0]);
	if (!r)
		r = open_handle(path, &l.reader[1]);
	if (!r)
		r = open_handle(path, &l.writer);
	if (!r)
		r = log_hold(&l);
	if (!r)
		r = read_page_size(l.reader[l.held], &l.page_size);
	log_release(&l);
	if (r) {
		snprintf(err, 256, "%.150s cannot be opened for replication: %s", path,
			 strerror(-r));
		log_close(&l);
		return r;
	}
	*ret = l;
	return 0;
}

void log_close(struct log *l)
{
	log_release(l);
	sqlite3_close(l->reader[0]);
	sqlite3_close(l->reader[1]);
	sqlite3_close(l->writer);
	free(l->path);
	free(l->log_path);
}

int log_hold(struct log *l)
{
	int next = l->held == 0 ? 1 : 0, r;

	r = begin(l->reader[next]);
	if (r)
		return r;
	if (l->held >= 0)
		end(l->reader[l->held]);
	l->held = next;
	return 0;
}

void log_release(struct log *l)
{
	if (l->held >= 0)
		end(l->reader[l->held]);
	l->held = -1;
}

/* ---- reading frames ---- */

struct scan {
	int fd;
	uint32_t page_size;
	bool big; /* the integers that checksums add up are big-endian */
	struct log_place at;
	uint8_t *buf;
	uint32_t first, n; /* frames in buf */
};

static off_t offset_of(uint32_t page_size, uint32_t frame)
{
	return LOG_HEADER + (off_t)frame * (FRAME_HEADER + page_size);
}

static void add_up(bool big, const uint8_t *p, size_t len, uint32_t sum[2])
{
	uint32_t a = sum[0], b = sum[1], x[2];
	size_t i;

	for (i = 0; i < len; i += 8) {
		memcpy(x, p + i, 8);
		a += (big ? be32toh(x[0]) : le32toh(x[0])) + b;
		b += (big ? be32toh(x[1]) : le32toh(x[1])) + a;
	}
	sum[0] = a;
	sum[1] = b;
}

/* Opens the log and goes to its beginning. 0: there is no valid log. */
static int scan_open(const struct log *l, struct scan *ret)
{
	struct scan s = {.fd = open(l->log_path, O_RDONLY | O_CLOEXEC)};
	uint32_t sum[2] = {0, 0};
	uint8_t head[LOG_HEADER];
	ssize_t n;

	if (s.fd < 0)
		return errno == ENOENT ? 0 : -errno;
	n = pread(s.fd, head, sizeof(head), 0);
	if (n == (ssize_t)sizeof(head) && (cfs_get_be32(head) & ~1u) == MAGIC) {
		s.big = cfs_get_be32(head) & 1;
		s.page_size = cfs_get_be32(head + 8);
		s.at.salt[0] = cfs_get_be32(head + 16);
		s.at.salt[1] = cfs_get_be32(head + 20);
		add_up(s.big, head, 24, sum);
		memcpy(s.at.sum, sum, sizeof(sum));
	}
	if (!s.page_size || s.page_size != l->page_size || sum[0] != cfs_get_be32(head + 24) ||
	    sum[1] != cfs_get_be32(head + 28)) {
		close(s.fd);
		return n < 0 ? -EIO : 0;
	}
	s.buf = malloc(CFS_MAX(READ_BYTES, (size_t)FRAME_HEADER + s.page_size));
	if (!s.buf) {
		close(s.fd);
		return -ENOMEM;
	}
	*ret = s;
	return 1;
}

static void scan_close(struct scan *s)
{
	free(s->buf);
	close(s->fd);
}

/* 1: the next frame; 0: the end of the log. A frame that is being written looks like the end. */
static int scan_next(struct scan *s, const uint8_t **ret)
{
	size_t size = FRAME_HEADER + s->page_size;
	uint32_t want = s->at.frames, sum[2];
	const uint8_t *f;
	ssize_t n;

	if (want < s->first || want >= s->first + s->n) {
		n = pread(s->fd, s->buf, CFS_MAX(READ_BYTES / size, (size_t)1) * size,
			  offset_of(s->page_size, want));
		if (n < 0)
			return -errno;
		s->first = want;
		s->n = (uint32_t)((size_t)n / size);
		if (!s->n)
			return 0;
	}
	f = s->buf + (want - s->first) * size;
	memcpy(sum, s->at.sum, sizeof(sum));
	add_up(s->big, f, 8, sum);
	add_up(s->big, f + FRAME_HEADER, s->page_size, sum);
	if (cfs_get_be32(f + 8) != s->at.salt[0] || cfs_get_be32(f + 12) != s->at.salt[1] ||
	    cfs_get_be32(f + 16) != sum[0] || cfs_get_be32(f + 20) != sum[1] || !cfs_get_be32(f))
		return 0;
	memcpy(s->at.sum, sum, sizeof(sum));
	s->at.frames++;
	*ret = f;
	return 1;
}

static bool is_same_log(const struct log_place *a, const struct log_place *b)
{
	return a->salt[0] == b->salt[0] && a->salt[1] == b->salt[1];
}

static bool is_same_place(const struct log_place *a, const struct log_place *b)
{
	return is_same_log(a, b) && a->frames == b->frames && a->sum[0] == b->sum[0] &&
	       a->sum[1] == b->sum[1];
}

/* Goes to log.at. The frame before it must be the one that was taken, else -ENODATA. */
static int scan_go(struct scan *s, const struct log *l)
{
	uint8_t f[FRAME_HEADER];

	if (!is_same_log(&s->at, &l->at) || !l->at.frames)
		return l->settled ? 0 : -ENODATA;
	if (pread(s->fd, f, sizeof(f), offset_of(s->page_size, l->at.frames - 1)) !=
		    (ssize_t)sizeof(f) ||
	    cfs_get_be32(f + 8) != l->at.salt[0] || cfs_get_be32(f + 12) != l->at.salt[1] ||
	    cfs_get_be32(f + 16) != l->at.sum[0] || cfs_get_be32(f + 20) != l->at.sum[1])
		return -ENODATA;
	s->at = l->at;
	return 0;
}

int log_seek(struct log *l, const struct log_place *place)
{
	struct log_place commit = {0};
	const uint8_t *f = NULL;
	struct scan s;
	int r = scan_open(l, &s);

	l->settled = false;
	if (r <= 0) {
		if (!r && !place)
			l->at = commit;
		l->settled = !r && !place;
		return r ? r : place ? -ENODATA : 0;
	}
	commit = s.at;
	while ((r = scan_next(&s, &f)) > 0) {
		if (cfs_get_be32(f + 4))
			commit = s.at;
		if (place && s.at.frames >= place->frames)
			break;
	}
	if (r >= 0 && place)
		r = place->frames && is_same_place(&commit, place) ? 0 : -ENODATA;
	if (!r)
		l->at = commit;
	l->settled = !r && !place;
	scan_close(&s);
	return r;
}

/* ---- changes ---- */

static int compare_frames(const void *a, const void *b)
{
	const struct log_frame *x = a, *y = b;

	if (x->page != y->page)
		return x->page < y->page ? -1 : 1;
	return (x->frame > y->frame) - (x->frame < y->frame);
}

/* Keeps the last frame of each page, and only pages that the database still has. */
static void coalesce(struct log_changes *c)
{
	size_t i, n = 0;

	if (c->n)
		qsort(c->v, c->n, sizeof(*c->v), compare_frames);
	for (i = 0; i < c->n; i++) {
		if (c->v[i].page > c->db_pages ||
		    (i + 1 < c->n && c->v[i + 1].page == c->v[i].page))
			continue;
		c->v[n++] = c->v[i];
	}
	c->n = n;
}

/*
 * Collects whole commits from the scan's place on, until about `soft` different pages have changed,
 * or up to frame `last`. hard: pages of one commit at most, else -EFBIG.
 */
static int collect(struct scan *s, size_t soft, size_t hard, uint32_t last, struct log_changes *c)
{
	size_t committed = 0;
	const uint8_t *f = NULL;
	bool full = false;
	int r = 0;

	while (!full && s->at.frames < last && (r = scan_next(s, &f)) > 0) {
		if (CFS_ARRAY_ROOM(c->v, c->n, c->cap) < 0)
			return -ENOMEM;
		c->v[c->n++] = (struct log_frame){cfs_get_be32(f), s->at.frames - 1};
		if (cfs_get_be32(f + 4)) {
			c->db_pages = cfs_get_be32(f + 4);
			c->end = s->at;
			if (c->n >= soft) {
				coalesce(c);
				full = c->n >= soft / 4 * 3; /* not `soft`: each round sorts all */
			}
			committed = c->n;
		} else if (c->n - committed > hard) {
			return -EFBIG;
		}
	}
	if (r < 0)
		return r;
	c->n = committed;
	c->more = r > 0;
	coalesce(c);
	return c->end.frames > 0;
}

/*
 * Sets log.settled after a scan that has reached the end. A log that begins again gets a new header
 * before its first frame: while the header is the same, the scan has seen all frames.
 */
static int settle(struct log *l, const struct scan *s)
{
	uint8_t salt[8];

	if (l->settled)
		return 0;
	if (pread(s->fd, salt, sizeof(salt), 16) != (ssize_t)sizeof(salt))
		return -EIO;
	if (cfs_get_be32(salt) != l->at.salt[0] || cfs_get_be32(salt + 4) != l->at.salt[1])
		return -ENODATA;
	l->settled = true;
	return 0;
}

int log_read(struct log *l, struct log_changes *ret)
{
	struct log_changes c = {0};
	uint32_t last = log_capacity(l);
	struct scan s;
	int r = scan_open(l, &s);

	if (!r && !l->settled)
		return -ENODATA;
	if (r <= 0)
		return r;
	r = scan_go(&s, l);
	if (!r)
		r = collect(&s, ENTRY_SOFT / s.page_size, ENTRY_MAX / (s.page_size + 4) / 2, last,
			    &c);
	if (!r)
		r = settle(l, &s);
	scan_close(&s);
	if (r > 0)
		*ret = c;
	else
		free(c.v);
	return r;
}

void log_free(struct log_changes *c)
{
	free(c->v);
	*c = (struct log_changes){0};
}

/* 1: the page of a frame; 0: the frame is of another log. */
static int read_frame(int fd, uint32_t page_size, const struct log_place *of,
		      const struct log_frame *f, uint8_t *ret)
{
	uint8_t head[FRAME_HEADER];
	off_t at = offset_of(page_size, f->frame);
	int i;

	/*
	 * A log that begins again overwrites the header first: unchanged after the page was read,
	 * it shows that the page is right.
	 */
	for (i = 0; i < 2; i++) {
		if (pread(fd, head, sizeof(head), at) != (ssize_t)sizeof(head))
			return -EIO;
		if (cfs_get_be32(head) != f->page || cfs_get_be32(head + 8) != of->salt[0] ||
		    cfs_get_be32(head + 12) != of->salt[1])
			return 0;
		if (!i && pread(fd, ret, page_size, at + FRAME_HEADER) != (ssize_t)page_size)
			return -EIO;
	}
	return 1;
}

int log_body(struct log *l, const struct log_changes *c, uint8_t **ret, size_t *ret_len)
{
	size_t one = 4 + (size_t)l->page_size, i;
	cfs_auto_close int fd = open(l->log_path, O_RDONLY | O_CLOEXEC);
	uint8_t *body;
	int r = 1;

	if (fd < 0)
		return -errno;
	body = malloc(c->n * one + 1);
	if (!body)
		return -ENOMEM;
	for (i = 0; i < c->n && r > 0; i++) {
		cfs_put_be32(body + i * one, c->v[i].page);
		r = read_frame(fd, l->page_size, &c->end, &c->v[i], body + i * one + 4);
	}
	if (r <= 0) {
		free(body);
		return r ? r : -ENODATA;
	}
	*ret = body;
	*ret_len = c->n * one;
	return 0;
}

/* ---- checkpoints ---- */

/* Moves frames into the database, without waiting. True: the database has the whole log. */
static bool checkpoint(struct log *l, int *ret_frames)
{
	sqlite3 *idle = l->reader[l->held == 0 ? 1 : 0];
	int frames = -1, moved = -2;
	int rc = sqlite3_wal_checkpoint_v2(idle, NULL, SQLITE_CHECKPOINT_PASSIVE, &frames, &moved);

	*ret_frames = CFS_MAX(frames, 0);
	return !rc && frames == moved;
}

uint32_t log_capacity(const struct log *l)
{
	struct stat st;

	if (stat(l->log_path, &st) || st.st_size <= LOG_HEADER)
		return 0;
	return (uint32_t)((uint64_t)(st.st_size - LOG_HEADER) / (FRAME_HEADER + l->page_size));
}

uint64_t log_checkpoint(struct log *l)
{
	int frames;

	checkpoint(l, &frames);
	return (uint64_t)frames * (FRAME_HEADER + l->page_size);
}

int log_restart(struct log *l, struct log_changes *ret, uint8_t **ret_body, size_t *ret_len)
{
	struct log_changes more;
	int r = run(l->writer, "BEGIN IMMEDIATE"), frames;

	*ret = (struct log_changes){0};
	*ret_body = NULL;
	*ret_len = 0;
	if (r)
		return r;
	r = log_read(l, ret);
	if (r > 0) {
		r = log_body(l, ret, ret_body, ret_len);
		if (r) {
			log_free(ret);
		} else {
			l->at = ret->end;
			r = log_read(l, &more);
			if (r > 0) {
				log_free(&more);
				r = -EAGAIN;
			}
		}
	}
	if (!r)
		r = log_hold(l);
	if (!r && checkpoint(l, &frames))
		r = log_hold(l);
	end(l->writer);
	return r;
}

int log_checkpoint_full(struct log *l)
{
	cfs_deadline_t until = cfs_deadline_in(FULL_MS);
	int r, frames;

	/* Most frames are moved while others can commit. */
	checkpoint(l, &frames);
	while ((r = run(l->writer, "BEGIN IMMEDIATE")) == -EAGAIN && !cfs_deadline_passed(until))
		cfs_backoff(0, 5, 5, until);
	if (!r && !checkpoint(l, &frames))
		r = -EAGAIN;
	end(l->writer);
	return r;
}

int cfs_replica_complete(const char *path)
{
	sqlite3 *handle = NULL;
	int rc = sqlite3_open_v2(path, &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);

	if (!rc)
		rc = sqlite3_exec(handle,
				  "PRAGMA synchronous=FULL; SELECT 1 FROM sqlite_master LIMIT 1",
				  NULL, NULL, NULL);
	if (!rc)
		rc = sqlite3_wal_checkpoint_v2(handle, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
					       NULL);
	rc = to_errno(handle, rc);
	sqlite3_close(handle);
	return rc;
}

/* ---- a view ---- */

int log_view_open(const struct log *l, struct log_view *ret)
{
	struct log_view v = {.fd = -1, .page_size = l->page_size};
	int r = open_handle(l->path, &v.reader);

	if (!r)
		r = begin(v.reader);
	if (r)
		log_view_close(&v);
	else
		*ret = v;
	return r;
}

int log_view_fix(struct log_view *v, const struct log *l)
{
	sqlite3_file *f = file_of(v->reader);
	sqlite3_int64 size = 0;
	struct scan s;
	int r = scan_open(l, &s);

	if (r < 0)
		return r;
	if (r > 0 && l->at.frames && is_same_log(&s.at, &l->at)) {
		r = collect(&s, SIZE_MAX, SIZE_MAX, l->at.frames, &v->frames);
		if (r > 0 && !is_same_place(&v->frames.end, &l->at))
			r = -ENODATA;
		if (r > 0) {
			v->fd = fcntl(s.fd, F_DUPFD_CLOEXEC, 0);
			r = v->fd < 0 ? -errno : r;
		}
		v->db_pages = v->frames.db_pages;
		scan_close(&s);
		return r > 0 ? 0 : r ? r : -ENODATA;
	}
	if (r > 0)
		scan_close(&s);
	if (!f || f->pMethods->xFileSize(f, &size) || size < v->page_size)
		return -EIO;
	v->db_pages = (uint32_t)(size / v->page_size);
	return 0;
}

static const struct log_frame *find_frame(const struct log_view *v, uint32_t page)
{
	const struct log_frame *f = v->frames.v;
	size_t low = 0, high = v->frames.n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (f[mid].page < page)
			low = mid + 1;
		else
			high = mid;
	}
	return low < v->frames.n && f[low].page == page ? &f[low] : NULL;
}

/*
 * A page whose frame was overwritten is in the database: the log begins again only when the
 * database has all its frames, and the view's transaction keeps later frames out of the database.
 */
int log_view_read(struct log_view *v, uint32_t first, uint32_t n, uint8_t *ret)
{
	sqlite3_file *f = file_of(v->reader);
	uint32_t i;
	int r;

	for (i = 0; i < n; i++) {
		const struct log_frame *frame = find_frame(v, first + i);
		uint8_t *to = ret + (size_t)i * v->page_size;

		r = frame ? read_frame(v->fd, v->page_size, &v->frames.end, frame, to) : 0;
		if (r < 0)
			return r;
		if (r > 0)
			continue;
		if (!f)
			return -EIO;
		r = f->pMethods->xRead(f, to, (int)v->page_size,
				       (sqlite3_int64)(first + i - 1) * v->page_size);
		/* SQLite never writes the lock-byte page at 1 GiB, so the file may end there. */
		if (r && r != SQLITE_IOERR_SHORT_READ)
			return -EIO;
	}
	return 0;
}

void log_view_close(struct log_view *v)
{
	if (v->reader)
		end(v->reader);
	sqlite3_close(v->reader);
	if (v->fd >= 0)
		close(v->fd);
	log_free(&v->frames);
	*v = (struct log_view){.fd = -1};
}

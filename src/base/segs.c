/* SPDX-License-Identifier: Apache-2.0 */
/* Byte strings made of pieces of pages. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "buf.h"
#include "bytes.h"

/* A whole request may be a hole; never written, so it costs address space only. */
#define ZEROS_SIZE ((uint32_t)1 << 20)
/* The largest hole in one piece, page-aligned to keep the pieces after it so. */
#define HOLE_MAX ((uint32_t)1 << 31)

void cfs_segs_init(struct cfs_segs *s)
{
	s->v = s->inline_v;
	s->n = 0;
	s->cap = CFS_SEGS_INLINE;
	s->len = 0;
}

void cfs_segs_release(struct cfs_segs *s)
{
	size_t i;

	for (i = 0; i < s->n; i++)
		cfs_page_unref(s->v[i].page);
	if (s->v != s->inline_v)
		free(s->v);
	cfs_segs_init(s);
}

static int append(struct cfs_segs *s, struct cfs_page *page, uint32_t off, uint32_t len)
{
	size_t cap = 2 * s->cap;
	struct cfs_seg *v;

	if (s->n == s->cap) {
		v = s->v == s->inline_v ? NULL : s->v;
		v = realloc(v, cap * sizeof(*v));
		if (!v)
			return -ENOMEM;
		if (s->v == s->inline_v)
			memcpy(v, s->inline_v, sizeof(s->inline_v));
		s->v = v;
		s->cap = cap;
	}
	s->v[s->n++] = (struct cfs_seg){.page = page, .off = off, .len = len};
	s->len += len;
	return 0;
}

int cfs_segs_add(struct cfs_segs *s, struct cfs_page *page, uint32_t off, uint32_t len)
{
	struct cfs_seg *last = s->n ? &s->v[s->n - 1] : NULL;

	assert(page && off <= page->size && len <= page->size - off);
	if (len && (!last || last->page != page || last->off + last->len != off))
		return append(s, page, off, len);
	if (len) {
		last->len += len;
		s->len += len;
	}
	cfs_page_unref(page);
	return 0;
}

int cfs_segs_add_zeros(struct cfs_segs *s, uint64_t len)
{
	struct cfs_seg *last = s->n ? &s->v[s->n - 1] : NULL;
	uint64_t before = s->len;
	uint32_t part;
	int r;

	if (last && !last->page) {
		part = (uint32_t)CFS_MIN(len, (uint64_t)(HOLE_MAX - last->len));
		last->len += part;
		s->len += part;
		len -= part;
	}
	while (len) {
		part = (uint32_t)CFS_MIN(len, (uint64_t)HOLE_MAX);
		r = append(s, NULL, 0, part);
		if (r < 0) {
			cfs_segs_truncate(s, before);
			return r;
		}
		len -= part;
	}
	return 0;
}

int cfs_segs_slice(struct cfs_segs *dst, const struct cfs_segs *src, uint64_t off, uint64_t len)
{
	uint64_t before = dst->len;
	const struct cfs_seg *p;
	uint32_t part;
	int r = 0;

	if (off > src->len || len > src->len - off)
		return -EINVAL;
	for (p = src->v; len; p++) {
		if (off >= p->len) {
			off -= p->len;
			continue;
		}
		part = (uint32_t)CFS_MIN(len, p->len - off);
		if (!p->page) {
			r = cfs_segs_add_zeros(dst, part);
		} else {
			r = cfs_segs_add(dst, cfs_page_ref(p->page), p->off + (uint32_t)off, part);
			if (r < 0)
				cfs_page_unref(p->page);
		}
		if (r < 0) {
			cfs_segs_truncate(dst, before);
			return r;
		}
		len -= part;
		off = 0;
	}
	return 0;
}

void cfs_segs_truncate(struct cfs_segs *s, uint64_t len)
{
	struct cfs_seg *last;

	while (s->len > len) {
		last = &s->v[s->n - 1];
		if (s->len - len < last->len) {
			last->len -= (uint32_t)(s->len - len);
			s->len = len;
			return;
		}
		s->len -= last->len;
		cfs_page_unref(last->page);
		s->n--;
	}
}

void cfs_segs_copy_out(const struct cfs_segs *s, uint64_t off, void *dst, size_t len)
{
	const struct cfs_seg *p;
	uint8_t *to = dst;
	size_t part;

	assert(off <= s->len && len <= s->len - off);
	for (p = s->v; len; p++) {
		if (off >= p->len) {
			off -= p->len;
			continue;
		}
		part = (size_t)CFS_MIN((uint64_t)len, p->len - off);
		if (p->page)
			memcpy(to, p->page->data + p->off + off, part);
		else
			memset(to, 0, part);
		to += part;
		len -= part;
		off = 0;
	}
}

static uint8_t *zeros;
static pthread_once_t zeros_once = PTHREAD_ONCE_INIT;

static void map_zeros(void)
{
	void *m = mmap(NULL, ZEROS_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		       0);

	zeros = m == MAP_FAILED ? NULL : m;
}

static size_t iov_count(const struct cfs_segs *s)
{
	size_t i, n = 0;

	for (i = 0; i < s->n; i++)
		n += s->v[i].page ? 1 : CFS_DIV_UP(s->v[i].len, ZEROS_SIZE);
	return n;
}

int cfs_segs_iov(const struct cfs_segs *s, struct iovec **ret)
{
	size_t i, n = iov_count(s);
	struct iovec *iov, *to;
	uint32_t left, part;

	pthread_once(&zeros_once, map_zeros);
	iov = malloc(CFS_MAX(n, (size_t)1) * sizeof(*iov));
	if (!iov || !zeros) {
		free(iov);
		return -ENOMEM;
	}
	to = iov;
	for (i = 0; i < s->n; i++) {
		if (s->v[i].page) {
			*to++ = (struct iovec){s->v[i].page->data + s->v[i].off, s->v[i].len};
			continue;
		}
		for (left = s->v[i].len; left; left -= part) {
			part = CFS_MIN(left, ZEROS_SIZE);
			*to++ = (struct iovec){zeros, part};
		}
	}
	*ret = iov;
	return (int)n;
}

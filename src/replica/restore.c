/* SPDX-License-Identifier: Apache-2.0 */
/* Restores a database from its replica. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "replica-internal.h"

#define LIST_MS 120000
#define GET_MS	60000

struct restore {
	const struct cfs_replica_restore *how;
	struct chain_list list;
	struct cfs_replica_state done;
	uint32_t page_size, db_pages;
	char *err;
};

static int fail(struct restore *t, int r, const char *key, const char *what)
{
	snprintf(t->err, 256, "%.140s %s%s%.60s", key, what, r == -ENODATA ? "" : ": ",
		 r == -ENODATA	 ? ""
		 : r == -EBADMSG ? "its bytes are not those stored"
				 : strerror(-r));
	return r;
}

static int fail_entry(struct restore *t, int r, uint64_t number, const char *what)
{
	char key[CHAIN_KEY];

	chain_entry_key(t->how->volume, number, key);
	return fail(t, r, key, what);
}

static int get_entry(struct restore *t, uint64_t number, struct entry *ret, uint8_t **ret_bytes)
{
	int r = chain_get_entry(t->how->objects, t->how->volume, number, cfs_deadline_in(GET_MS),
				ret, ret_bytes);

	if (!r)
		return 0;
	if (r == -ENOENT)
		return fail_entry(t, -ENODATA, number, "is missing");
	return fail_entry(t, r, number, r == -EBADMSG ? "is damaged" : "cannot be read");
}

static bool is_listed(const struct restore *t, uint64_t number)
{
	size_t low = 0, high = t->list.n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (t->list.v[mid] < number)
			low = mid + 1;
		else
			high = mid;
	}
	return low < t->list.n && t->list.v[low] == number;
}

/* ---- which entry is the last ---- */

/* An entry that cannot be read counts as later: a state before it may be there. */
static bool is_later(struct restore *t, uint64_t number, uint32_t epoch, int64_t until_ms)
{
	uint8_t *bytes;
	struct entry e;
	bool later;

	if (get_entry(t, number, &e, &bytes))
		return true;
	later = e.epoch > epoch || (e.epoch == epoch && (int64_t)e.time_ms > until_ms);
	free(bytes);
	return later;
}

/* The first entry of the list, from `low` on, that is later; else the list's length. */
static size_t find_later(struct restore *t, size_t low, uint32_t epoch, int64_t until_ms)
{
	size_t high = t->list.n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (is_later(t, t->list.v[mid], epoch, until_ms))
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/*
 * Within an epoch times never decrease. *ret_first: how many entries are before the first one that
 * is later; *ret_last: how many up to the last one that is not later. They differ when a clock was
 * set back to before the wanted time.
 */
static void find_until(struct restore *t, size_t *ret_first, size_t *ret_last)
{
	size_t at = 0, end, later;
	uint8_t *bytes;
	struct entry e;

	*ret_first = t->list.n;
	*ret_last = 0;
	/* When the first entry of an epoch cannot be read, the rest of the list counts as later. */
	while (at < t->list.n && !get_entry(t, t->list.v[at], &e, &bytes)) {
		free(bytes);
		end = find_later(t, at, e.epoch, INT64_MAX);
		later = find_later(t, at, e.epoch, t->how->until_ms);
		if (later > at)
			*ret_last = later;
		if (later < end && *ret_first == t->list.n)
			*ret_first = later;
		at = end;
	}
	if (at < t->list.n)
		*ret_first = CFS_MIN(*ret_first, at);
}

static int name_both(struct restore *t, size_t first, size_t last)
{
	snprintf(t->err, 256,
		 "a clock was set back: at that time the last entry of the replica may have been "
		 "log-%016" PRIx64 " or log-%016" PRIx64 ", name one instead of the time",
		 t->list.v[first ? first - 1 : 0], t->list.v[last - 1]);
	return -EDOM;
}

static int find_last(struct restore *t, uint64_t *ret)
{
	size_t first = t->list.n, last = t->list.n;

	if (!t->list.n) {
		snprintf(t->err, 256, "there is no replica of volume %.64s in the bucket",
			 t->how->volume);
		return -ENOENT;
	}
	if (t->how->until_entry) {
		*ret = t->how->until_entry;
		return 0;
	}
	if (t->how->until_ms != INT64_MAX)
		find_until(t, &first, &last);
	if (!last) {
		snprintf(t->err, 256, "the replica of volume %.64s does not reach back so far",
			 t->how->volume);
		return -ENOENT;
	}
	if (first != last)
		return name_both(t, first, last);
	t->err[0] = '\0';
	*ret = t->list.v[last - 1];
	return 0;
}

/* ---- pages ---- */

static int write_at(struct restore *t, const uint8_t *bytes, size_t len, uint64_t at)
{
	ssize_t n;
	int r;

	for (; len; bytes += n, len -= (size_t)n, at += (uint64_t)n) {
		n = pwrite(t->how->fd, bytes, len, (off_t)at);
		if (n > 0)
			continue;
		r = n < 0 ? -errno : -EIO;
		n = 0;
		if (r == -EINTR)
			continue;
		snprintf(t->err, 256, "the database cannot be written: %s", strerror(-r));
		return r;
	}
	return 0;
}

static void note(struct restore *t, uint64_t pages)
{
	t->done.pages += pages;
	if (t->how->progress)
		t->how->progress(t->how->arg, pages);
}

static int write_piece(struct restore *t, const struct entry *base, const uint8_t *refs, uint32_t i)
{
	uint64_t at = (uint64_t)i * ENTRY_PIECE;
	size_t raw_len = (size_t)CFS_MIN((uint64_t)base->db_pages * base->page_size - at,
					 (uint64_t)ENTRY_PIECE);
	const uint8_t *ref = refs + (size_t)i * ENTRY_REF;
	cfs_auto_free uint8_t *bytes = NULL, *raw = malloc(raw_len);
	uint8_t hash[CFS_REPLICA_HASH];
	char key[CHAIN_KEY];
	size_t len;
	int r;

	if (!raw)
		return -ENOMEM;
	chain_piece_key(t->how->volume, base->token, i, key);
	r = chain_get(t->how->objects, key, cfs_get_be32(ref), cfs_deadline_in(GET_MS), &bytes,
		      &len);
	if (r == -ENOENT)
		return fail(t, -ENODATA, key, "is missing");
	if (r && r != -EFBIG && r != -EBADMSG)
		return fail(t, r, key, "cannot be read");
	if (!r)
		r = entry_hash(bytes, len, hash);
	if (r || len != cfs_get_be32(ref) || memcmp(hash, ref + 4, sizeof(hash)) != 0)
		return fail(t, -EBADMSG, key, "is damaged");
	r = entry_unpack_bytes(base->codec, bytes, len, raw_len, raw);
	if (r)
		return fail(t, r, key, "cannot be decompressed");
	note(t, raw_len / base->page_size);
	return write_at(t, raw, raw_len, at);
}

static int write_base(struct restore *t, const struct entry *base)
{
	cfs_auto_free uint8_t *refs = NULL;
	uint32_t i;
	int r = entry_unpack(base, &refs);

	if (r)
		return fail_entry(t, r, base->number, "cannot be decompressed");
	for (i = 0; i < base->n && !r; i++)
		r = write_piece(t, base, refs, i);
	return r;
}

static int write_pages(struct restore *t, const struct entry *e)
{
	size_t one = 4 + (size_t)e->page_size, i;
	cfs_auto_free uint8_t *body = NULL;
	int r = e->page_size == t->page_size ? entry_unpack(e, &body) : -EBADMSG;

	for (i = 0; i < e->n && !r; i++) {
		uint32_t page = cfs_get_be32(body + i * one);

		if (!page || page > e->db_pages)
			r = -EBADMSG;
		else
			r = write_at(t, body + i * one + 4, e->page_size,
				     (uint64_t)(page - 1) * e->page_size);
		if (r && t->err[0])
			return r;
	}
	if (r)
		return fail_entry(t, r, e->number, "cannot be applied");
	note(t, e->n);
	return 0;
}

/* ---- all of it ---- */

/* Applies the entries after the base's pages. Each must follow the one before it. */
static int write_entries(struct restore *t, struct cfs_replica_place at, uint64_t last)
{
	uint8_t *bytes;
	struct entry e;
	int r = 0;

	while (at.number < last && !r) {
		if (!is_listed(t, at.number + 1))
			return fail_entry(t, -ENODATA, at.number + 1, "is missing");
		r = get_entry(t, at.number + 1, &e, &bytes);
		if (r)
			return r;
		if (memcmp(e.before, at.hash, sizeof(at.hash)) != 0)
			r = fail_entry(t, -EBADMSG, e.number,
				       "does not follow the entry before it");
		if (!r && e.kind == ENTRY_PAGES) {
			r = write_pages(t, &e);
			t->db_pages = e.db_pages;
		}
		at.number++;
		memcpy(at.hash, e.hash, sizeof(at.hash));
		t->done.time_ms = (int64_t)e.time_ms;
		t->done.entries++;
		free(bytes);
	}
	t->done.place = at;
	return r;
}

static int restore(struct restore *t)
{
	struct cfs_replica_place from;
	uint8_t *bytes = NULL, *base_bytes = NULL;
	struct entry e, base;
	uint64_t last;
	int r = chain_read_list(t->how->objects, t->how->volume, cfs_deadline_in(LIST_MS),
				&t->list);

	if (r) {
		snprintf(t->err, 256, "the replica cannot be listed: %s", strerror(-r));
		return r;
	}
	r = find_last(t, &last);
	if (!r)
		r = get_entry(t, last, &e, &bytes);
	if (!r)
		r = get_entry(t, e.base_at, &base, &base_bytes);
	if (!r && base.kind != ENTRY_BASE) {
		snprintf(t->err, 256, "entry %" PRIu64 " of the replica is no base", base.number);
		r = -EBADMSG;
	}
	if (!r) {
		t->page_size = base.page_size;
		t->db_pages = base.db_pages;
		t->done.time_ms = (int64_t)base.time_ms;
		r = write_base(t, &base);
	}
	if (!r) {
		from.number = base.base_of;
		memcpy(from.hash, base.base_of == base.number ? base.hash : base.base_hash,
		       sizeof(from.hash));
		r = write_entries(t, from, last);
	}
	if (!r && (ftruncate(t->how->fd, (off_t)t->db_pages * t->page_size) || fsync(t->how->fd))) {
		r = -errno;
		snprintf(t->err, 256, "the database cannot be written: %s", strerror(-r));
	}
	free(bytes);
	free(base_bytes);
	return r;
}

int cfs_replica_restore(const struct cfs_replica_restore *how, struct cfs_replica_state *ret,
			char err[256])
{
	struct restore t = {.how = how, .err = err};
	int r;

	err[0] = '\0';
	r = restore(&t);
	free(t.list.v);
	t.done.pages = t.db_pages;
	if (!r)
		*ret = t.done;
	return r;
}

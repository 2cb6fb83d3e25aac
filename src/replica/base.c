/* SPDX-License-Identifier: Apache-2.0 */
/* Bases: all pages of the database, stored and checked by a thread of their own. */
#include "base.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/thread.h"

#define PIECE_MS 30000
#define LIST_MS	 60000
#define RETRY_MS 1000
/* A piece that no entry names is removed at that age: no base takes so long to be stored. */
#define ORPHAN_S (7 * 86400)

static bool is_stopped(struct base *b)
{
	return atomic_load(&b->stop);
}

/* ---- storing ---- */

/* Returns an error that ends the base. *ret_failing: the store's error, which is retried. */
static int put_piece(struct base *b, uint32_t i, uint8_t *raw, int *ret_failing)
{
	uint32_t per_piece = (uint32_t)(ENTRY_PIECE / b->view.page_size), first = i * per_piece + 1;
	uint32_t n = CFS_MIN(per_piece, b->view.db_pages - i * per_piece);
	uint8_t *ref = b->refs + (size_t)i * ENTRY_REF, *bytes;
	cfs_deadline_t deadline;
	char key[CHAIN_KEY];
	struct iovec iov;
	int r = log_view_read(&b->view, first, n, raw);

	if (!r)
		r = entry_pack(entry_codec(), raw, (size_t)n * b->view.page_size, &bytes,
			       &iov.iov_len);
	if (r)
		return r;
	iov.iov_base = bytes;
	cfs_put_be32(ref, (uint32_t)iov.iov_len);
	r = entry_hash(bytes, iov.iov_len, ref + 4);
	chain_piece_key(b->volume, b->token, i, key);
	deadline = cfs_deadline_in(PIECE_MS + iov.iov_len / SLOWEST_BYTES_PER_MS);
	*ret_failing = r ? 0 : b->o->ops->put(b->o, key, &iov, 1, CFS_OBJECT_NEW, deadline);
	/* An earlier attempt has stored it: the token is random. The hash is checked later. */
	if (*ret_failing == -EEXIST)
		*ret_failing = 0;
	if (!r && !*ret_failing)
		b->bytes += iov.iov_len;
	free(bytes);
	return r;
}

static void *store(void *arg)
{
	struct base *b = arg;
	uint8_t *raw = malloc(ENTRY_PIECE);
	int r = raw ? 0 : -ENOMEM;
	int failing = 0;
	uint32_t i;

	cfs_object_quiet(true);
	for (i = 0; i < b->n && !r; i += !r && !atomic_load(&b->failing)) {
		r = is_stopped(b) ? -ECANCELED : put_piece(b, i, raw, &failing);
		/* While the store is away, the owning thread decides whether the base goes on. */
		atomic_store(&b->failing, failing);
		if (failing)
			cfs_backoff(0, RETRY_MS, RETRY_MS, cfs_deadline_in(RETRY_MS));
	}
	free(raw);
	b->result = r;
	atomic_store(&b->done, true);
	b->ended(b->arg);
	return NULL;
}

/* ---- checking ---- */

static int check_piece(struct base *b, uint32_t i)
{
	const uint8_t *ref = b->refs + (size_t)i * ENTRY_REF;
	uint8_t hash[CFS_REPLICA_HASH], *bytes;
	char key[CHAIN_KEY];
	size_t len;
	int r;

	chain_piece_key(b->volume, b->token, i, key);
	r = chain_get(b->o, key, cfs_get_be32(ref), cfs_deadline_in(PIECE_MS), &bytes, &len);
	if (r)
		return r;
	r = entry_hash(bytes, len, hash);
	if (!r && (len != cfs_get_be32(ref) || memcmp(hash, ref + 4, sizeof(hash)) != 0))
		r = -EBADMSG;
	free(bytes);
	return r;
}

/* ---- removing old entries and bases ---- */

struct cut {
	uint64_t below; /* entries up to this number go */
	uint64_t *kept; /* tokens of bases that stay */
	size_t n_kept, cap;
};

/* When an entry was stored, by the bucket's clock. */
static int stored_at(struct base *b, uint64_t number, int64_t *ret_s)
{
	struct cfs_object_info info;
	char key[CHAIN_KEY];
	int r;

	chain_entry_key(b->volume, number, key);
	r = b->o->ops->head(b->o, key, &info, cfs_deadline_in(PIECE_MS));
	/* An entry without a time would look older than any time to keep. */
	if (!r && info.mtime_s <= 0)
		r = -EPROTO;
	if (!r)
		*ret_s = info.mtime_s;
	return r;
}

/* An entry that is missing or damaged is the beginning: no state before it can be restored. */
static bool is_beginning(int r)
{
	return r == -ENOENT || r == -EBADMSG;
}

/*
 * The latest base that is older than keep_s stays, with every entry and base after it: all states
 * since then can be restored from these.
 */
static int find_cut(struct base *b, struct cut *ret)
{
	uint64_t at = b->number;
	int64_t now_s, then_s;
	uint8_t *bytes;
	struct entry e;
	int r = stored_at(b, at, &now_s);

	if (r)
		return r;
	for (;;) {
		if (is_stopped(b))
			return -ECANCELED;
		r = chain_get_entry(b->o, b->volume, at, cfs_deadline_in(PIECE_MS), &e, &bytes);
		if (r)
			return is_beginning(r) && ret->n_kept ? 0 : r;
		free(bytes);
		if (e.kind != ENTRY_BASE)
			return -EBADMSG;
		if (CFS_ARRAY_ROOM(ret->kept, ret->n_kept, ret->cap) < 0)
			return -ENOMEM;
		ret->kept[ret->n_kept++] = e.token;
		r = stored_at(b, at, &then_s);
		if (r)
			return r;
		/* Entries up to base_of are part of the base's pages. */
		if (then_s <= now_s && (uint64_t)(now_s - then_s) >= b->keep_s) {
			ret->below = e.base_of == e.number ? e.number - 1 : e.base_of;
			return 0;
		}
		if (at == 1)
			return 0;
		r = chain_get_entry(b->o, b->volume, at - 1, cfs_deadline_in(PIECE_MS), &e, &bytes);
		if (r)
			return is_beginning(r) ? 0 : r;
		free(bytes);
		at = e.base_at;
	}
}

struct removal {
	struct base *b;
	const struct cut *cut;
	int64_t latest_s; /* when the latest of all pieces was stored */
	char (*v)[CHAIN_KEY];
	size_t n, cap;
};

static int add_key(struct removal *d, const char *key)
{
	if (CFS_ARRAY_ROOM(d->v, d->n, d->cap) < 0)
		return -ENOMEM;
	snprintf(d->v[d->n++], CHAIN_KEY, "%s", key);
	return d->n < CFS_OBJECT_DEL_MAX ? 0 : 1;
}

static int find_entry(void *arg, const struct cfs_object_info *info)
{
	struct removal *d = arg;
	uint64_t number;

	if (!chain_number(info->key, &number))
		return 0;
	return number > d->cut->below ? 1 : add_key(d, info->key);
}

static int find_latest(void *arg, const struct cfs_object_info *info)
{
	struct removal *d = arg;

	d->latest_s = CFS_MAX(d->latest_s, info->mtime_s);
	return 0;
}

static int find_piece(void *arg, const struct cfs_object_info *info)
{
	struct removal *d = arg;
	uint64_t token;
	size_t i;

	if (!chain_token(info->key, &token))
		return 0;
	for (i = 0; i < d->cut->n_kept; i++)
		if (d->cut->kept[i] == token)
			return 0;
	return info->mtime_s + ORPHAN_S <= d->latest_s ? add_key(d, info->key) : 0;
}

static int remove_found(struct removal *d)
{
	const char *keys[CFS_OBJECT_DEL_MAX];
	size_t i;
	int r;

	for (i = 0; i < d->n; i++)
		keys[i] = d->v[i];
	r = d->n ? cfs_object_del_many(d->b->o, keys, d->n, cfs_deadline_in(LIST_MS)) : 0;
	d->n = 0;
	return r;
}

/* Removes all keys that fn collects, in batches: memory does not grow with their number. */
static int remove_each(struct removal *d, const char *prefix, cfs_object_list_fn fn)
{
	char last[CHAIN_KEY] = "";
	bool more;
	int r;

	do {
		r = d->b->o->ops->list(d->b->o, prefix, last, fn, d, cfs_deadline_in(LIST_MS));
		more = r == 1 && d->n == CFS_OBJECT_DEL_MAX;
		if (d->n)
			memcpy(last, d->v[d->n - 1], sizeof(last));
		if (r >= 0)
			r = remove_found(d);
	} while (!r && more && !is_stopped(d->b));
	return r;
}

/*
 * Removes the pieces of bases that entries up to the cut name. Pieces whose entry cannot be read
 * are removed later, as orphans.
 */
static int remove_bases(struct base *b, const struct cut *cut)
{
	uint64_t at = cut->below;
	uint8_t *bytes;
	struct entry e;
	uint32_t i;
	int r;

	while (at) {
		r = chain_get_entry(b->o, b->volume, at, cfs_deadline_in(PIECE_MS), &e, &bytes);
		if (!r && e.kind != ENTRY_BASE) {
			at = e.base_at;
			free(bytes);
			r = chain_get_entry(b->o, b->volume, at, cfs_deadline_in(PIECE_MS), &e,
					    &bytes);
		}
		if (r)
			return is_beginning(r) ? 0 : r;
		free(bytes);
		for (i = 0; i < e.n && !r; i++) {
			char key[CHAIN_KEY];

			chain_piece_key(b->volume, e.token, i, key);
			r = is_stopped(b) ? -ECANCELED
					  : b->o->ops->del(b->o, key, cfs_deadline_in(PIECE_MS));
		}
		if (r)
			return r;
		at = e.number - 1;
	}
	return 0;
}

static int tidy(struct base *b)
{
	char prefix[CHAIN_KEY];
	struct removal d = {.b = b};
	struct cut cut = {0};
	int r = find_cut(b, &cut);

	if (r || !cut.below)
		goto out;
	d.cut = &cut;
	/* Bases go first: their entries have their tokens. */
	r = remove_bases(b, &cut);
	chain_prefix(b->volume, "log-", prefix);
	if (!r)
		r = remove_each(&d, prefix, find_entry);
	chain_prefix(b->volume, "base-", prefix);
	if (!r)
		r = b->o->ops->list(b->o, prefix, "", find_latest, &d, cfs_deadline_in(LIST_MS));
	if (!r)
		r = remove_each(&d, prefix, find_piece);
out:
	free(d.v);
	free(cut.kept);
	return r;
}

static void *check(void *arg)
{
	struct base *b = arg;
	uint32_t i;
	int r = 0;

	cfs_object_quiet(true);
	for (i = 0; i < b->n && !r; i++)
		r = is_stopped(b) ? -ECANCELED : check_piece(b, i);
	if (r && r != -ECANCELED)
		cfs_warn("replica: a base is not readable as it was stored, nothing is removed and "
			 "another one is made: volume=%s error=%s",
			 b->volume, cfs_errname(r));
	b->result = r;
	if (!r) {
		r = tidy(b);
		if (r && r != -ECANCELED)
			cfs_warn("replica: old objects could not be removed, the next base tries "
				 "again: volume=%s error=%s cause=%s",
				 b->volume, cfs_errname(r), cfs_object_cause());
	}
	atomic_store(&b->done, true);
	b->ended(b->arg);
	return NULL;
}

/* ---- life ---- */

int base_start(struct base *b)
{
	int r;

	b->n = (uint32_t)CFS_DIV_UP((uint64_t)b->view.db_pages * b->view.page_size, ENTRY_PIECE);
	b->refs = calloc(b->n, ENTRY_REF);
	if (!b->refs)
		return -ENOMEM;
	b->token = cfs_random_u64() | 1;
	b->bytes = 0;
	atomic_store(&b->done, false);
	r = cfs_thread_start("replica-base", store, b, &b->thread);
	b->running = !r;
	return r;
}

int base_check(struct base *b)
{
	int r;

	atomic_store(&b->done, false);
	r = cfs_thread_start("replica-check", check, b, &b->thread);
	b->running = !r;
	return r;
}

bool base_ended(struct base *b)
{
	if (!b->running || !atomic_load(&b->done))
		return false;
	pthread_join(b->thread, NULL);
	b->running = false;
	return true;
}

void base_drop(struct base *b)
{
	if (b->running) {
		atomic_store(&b->stop, true);
		pthread_join(b->thread, NULL);
	}
	b->running = false;
	atomic_store(&b->stop, false);
	log_view_close(&b->view);
	free(b->refs);
	b->refs = NULL;
}

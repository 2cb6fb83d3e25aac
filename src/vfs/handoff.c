/* SPDX-License-Identifier: Apache-2.0 */
#include <cachefs/handoff.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

/* Slots for requests of dead processes whose answers were sent just before the end. */
#define WORKERS_REMEMBERED 8

struct layout {
	struct cfs_handoff_header header;
	char padding[896 - sizeof(struct cfs_handoff_header)];
	struct cfs_agreement agreement;
	char padding1[128 - sizeof(struct cfs_agreement)];
	struct cfs_unsynced unsynced;
	char padding2[3072 - sizeof(struct cfs_unsynced)];
	struct cfs_handoff_request requests[CFS_HANDOFF_REQUESTS];
	struct cfs_handoff_handle handles[CFS_HANDOFF_HANDLES];
	struct cfs_handoff_inode inodes[CFS_HANDOFF_INODES];
	struct cfs_handoff_dir dirs[CFS_HANDOFF_DIRS];
};

_Static_assert(offsetof(struct layout, agreement) == 896, "the agreement is at its place");
_Static_assert(offsetof(struct layout, unsynced) == 1024, "the unsynced blocks are at their place");
_Static_assert(offsetof(struct layout, requests) == 4096, "tables are at the version's places");
_Static_assert(sizeof(struct cfs_handoff_handle) == 64, "records are of the version's size");
_Static_assert(sizeof(struct cfs_handoff_inode) == 16, "records are of the version's size");
_Static_assert(sizeof(struct cfs_handoff_request) == 32, "records are of the version's size");
_Static_assert(sizeof(struct cfs_handoff_dir) == 560, "records are of the version's size");

/* The common start of records that are allocated and freed one by one. */
struct pooled {
	_Atomic uint64_t key;
	uint32_t used_by_its_kind;
	uint32_t next_free;
};
_Static_assert(offsetof(struct cfs_handoff_inode, next_free) ==
			       offsetof(struct pooled, next_free) &&
		       offsetof(struct cfs_handoff_dir, next_free) ==
			       offsetof(struct pooled, next_free) &&
		       offsetof(struct cfs_handoff_unlock, next_free) ==
			       offsetof(struct pooled, next_free),
	       "pooled records begin alike");
_Static_assert(sizeof(struct cfs_handoff_unlock) <= sizeof(struct cfs_handoff_dir),
	       "an unlock has room in the record of a directory");

struct record_pool {
	char *first;
	size_t bytes; /* of one */
	uint32_t max;
	_Atomic uint32_t *n_used; /* records ever used */
	uint32_t free;		  /* index + 1 */
};

struct cfs_handoff {
	int fd;
	struct layout *at;
	pthread_mutex_t lock; /* protects the free lists and growth; a leaf */
	struct record_pool inodes, dirs;
};

static void fill(struct cfs_handoff_header *h)
{
	memcpy(h->magic, CFS_HANDOFF_MAGIC, sizeof(h->magic));
	h->version = CFS_HANDOFF_VERSION;
	h->bytes = sizeof(*h);
	h->handle_bytes = sizeof(struct cfs_handoff_handle);
	h->inode_bytes = sizeof(struct cfs_handoff_inode);
	h->request_bytes = sizeof(struct cfs_handoff_request);
	h->dir_bytes = sizeof(struct cfs_handoff_dir);
	h->n_handles = CFS_HANDOFF_HANDLES;
	h->n_inodes = CFS_HANDOFF_INODES;
	h->n_requests = CFS_HANDOFF_REQUESTS;
	h->n_dirs = CFS_HANDOFF_DIRS;
}

static int map(int fd, struct cfs_handoff **ret)
{
	struct cfs_handoff *state = calloc(1, sizeof(*state));
	int r;

	if (!state)
		return -ENOMEM;
	state->at = mmap(NULL, sizeof(*state->at), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (state->at == MAP_FAILED) {
		r = -errno;
		free(state);
		return r;
	}
	state->fd = fd;
	state->inodes = (struct record_pool){
		.first = (char *)state->at->inodes,
		.bytes = sizeof(state->at->inodes[0]),
		.max = CFS_HANDOFF_INODES,
		.n_used = &state->at->header.n_marked,
	};
	state->dirs = (struct record_pool){
		.first = (char *)state->at->dirs,
		.bytes = sizeof(state->at->dirs[0]),
		.max = CFS_HANDOFF_DIRS,
		.n_used = &state->at->header.n_listed,
	};
	pthread_mutex_init(&state->lock, NULL);
	*ret = state;
	return 0;
}

int cfs_handoff_create(struct cfs_handoff **ret)
{
	int fd = memfd_create(CFS_HANDOFF_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : 0;

	if (r == 0 && ftruncate(fd, sizeof(struct layout)) < 0)
		r = -errno;
	/* The memory is sealed: no process can shrink it under its users. */
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		r = -errno;
	if (r == 0)
		r = map(fd, ret);
	if (r < 0) {
		if (fd >= 0)
			close(fd);
		return r;
	}
	fill(&(*ret)->at->header);
	(*ret)->at->header.started_s = (uint64_t)cfs_wall_s();
	return 0;
}

static bool same_layout(const struct cfs_handoff_header *have)
{
	struct cfs_handoff_header want = {0};

	fill(&want);
	want.version = have->version;
	return !memcmp(have, &want, offsetof(struct cfs_handoff_header, uuid));
}

/* The beginning of the header is the same in every version. */
int cfs_handoff_attach(int fd, struct cfs_handoff **ret, char err[256])
{
	cfs_auto_free struct cfs_handoff_header *h = calloc(1, sizeof(*h));
	struct stat st;

	if (!h)
		return -ENOMEM;
	if (fstat(fd, &st) < 0 || pread(fd, h, sizeof(*h), 0) != sizeof(*h) ||
	    memcmp(h->magic, CFS_HANDOFF_MAGIC, sizeof(h->magic)) != 0)
		return cfs_fail(err, -EPROTO,
				"the handoff state of the other process is unreadable");
	if (h->version < CFS_HANDOFF_VERSION || h->version > CFS_HANDOFF_VERSION_PASSTHROUGH ||
	    !same_layout(h) || st.st_size != (off_t)sizeof(struct layout))
		return cfs_fail(err, -EPROTO,
				"the handoff state of the other process is of version %u, this "
				"program knows %u",
				h->version, CFS_HANDOFF_VERSION_PASSTHROUGH);
	if (!(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK))
		return cfs_fail(err, -EPROTO,
				"the handoff state of the other process is not sealed");
	return map(fd, ret);
}

void cfs_handoff_close(struct cfs_handoff *state)
{
	if (!state)
		return;
	munmap(state->at, sizeof(*state->at));
	close(state->fd);
	pthread_mutex_destroy(&state->lock);
	free(state);
}

int cfs_handoff_fd(const struct cfs_handoff *state)
{
	return state->fd;
}

struct cfs_unsynced *cfs_handoff_unsynced(struct cfs_handoff *state)
{
	return state ? &state->at->unsynced : NULL;
}

struct cfs_handoff_header *cfs_handoff_header(struct cfs_handoff *state)
{
	return &state->at->header;
}

struct cfs_agreement *cfs_handoff_agreement(struct cfs_handoff *state)
{
	return &state->at->agreement;
}

int cfs_handoff_read_agreement(int fd, struct cfs_agreement *ret)
{
	char magic[sizeof(CFS_HANDOFF_MAGIC)];
	struct cfs_agreement a;

	if (pread(fd, magic, sizeof(magic), 0) != sizeof(magic) ||
	    memcmp(magic, CFS_HANDOFF_MAGIC, sizeof(magic)) != 0 ||
	    pread(fd, &a, sizeof(a), offsetof(struct layout, agreement)) != sizeof(a))
		return -EPROTO;
	*ret = a;
	return 0;
}

static void raise_to(_Atomic uint32_t *n, uint32_t least)
{
	uint32_t now = atomic_load(n);

	while (now < least && !atomic_compare_exchange_weak(n, &now, least))
		;
}

struct cfs_handoff_handle *cfs_handoff_handle(struct cfs_handoff *state, uint32_t i)
{
	return state && i < CFS_HANDOFF_HANDLES ? &state->at->handles[i] : NULL;
}

bool cfs_handoff_is_clean(struct cfs_handoff *state, uint64_t fh)
{
	struct cfs_handoff_handle *h = cfs_handoff_handle(state, (uint32_t)fh - 1);

	return h && atomic_load(&h->fh) == fh && !atomic_load(&h->wrote) &&
	       !atomic_load(&h->lost) && !atomic_load(&h->plocked);
}

void cfs_handoff_released(struct cfs_handoff *state, uint64_t fh)
{
	struct cfs_handoff_handle *h = cfs_handoff_handle(state, (uint32_t)fh - 1);

	if (h && atomic_load(&h->fh) == fh)
		atomic_store(&h->released, 1);
}

bool cfs_handoff_report_loss(struct cfs_handoff_handle *h)
{
	uint8_t was = atomic_load_explicit(&h->lost, memory_order_relaxed);

	if (was == CFS_HANDOFF_LOST)
		atomic_store(&h->lost, CFS_HANDOFF_REPORTED);
	else if (was == CFS_HANDOFF_REPORTED)
		atomic_compare_exchange_strong(&h->lost, &was, CFS_HANDOFF_INTACT);
	return was == CFS_HANDOFF_LOST;
}

void cfs_handoff_use_handle(struct cfs_handoff *state, uint32_t i)
{
	raise_to(&state->at->header.n_used, i + 1);
}

/* ---- pools of records ---- */

static struct pooled *pooled_at(const struct record_pool *pool, uint32_t i)
{
	return (struct pooled *)(pool->first + i * pool->bytes);
}

/* NULL when there is none left. */
static void *pool_take(struct cfs_handoff *state, struct record_pool *pool)
{
	struct pooled *slot;
	uint32_t n;
	CFS_LOCK_GUARD(&state->lock);

	if (pool->free) {
		slot = pooled_at(pool, pool->free - 1);
		pool->free = slot->next_free;
		return slot;
	}
	n = atomic_load(pool->n_used);
	if (n >= pool->max)
		return NULL;
	atomic_store(pool->n_used, n + 1);
	return pooled_at(pool, n);
}

static void pool_put(struct cfs_handoff *state, struct record_pool *pool, void *record)
{
	struct pooled *slot = record;

	atomic_store(&slot->key, 0);
	pthread_mutex_lock(&state->lock);
	slot->next_free = pool->free;
	pool->free = (uint32_t)((size_t)((char *)record - pool->first) / pool->bytes) + 1;
	pthread_mutex_unlock(&state->lock);
}

/* ---- inodes ---- */

struct cfs_handoff_inode *cfs_handoff_add_inode(struct cfs_handoff *state, uint64_t ino)
{
	struct cfs_handoff_inode *m = state ? pool_take(state, &state->inodes) : NULL;

	if (m) {
		atomic_store(&m->dirty, 0);
		atomic_store(&m->backing, 0);
		atomic_store(&m->ino, ino);
	}
	return m;
}

void cfs_handoff_remove_inode(struct cfs_handoff *state, struct cfs_handoff_inode *m)
{
	if (m)
		pool_put(state, &state->inodes, m);
}

static int compare_inos(const void *a, const void *b)
{
	return CFS_COMPARE(*(const uint64_t *)a, *(const uint64_t *)b);
}

static bool is_uncommitted(const struct cfs_handoff_inode *m)
{
	return atomic_load(&m->ino) && atomic_load(&m->dirty) == CFS_HANDOFF_UNCOMMITTED;
}

/*
 * Sorted. Without memory for the list every open inode counts as lost: too many rather than too
 * few.
 */
static uint64_t *dirty_inodes(struct cfs_handoff *state, uint32_t n_marked, size_t *ret_n)
{
	uint64_t *inos = NULL;
	size_t n = 0, i;

	for (i = 0; i < n_marked; i++)
		n += is_uncommitted(&state->at->inodes[i]);
	*ret_n = n;
	if (n)
		inos = malloc(n * sizeof(*inos));
	if (!inos)
		return NULL;
	for (i = n = 0; i < n_marked; i++) {
		if (is_uncommitted(&state->at->inodes[i]))
			inos[n++] = atomic_load(&state->at->inodes[i].ino);
	}
	qsort(inos, n, sizeof(*inos), compare_inos);
	return inos;
}

/*
 * Adds the dirty inodes that no handle can write to inos, behind the first n; at most max.
 * Without the list none is known.
 */
static size_t lost_without_handle(struct cfs_handoff *state, uint64_t *dirty, size_t n_dirty,
				  uint64_t *inos, size_t n, size_t max)
{
	uint32_t n_used = atomic_load(&state->at->header.n_used), i;
	size_t found = 0, at;
	uint64_t *p;

	for (i = 0; i < n_used; i++) {
		struct cfs_handoff_handle *h = &state->at->handles[i];

		if (!atomic_load(&h->fh) || (h->flags & O_ACCMODE) == O_RDONLY)
			continue;
		while ((p = bsearch(&h->ino, dirty, n_dirty, sizeof(*dirty), compare_inos)))
			memmove(p, p + 1, (size_t)(dirty + --n_dirty - p) * sizeof(*p));
	}
	for (at = 0; at < n_dirty; at++, found++) {
		if (n + found < max)
			inos[n + found] = dirty[at];
	}
	if (found)
		atomic_store(&state->at->header.closed_lost, 1);
	return found;
}

/* Frees the other records. A crash in between leaves one twice, which is harmless. */
static void keep_backings_and_losses(struct cfs_handoff *state, uint32_t n_marked)
{
	bool any = state->at->header.version == CFS_HANDOFF_VERSION_PASSTHROUGH;
	struct cfs_handoff_inode *m, *to = state->at->inodes;
	uint32_t dirty, backing;
	uint64_t ino;

	for (m = to; m < state->at->inodes + n_marked; m++) {
		ino = atomic_load(&m->ino);
		dirty = atomic_load(&m->dirty) == CFS_HANDOFF_LOSS ? CFS_HANDOFF_LOSS : 0;
		backing = any ? atomic_load(&m->backing) : 0;
		if (ino && (dirty || backing)) {
			atomic_store(&to->ino, 0);
			atomic_store(&to->dirty, dirty);
			atomic_store(&to->backing, backing);
			atomic_store(&to->ino, ino);
			to++;
		}
		if (m >= to)
			atomic_store(&m->ino, 0);
	}
	atomic_store(&state->at->header.n_marked, (uint32_t)(to - state->at->inodes));
}

struct cfs_handoff_inode *cfs_handoff_inode(struct cfs_handoff *state, uint32_t i)
{
	return &state->at->inodes[i];
}

size_t cfs_handoff_mark_lost(struct cfs_handoff *state, uint64_t *inos, size_t max,
			     size_t *ret_closed)
{
	uint32_t n_marked = atomic_load(&state->at->header.n_marked);
	uint32_t n_used = atomic_load(&state->at->header.n_used), i;
	size_t n_dirty, n = 0, told = 0;
	uint64_t *dirty;

	*ret_closed = 0;
	if (n_marked > CFS_HANDOFF_INODES || n_used > CFS_HANDOFF_HANDLES)
		return 0;
	dirty = dirty_inodes(state, n_marked, &n_dirty);
	for (i = 0; i < n_used; i++) {
		struct cfs_handoff_handle *h = &state->at->handles[i];

		if (!atomic_load(&h->fh))
			continue;
		if (atomic_load(&h->lost) == CFS_HANDOFF_REPORTED)
			atomic_store(&h->lost, CFS_HANDOFF_LOST);
		if (!n_dirty ||
		    (dirty && !bsearch(&h->ino, dirty, n_dirty, sizeof(*dirty), compare_inos)))
			continue;
		atomic_store(&h->lost, CFS_HANDOFF_LOST);
		n++;
		if (told < max)
			inos[told++] = h->ino;
	}
	if (dirty)
		*ret_closed = lost_without_handle(state, dirty, n_dirty, inos, told, max);
	free(dirty);
	/*
	 * From here on the handles hold it: after a crash before this point, the next process
	 * starts over.
	 */
	keep_backings_and_losses(state, n_marked);
	for (i = 0; i < CFS_HANDOFF_REQUESTS; i++) {
		struct cfs_handoff_request *r = &state->at->requests[i];

		if (atomic_load(&r->unique) && !(atomic_load(&r->flags) & CFS_HANDOFF_FAILED) &&
		    atomic_load(&r->worker) + WORKERS_REMEMBERED <
			    atomic_load(&state->at->header.workers))
			cfs_handoff_end_request(r);
	}
	return n;
}

/* ---- directories ---- */

struct cfs_handoff_dir *cfs_handoff_add_dir(struct cfs_handoff *state, uint64_t fh)
{
	struct cfs_handoff_dir *d = state ? pool_take(state, &state->dirs) : NULL;

	if (d) {
		cfs_handoff_rewind(d);
		atomic_store(&d->fh, fh);
	}
	return d;
}

void cfs_handoff_remove_dir(struct cfs_handoff *state, struct cfs_handoff_dir *d)
{
	if (d)
		pool_put(state, &state->dirs, d);
}

struct cfs_handoff_dir *cfs_handoff_dir(struct cfs_handoff *state, uint32_t i)
{
	uint32_t n = atomic_load(&state->at->header.n_listed);

	return i < n && i < CFS_HANDOFF_DIRS ? &state->at->dirs[i] : NULL;
}

struct cfs_handoff_unlock *cfs_handoff_add_unlock(struct cfs_handoff *state, uint64_t ino,
						  uint64_t owner, bool posix)
{
	struct cfs_handoff_unlock *u = state ? pool_take(state, &state->dirs) : NULL;

	if (u) {
		u->posix = posix;
		u->ino = ino;
		u->owner = owner;
		atomic_store(&u->key, CFS_HANDOFF_UNLOCK);
	}
	return u;
}

void cfs_handoff_remove_unlock(struct cfs_handoff *state, struct cfs_handoff_unlock *u)
{
	if (u)
		pool_put(state, &state->dirs, u);
}

struct cfs_handoff_unlock *cfs_handoff_as_unlock(struct cfs_handoff_dir *d)
{
	return atomic_load(&d->fh) == CFS_HANDOFF_UNLOCK ? (void *)d : NULL;
}

void cfs_handoff_set_position(struct cfs_handoff_dir *d, uint64_t index, const void *cursor,
			      size_t len)
{
	struct cfs_handoff_position *p = &d->position[d->next & 1];

	if (len > sizeof(p->cursor))
		return;
	atomic_store(&p->index, 0);
	p->len = (uint16_t)len;
	memcpy(p->cursor, cursor, len);
	atomic_store(&p->index, index);
	d->next++;
}

void cfs_handoff_rewind(struct cfs_handoff_dir *d)
{
	atomic_store(&d->position[0].index, 0);
	atomic_store(&d->position[1].index, 0);
}

/* ---- requests ---- */

static struct cfs_handoff_request *find_request(struct cfs_handoff *state, uint64_t unique)
{
	uint32_t i, at = (uint32_t)(unique / 2);

	for (i = 0; i < CFS_HANDOFF_REQUESTS; i++) {
		struct cfs_handoff_request *r =
			&state->at->requests[(at + i) % CFS_HANDOFF_REQUESTS];

		if (atomic_load(&r->unique) == unique)
			return r;
	}
	return NULL;
}

struct cfs_handoff_request *cfs_handoff_begin_request(struct cfs_handoff *state, uint64_t unique,
						      bool resent, bool *ret_replay)
{
	uint32_t i, at = (uint32_t)(unique / 2), worker;
	struct cfs_handoff_request *r;
	uint64_t none;

	*ret_replay = resent;
	if (!state || !unique)
		return NULL;
	worker = atomic_load_explicit(&state->at->header.workers, memory_order_relaxed);
	r = resent ? find_request(state, unique) : NULL;
	if (r) {
		atomic_fetch_and(&r->flags, ~(uint32_t)CFS_HANDOFF_FAILED);
		atomic_store(&r->worker, worker);
		return r;
	}
	/* The kernel counts in steps of two, so that neighbours in time are neighbours here. */
	for (i = 0; i < CFS_HANDOFF_REQUESTS; i++) {
		r = &state->at->requests[(at + i) % CFS_HANDOFF_REQUESTS];
		none = 0;
		if (atomic_load_explicit(&r->unique, memory_order_relaxed) ||
		    !atomic_compare_exchange_strong(&r->unique, &none, unique))
			continue;
		atomic_store(&r->worker, worker);
		*ret_replay = false;
		return r;
	}
	return NULL;
}

void cfs_handoff_end_request(struct cfs_handoff_request *r)
{
	if (!r)
		return;
	atomic_store_explicit(&r->ino, 0, memory_order_relaxed);
	atomic_store_explicit(&r->fh, 0, memory_order_relaxed);
	atomic_store_explicit(&r->flags, 0, memory_order_relaxed);
	atomic_store(&r->unique, 0);
}

void cfs_handoff_fail_request(struct cfs_handoff *state, uint64_t unique, bool fails)
{
	struct cfs_handoff_request *r = state && unique ? find_request(state, unique) : NULL;

	if (r && fails)
		atomic_fetch_or(&r->flags, CFS_HANDOFF_FAILED);
	else if (r)
		atomic_fetch_and(&r->flags, ~(uint32_t)CFS_HANDOFF_FAILED);
}

struct cfs_handoff_request *cfs_handoff_next_request(struct cfs_handoff *state, uint32_t *pos)
{
	struct cfs_handoff_request *r;

	while (state && *pos < CFS_HANDOFF_REQUESTS) {
		r = &state->at->requests[(*pos)++];
		if (atomic_load(&r->unique))
			return r;
	}
	return NULL;
}

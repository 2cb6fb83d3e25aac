/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: fh = generation << 32 | index + 1. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "vfs-internal.h"

int handles_init(struct handles *t, struct cfs_handoff *handoff)
{
	t->chunks = calloc(HANDLE_CHUNKS, sizeof(*t->chunks));
	if (!t->chunks)
		return -ENOMEM;
	pthread_mutex_init(&t->lock, NULL);
	t->handoff = handoff;
	return 0;
}

void handles_fini(struct handles *t)
{
	uint32_t i;

	for (i = 0; i < t->n_chunks; i++)
		free(t->chunks[i]);
	free(t->chunks);
	pthread_mutex_destroy(&t->lock);
}

static struct handle *slot(struct handles *t, uint32_t index)
{
	struct handle *chunk;

	if (index >= HANDLES_PER_CHUNK * HANDLE_CHUNKS)
		return NULL;
	chunk = atomic_load_explicit(&t->chunks[index / HANDLES_PER_CHUNK], memory_order_acquire);
	return chunk ? &chunk[index % HANDLES_PER_CHUNK] : NULL;
}

static int grow(struct handles *t)
{
	uint32_t base = t->n_chunks * HANDLES_PER_CHUNK, i;
	struct handle *chunk;

	if (t->n_chunks == HANDLE_CHUNKS)
		return -ENFILE;
	chunk = calloc(HANDLES_PER_CHUNK, sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	for (i = 0; i < HANDLES_PER_CHUNK; i++) {
		atomic_init(&chunk[i].gen, 1);
		chunk[i].record = cfs_handoff_handle(t->handoff, base + i);
		chunk[i].next_free = i + 1 < HANDLES_PER_CHUNK ? base + i + 2 : 0;
	}
	if (t->handoff)
		cfs_handoff_use_handle(t->handoff, base + HANDLES_PER_CHUNK - 1);
	atomic_store_explicit(&t->chunks[t->n_chunks++], chunk, memory_order_release);
	t->free = base + 1;
	return 0;
}

static uint32_t next_gen(uint64_t fh)
{
	uint32_t gen = (uint32_t)(fh >> 32) + 1;

	return gen ? gen : 1;
}

int handle_alloc(struct handles *t, struct handle **ret, uint64_t *ret_fh)
{
	struct handle *h;
	int r = 0;

	pthread_mutex_lock(&t->lock);
	if (!t->free)
		r = grow(t);
	if (r == 0) {
		h = slot(t, t->free - 1);
		*ret_fh = (uint64_t)atomic_load(&h->gen) << 32 | t->free;
		t->free = h->next_free;
		/* A successor process must not reuse this handle number. */
		if (h->record)
			atomic_store(&h->record->gen, next_gen(*ret_fh));
		h->flags = 0;
		h->vnode = NULL;
		h->passthrough = (struct handle_passthrough){0};
		atomic_store(&h->err_seq, 0);
		atomic_store(&h->flocked, false);
		atomic_store(&h->lock_lost, false);
		atomic_store(&h->atime_s, 0);
		h->lock_owners = NULL;
		h->pins = 0;
		h->close_deferred = false;
		*ret = h;
	}
	pthread_mutex_unlock(&t->lock);
	if (r == 0)
		atomic_fetch_add_explicit(&t->in_use, 1, memory_order_relaxed);
	return r;
}

static void record_handle(struct cfs_handoff_handle *rec, const struct handle *h, uint64_t fh,
			  cfs_ino_t ino, enum handle_kind kind)
{
	int i;

	rec->ino = ino;
	rec->flags = (uint32_t)h->flags;
	rec->kind = (uint8_t)kind;
	rec->passthrough = (uint8_t)((h->passthrough.node ? CFS_HANDOFF_OTHER_NODE : 0) |
				     (h->passthrough.passed ? CFS_HANDOFF_PASSED : 0));
	atomic_store(&rec->flocked, 0);
	atomic_store(&rec->plocked, 0);
	atomic_store(&rec->wrote, 0);
	atomic_store(&rec->lost, 0);
	atomic_store(&rec->released, 0);
	atomic_store(&rec->lock_lost, 0);
	for (i = 0; i < CFS_HANDOFF_OWNERS; i++)
		atomic_store(&rec->plock_owners[i], 0);
	atomic_store(&rec->fh, fh);
}

void handle_publish(struct handle *h, uint64_t fh, cfs_ino_t ino, enum handle_kind kind)
{
	if (h->record)
		record_handle(h->record, h, fh, ino, kind);
	atomic_store_explicit(&h->kind, (uint8_t)kind, memory_order_release);
}

struct handle *handle_find(struct handles *t, uint64_t fh, enum handle_kind kind)
{
	struct handle *h = slot(t, (uint32_t)fh - 1);

	if (!h || atomic_load_explicit(&h->kind, memory_order_acquire) != kind ||
	    atomic_load_explicit(&h->gen, memory_order_relaxed) != (uint32_t)(fh >> 32))
		return NULL;
	return h;
}

struct handle *handle_find_any(struct handles *t, uint64_t fh)
{
	struct handle *h = slot(t, (uint32_t)fh - 1);

	if (!h || atomic_load_explicit(&h->kind, memory_order_acquire) == HANDLE_FREE ||
	    atomic_load_explicit(&h->gen, memory_order_relaxed) != (uint32_t)(fh >> 32))
		return NULL;
	return h;
}

/* While the lock is held, the number is not reused. The handle may be one that is being closed. */
bool handle_pin(struct handles *t, uint64_t fh)
{
	struct handle *h;
	CFS_LOCK_GUARD(&t->lock);

	h = handle_find_any(t, fh);
	if (h)
		h->pins++;
	return h;
}

bool handle_unpin(struct handles *t, uint64_t fh)
{
	struct handle *h;
	CFS_LOCK_GUARD(&t->lock);

	h = handle_find_any(t, fh);
	if (!h || --h->pins > 0 || !h->close_deferred)
		return false;
	h->close_deferred = false;
	return true;
}

bool handle_defer_close(struct handles *t, uint64_t fh)
{
	struct handle *h = handle_find_any(t, fh);
	bool held;

	if (!h)
		return false;
	pthread_mutex_lock(&t->lock);
	held = h->pins > 0;
	h->close_deferred |= held;
	pthread_mutex_unlock(&t->lock);
	if (held) /* the kernel sends a release only once */
		cfs_handoff_released(t->handoff, fh);
	return held;
}

void handle_hide(struct handle *h)
{
	atomic_store(&h->kind, HANDLE_FREE);
}

void handle_free(struct handles *t, uint64_t fh, struct handle *h)
{
	if (h->record)
		atomic_store(&h->record->fh, 0);
	handle_hide(h);
	atomic_store(&h->gen, next_gen(fh));
	pthread_mutex_lock(&t->lock);
	h->next_free = t->free;
	t->free = (uint32_t)fh;
	pthread_mutex_unlock(&t->lock);
	atomic_fetch_sub_explicit(&t->in_use, 1, memory_order_relaxed);
}

int handles_reserve(struct handles *t)
{
	uint32_t n_used = atomic_load(&cfs_handoff_header(t->handoff)->n_used);
	int r = 0;

	while (r == 0 && t->n_chunks * HANDLES_PER_CHUNK < n_used)
		r = grow(t);
	t->free = 0;
	return r;
}

struct handle *handle_claim(struct handles *t, uint64_t fh)
{
	struct handle *h = slot(t, (uint32_t)fh - 1);

	if (!h || !(fh >> 32) || h->record != cfs_handoff_handle(t->handoff, (uint32_t)fh - 1))
		return NULL;
	atomic_store(&h->gen, (uint32_t)(fh >> 32));
	atomic_store(&h->record->gen, next_gen(fh));
	atomic_fetch_add_explicit(&t->in_use, 1, memory_order_relaxed);
	return h;
}

/* Generations go on: a late request for a closed handle must not reach another handle. */
void handles_free_rest(struct handles *t)
{
	uint32_t i = t->n_chunks * HANDLES_PER_CHUNK, gen;
	struct handle *h;

	while (i-- > 0) {
		h = slot(t, i);
		if (atomic_load(&h->kind) != HANDLE_FREE)
			continue;
		gen = atomic_load(&h->record->gen);
		atomic_store(&h->gen, gen ? gen : 1);
		h->next_free = t->free;
		t->free = i + 1;
	}
}

uint64_t handle_next(struct handles *t, uint32_t *pos, enum handle_kind *ret_kind)
{
	struct handle *h;

	while ((h = slot(t, *pos)) != NULL) {
		(*pos)++;
		*ret_kind = atomic_load(&h->kind);
		if (*ret_kind != HANDLE_FREE)
			return (uint64_t)atomic_load(&h->gen) << 32 | *pos;
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of blocks that other members read by RDMA. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "transport/wire/crc.h"

#define LOADS	   4 /* queued at a time */
#define SEEN	   4096
#define PIECE	   (256u << 10)
#define GRACE_MS   2000 /* between the end of a lease and eviction, at least */
#define STOP_MS	   2000
#define SIZES	   9 /* of places: PLACE_MIN << size; the last one is a whole slab */
#define PLACE_MIN  (16u << 10)
#define PLACES_MAX (CFS_RDMA_SLAB / PLACE_MIN) /* of a slab */
#define SLABS_MAX  (1u << 16)
#define BUCKETS	   64 /* of the index, for each slab */
#define LOOKED_AT  16 /* candidates for eviction */

_Static_assert(PLACE_MIN << (SIZES - 1) == CFS_RDMA_BLOCK_MAX, "the last size is a whole slab");

struct slab;

enum place_state { PLACE_FREE, PLACE_LOADING, PLACE_READY };

/* A place for a block. One that is not free is in the index. */
struct place {
	enum place_state state;
	struct slab *slab;
	struct cfs_peer_block block;
	struct cfs_rdma_memory *memory; /* READY */
	uint32_t table_crc;
	uint64_t used_ms, leased_until_ms;
	LIST_ENTRY(place) indexed;
	TAILQ_ENTRY(place) by_use; /* of its size; one that is loaded is in none */
};

struct slab {
	struct place *places; /* NULL: it has no size yet */
	unsigned size, n_places, n_loading;
	uint64_t used_ms, leased_until_ms; /* the latest of its places */
	TAILQ_ENTRY(slab) by_use;
};

_Static_assert(PLACES_MAX * sizeof(struct place) + sizeof(struct slab) + BUCKETS * sizeof(void *) <=
		       CFS_RDMA_SLOT - CFS_RDMA_SLAB,
	       "the budget of a slab has room for its records");

struct load {
	struct cfs_peer_block block;
	int fd;
	uint32_t *crcs;
	unsigned n_crcs;
};

TAILQ_HEAD(places, place);
LIST_HEAD(bucket, place);

struct cfs_rdma_pool {
	uint8_t *bytes;
	size_t size;

	/*
	 * Held for mapping and unmapping, and while d changes. Order: device, lock. The calls for any
	 * thread take the lock only, except for attach.
	 */
	pthread_mutex_t device;
	const struct cfs_rdma_ops *ops;
	struct cfs_rdma *d;

	pthread_mutex_t lock; /* protects the rest; not held for mapping memory and reading files */
	bool attached;
	unsigned n_attached; /* counts devices, so that a load for an earlier one is dropped */
	unsigned n_slabs, n_buckets;
	struct slab *slabs;
	TAILQ_HEAD(, slab) slabs_by_use; /* the least recently used one first */
	struct places free[SIZES], by_use[SIZES];
	struct bucket *index;
	uint32_t seen[SEEN]; /* hashes of blocks that were requested once */
	struct load loads[LOADS];
	unsigned first_load, n_loads;
	pthread_cond_t wake, ended;
	bool started, running, stop, orphan;
	struct cfs_rdma_pool_stats stats;
};

static bool is_same(const struct cfs_peer_block *a, const struct cfs_peer_block *b)
{
	return a->slice == b->slice && a->index == b->index && a->len == b->len;
}

static uint32_t hash_of(const struct cfs_peer_block *b)
{
	return cfs_crc_add(0, b, sizeof(*b)) | 1;
}

/* --- places --- */

/* The following are called under the lock. */

static struct bucket *bucket_of(struct cfs_rdma_pool *p, const struct cfs_peer_block *b)
{
	return &p->index[(hash_of(b) >> 1) % p->n_buckets];
}

static struct place *find(struct cfs_rdma_pool *p, const struct cfs_peer_block *b)
{
	struct place *e;

	LIST_FOREACH(e, bucket_of(p, b), indexed)
	if (is_same(&e->block, b))
		return e;
	return NULL;
}

static uint32_t place_bytes(unsigned size)
{
	return size == SIZES - 1 ? CFS_RDMA_SLAB : PLACE_MIN << size;
}

static uint8_t *bytes_of(struct cfs_rdma_pool *p, const struct place *e)
{
	return p->bytes + (size_t)(e->slab - p->slabs) * CFS_RDMA_SLAB +
	       (size_t)(e - e->slab->places) * place_bytes(e->slab->size);
}

static uint32_t bytes_with_table(uint32_t block_len)
{
	return cfs_rdma_table_off(block_len) + cfs_rdma_table_len(block_len);
}

static unsigned size_for(uint32_t block_len)
{
	unsigned size = 0;

	while (place_bytes(size) < bytes_with_table(block_len))
		size++;
	return size;
}

static void note_use(struct cfs_rdma_pool *p, struct place *e, uint64_t now_ms)
{
	struct slab *s = e->slab;

	e->used_ms = now_ms;
	s->used_ms = CFS_MAX(s->used_ms, now_ms);
	s->leased_until_ms = CFS_MAX(s->leased_until_ms, e->leased_until_ms);
	TAILQ_REMOVE(&p->by_use[s->size], e, by_use);
	TAILQ_INSERT_TAIL(&p->by_use[s->size], e, by_use);
	TAILQ_REMOVE(&p->slabs_by_use, s, by_use);
	TAILQ_INSERT_TAIL(&p->slabs_by_use, s, by_use);
}

/* Gives the place back, whose memory is not mapped. */
static void free_place(struct cfs_rdma_pool *p, struct place *e)
{
	LIST_REMOVE(e, indexed);
	e->state = PLACE_FREE;
	e->memory = NULL;
	e->leased_until_ms = 0;
	TAILQ_INSERT_HEAD(&p->free[e->slab->size], e, by_use);
}

/* The caller unmaps the memory, before the place has another block. */
static struct cfs_rdma_memory *evict(struct cfs_rdma_pool *p, struct place *e)
{
	struct cfs_rdma_memory *memory = e->memory;

	p->stats.blocks--;
	p->stats.bytes -= e->block.len;
	TAILQ_REMOVE(&p->by_use[e->slab->size], e, by_use);
	free_place(p, e);
	return memory;
}

/* Makes places of one size of a slab that has none. */
static int divide(struct cfs_rdma_pool *p, struct slab *s, unsigned size)
{
	unsigned i, n = CFS_RDMA_SLAB / place_bytes(size);

	s->places = calloc(n, sizeof(*s->places));
	if (!s->places)
		return -ENOMEM;
	s->size = size;
	s->n_places = n;
	for (i = 0; i < n; i++) {
		s->places[i].slab = s;
		TAILQ_INSERT_TAIL(&p->free[size], &s->places[i], by_use);
	}
	return 0;
}

/* The least recently used place of a size without a lease; NULL: none is near. */
static struct place *oldest_place(struct cfs_rdma_pool *p, unsigned size, uint64_t now_ms)
{
	struct place *e = TAILQ_FIRST(&p->by_use[size]);
	unsigned i;

	for (i = 0; e && i < LOOKED_AT && e->leased_until_ms > now_ms; i++)
		e = TAILQ_NEXT(e, by_use);
	return e && e->leased_until_ms <= now_ms ? e : NULL;
}

/* The same for slabs; one without a size comes first. */
static struct slab *oldest_slab(struct cfs_rdma_pool *p, uint64_t now_ms)
{
	struct slab *s = TAILQ_FIRST(&p->slabs_by_use);
	unsigned i;

	for (i = 0; s && i < LOOKED_AT; i++, s = TAILQ_NEXT(s, by_use))
		if (s->leased_until_ms <= now_ms && s->n_loading == 0)
			return s;
	return NULL;
}

/* --- the loading thread --- */

static void load_free(struct load *l)
{
	close(l->fd);
	free(l->crcs);
}

/* O_DIRECT reads may go beyond the block, up to the end of its last page. */
static int read_piece(int fd, uint8_t *to, uint32_t off, uint32_t len)
{
	while (len > 0) {
		ssize_t n =
			pread(fd, to + off, CFS_DIV_UP(len, CFS_RDMA_PAGE) * CFS_RDMA_PAGE, off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		n = CFS_MIN(n, (ssize_t)len);
		off += (uint32_t)n;
		len -= (uint32_t)n;
	}
	return 0;
}

static int load_bytes(const struct load *l, uint8_t *to, uint32_t *ret_table_crc)
{
	uint32_t len = l->block.len, off, i;
	uint8_t *table = to + cfs_rdma_table_off(len);
	int r;

	for (off = 0; off < len; off += CFS_PEER_SEGMENT) {
		uint32_t n = CFS_MIN(CFS_PEER_SEGMENT, len - off);

		if (off % PIECE == 0) {
			r = read_piece(l->fd, to, off, CFS_MIN(PIECE, len - off));
			if (r < 0)
				return r;
		}
		if (cfs_crc_add(0, to + off, n) != l->crcs[off / CFS_PEER_SEGMENT])
			return -EBADMSG;
	}
	for (i = 0; i < cfs_rdma_pages(len); i++) {
		off = i * CFS_RDMA_PAGE;
		cfs_put_be32(table + (size_t)i * 4,
			     cfs_crc_add(0, to + off, CFS_MIN(CFS_RDMA_PAGE, len - off)));
	}
	*ret_table_crc = cfs_crc_add(0, table, cfs_rdma_table_len(len));
	return 0;
}

/* With the device's lock and the lock, which is dropped meanwhile. */
static void unmap_all(struct cfs_rdma_pool *p, struct cfs_rdma_memory **memory, unsigned n)
{
	p->stats.evictions += n;
	pthread_mutex_unlock(&p->lock);
	while (n > 0)
		p->ops->unmap(p->d, memory[--n]);
	pthread_mutex_lock(&p->lock);
}

/* The same: evicts all blocks of a slab, which then has no size. */
static void clear_slab(struct cfs_rdma_pool *p, struct slab *s)
{
	struct cfs_rdma_memory *memory[PLACES_MAX];
	unsigned i, n = 0;

	for (i = 0; i < s->n_places; i++)
		if (s->places[i].state == PLACE_READY)
			memory[n++] = evict(p, &s->places[i]);
	for (i = 0; i < s->n_places; i++)
		TAILQ_REMOVE(&p->free[s->size], &s->places[i], by_use);
	free(s->places);
	s->places = NULL;
	s->n_places = 0;
	s->leased_until_ms = 0;
	unmap_all(p, memory, n);
}

/* With the device's lock and the lock, which is dropped meanwhile: a place that is free. */
static struct place *make_room(struct cfs_rdma_pool *p, unsigned size)
{
	uint64_t now_ms = cfs_now_ms();
	struct place *e = TAILQ_FIRST(&p->free[size]);
	struct cfs_rdma_memory *memory;
	struct slab *s;

	if (e)
		return e;
	e = oldest_place(p, size, now_ms);
	s = oldest_slab(p, now_ms);
	if (s && (!e || s->used_ms < e->used_ms)) {
		clear_slab(p, s);
		return divide(p, s, size) == 0 ? TAILQ_FIRST(&p->free[size]) : NULL;
	}
	if (!e)
		return NULL;
	memory = evict(p, e);
	unmap_all(p, &memory, 1);
	return e;
}

/* Takes a place for a block, which others find from now on, but do not read. */
static struct place *take_place(struct cfs_rdma_pool *p, const struct cfs_peer_block *b,
				unsigned *ret_attached)
{
	struct place *e = NULL;

	pthread_mutex_lock(&p->device);
	pthread_mutex_lock(&p->lock);
	if (p->d) {
		e = make_room(p, size_for(b->len));
		p->stats.no_room += e == NULL;
	}
	if (e) {
		TAILQ_REMOVE(&p->free[e->slab->size], e, by_use);
		e->state = PLACE_LOADING;
		e->block = *b;
		e->slab->n_loading++;
		LIST_INSERT_HEAD(bucket_of(p, b), e, indexed);
	}
	*ret_attached = p->n_attached;
	pthread_mutex_unlock(&p->lock);
	pthread_mutex_unlock(&p->device);
	return e;
}

/* The bytes are in the place, or r says why not. */
static void end_load(struct cfs_rdma_pool *p, struct place *e, unsigned attached, int r,
		     uint32_t table_crc)
{
	struct cfs_rdma_memory *memory = NULL;

	pthread_mutex_lock(&p->device);
	if (r == 0 && p->d && attached == p->n_attached) /* attach changes both with this lock */
		r = p->ops->map(p->d, bytes_of(p, e), bytes_with_table(e->block.len),
				CFS_RDMA_SHARED, &memory);
	else if (r == 0)
		r = -ENODEV;
	pthread_mutex_lock(&p->lock);
	e->slab->n_loading--;
	if (r == 0) {
		e->state = PLACE_READY;
		e->memory = memory;
		e->table_crc = table_crc;
		TAILQ_INSERT_TAIL(&p->by_use[e->slab->size], e, by_use);
		note_use(p, e, cfs_now_ms());
		p->stats.blocks++;
		p->stats.bytes += e->block.len;
		p->stats.loads++;
	} else {
		free_place(p, e);
		p->stats.load_failures++;
	}
	pthread_mutex_unlock(&p->lock);
	pthread_mutex_unlock(&p->device);
}

static void load(struct cfs_rdma_pool *p, struct load *l)
{
	uint32_t table_crc = 0;
	unsigned attached;
	struct place *e = take_place(p, &l->block, &attached);
	int r;

	if (!e)
		return;
	r = load_bytes(l, bytes_of(p, e), &table_crc);
	if (r < 0)
		cfs_debug("block cannot be loaded for RDMA: slice=%llu block=%u error=%s",
			  (unsigned long long)l->block.slice, l->block.index, cfs_errname(r));
	end_load(p, e, attached, r, table_crc);
}

static void pool_free(struct cfs_rdma_pool *p)
{
	unsigned i;

	for (i = 0; i < p->n_slabs; i++)
		free(p->slabs[i].places);
	munmap(p->bytes, p->size);
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->ended);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->device);
	free(p->slabs);
	free(p->index);
	free(p);
}

static void *load_blocks(void *arg)
{
	struct cfs_rdma_pool *p = arg;
	bool orphan;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		struct load l;

		if (p->n_loads == 0) {
			(void)cfs_cond_wait(&p->wake, &p->lock, cfs_deadline_in(60000));
			continue;
		}
		l = p->loads[p->first_load];
		p->first_load = (p->first_load + 1) % LOADS;
		p->n_loads--;
		pthread_mutex_unlock(&p->lock);
		load(p, &l);
		load_free(&l);
		pthread_mutex_lock(&p->lock);
	}
	p->running = false;
	orphan = p->orphan;
	pthread_cond_signal(&p->ended);
	pthread_mutex_unlock(&p->lock);
	if (orphan)
		pool_free(p);
	return NULL;
}

/* --- the contract's functions --- */

int cfs_rdma_pool_create(uint64_t bytes, struct cfs_rdma_pool **ret)
{
	struct cfs_rdma_pool *p;
	unsigned i;
	int r = -ENOMEM;

	if (bytes < CFS_RDMA_SLOT)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->n_slabs = (unsigned)CFS_MIN(bytes / CFS_RDMA_SLOT, SLABS_MAX);
	p->n_buckets = p->n_slabs * BUCKETS;
	p->size = (size_t)p->n_slabs * CFS_RDMA_SLAB;
	p->slabs = calloc(p->n_slabs, sizeof(*p->slabs));
	p->index = calloc(p->n_buckets, sizeof(*p->index));
	p->bytes = mmap(NULL, p->size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!p->slabs || !p->index || p->bytes == MAP_FAILED)
		goto fail;
	TAILQ_INIT(&p->slabs_by_use);
	for (i = 0; i < p->n_slabs; i++)
		TAILQ_INSERT_TAIL(&p->slabs_by_use, &p->slabs[i], by_use);
	for (i = 0; i < SIZES; i++) {
		TAILQ_INIT(&p->free[i]);
		TAILQ_INIT(&p->by_use[i]);
	}
	/* A child must not share pinned pages. Huge pages take fewer entries of the device's tables. */
	(void)madvise(p->bytes, p->size, MADV_DONTFORK);
	(void)madvise(p->bytes, p->size, MADV_HUGEPAGE);
	(void)madvise(p->bytes, p->size, MADV_DONTDUMP);
	r = cfs_cond_init(&p->wake);
	if (r < 0)
		goto fail;
	r = cfs_cond_init(&p->ended);
	if (r < 0) {
		pthread_cond_destroy(&p->wake);
		goto fail;
	}
	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_init(&p->device, NULL);
	*ret = p;
	return 0;
fail:
	if (p->bytes != MAP_FAILED)
		munmap(p->bytes, p->size);
	free(p->slabs);
	free(p->index);
	free(p);
	return r;
}

void cfs_rdma_pool_destroy(struct cfs_rdma_pool *p)
{
	cfs_deadline_t until = cfs_deadline_in(STOP_MS);
	bool running;

	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_signal(&p->wake);
	while (p->running && cfs_cond_wait(&p->ended, &p->lock, until) == 0)
		;
	while (p->n_loads > 0)
		load_free(&p->loads[(p->first_load + --p->n_loads) % LOADS]);
	running = p->running;
	p->orphan = running;
	pthread_mutex_unlock(&p->lock);
	if (!running)
		pool_free(p);
}

void cfs_rdma_pool_attach(struct cfs_rdma_pool *p, const struct cfs_rdma_ops *ops,
			  struct cfs_rdma *d)
{
	struct place *e;
	unsigned i;

	pthread_mutex_lock(&p->device);
	pthread_mutex_lock(&p->lock);
	for (i = 0; i < SIZES; i++)
		while ((e = TAILQ_FIRST(&p->by_use[i])))
			p->ops->unmap(p->d, evict(p, e));
	for (i = 0; i < p->n_slabs; i++)
		p->slabs[i].leased_until_ms = 0;
	p->ops = ops;
	p->d = d;
	p->attached = d != NULL;
	p->n_attached++;
	pthread_mutex_unlock(&p->lock);
	pthread_mutex_unlock(&p->device);
}

bool cfs_rdma_pool_grant(struct cfs_rdma_pool *p, const struct cfs_peer_block *b, uint64_t now_ms,
			 struct cfs_rdma_grant *ret)
{
	struct place *e;
	bool ready;
	CFS_LOCK_GUARD(&p->lock);

	e = find(p, b);
	ready = e && e->state == PLACE_READY;
	if (ready) {
		e->leased_until_ms = now_ms + CFS_RDMA_LEASE_MS + GRACE_MS;
		note_use(p, e, now_ms);
		*ret = (struct cfs_rdma_grant){
			.key = e->memory->key,
			.table_crc = e->table_crc,
			.lease_ms = CFS_RDMA_LEASE_MS,
		};
	}
	return ready;
}

/* Under the lock. False: no earlier request is known. */
static bool is_hot(struct cfs_rdma_pool *p, const struct cfs_peer_block *b)
{
	uint32_t hash = hash_of(b), *seen = &p->seen[hash % SEEN];
	bool hot = *seen == hash;

	*seen = hot ? 0 : hash;
	return hot;
}

/* Another descriptor of the file, with O_DIRECT where the file system supports that. */
static int open_again(int fd)
{
	char path[32];
	int direct;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	return direct >= 0 ? direct : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

/* Under the lock. */
static int start_thread(struct cfs_rdma_pool *p)
{
	pthread_t thread;
	int r;

	if (p->started)
		return 0;
	r = cfs_thread_start("cfs-rdma-load", load_blocks, p, &thread);
	if (r < 0)
		return r;
	pthread_detach(thread);
	p->started = p->running = true;
	return 0;
}

/* Under the lock. */
static bool is_queued(const struct cfs_rdma_pool *p, const struct cfs_peer_block *b)
{
	unsigned i;

	for (i = 0; i < p->n_loads; i++)
		if (is_same(&p->loads[(p->first_load + i) % LOADS].block, b))
			return true;
	return false;
}

/* Under the lock. */
static void queue_load(struct cfs_rdma_pool *p, struct load *l)
{
	if (start_thread(p) < 0) {
		load_free(l);
		return;
	}
	p->loads[(p->first_load + p->n_loads) % LOADS] = *l;
	p->n_loads++;
	pthread_cond_signal(&p->wake);
}

void cfs_rdma_pool_offer(struct cfs_rdma_pool *p, const struct cfs_peer_block *b, int fd,
			 const uint32_t *crcs, unsigned n_crcs)
{
	struct load l = {.block = *b, .n_crcs = n_crcs};

	if (b->len > CFS_RDMA_BLOCK_MAX || n_crcs != CFS_DIV_UP(b->len, CFS_PEER_SEGMENT))
		return;
	pthread_mutex_lock(&p->lock);
	if (p->attached && !p->stop && p->n_loads < LOADS && !find(p, b) && !is_queued(p, b) &&
	    is_hot(p, b)) {
		l.crcs = malloc(n_crcs * sizeof(*crcs));
		l.fd = l.crcs ? open_again(fd) : -1;
		if (l.fd < 0) {
			free(l.crcs);
		} else {
			memcpy(l.crcs, crcs, n_crcs * sizeof(*crcs));
			queue_load(p, &l);
		}
	}
	pthread_mutex_unlock(&p->lock);
}

void cfs_rdma_pool_stats(struct cfs_rdma_pool *p, struct cfs_rdma_pool_stats *ret)
{
	pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	pthread_mutex_unlock(&p->lock);
}

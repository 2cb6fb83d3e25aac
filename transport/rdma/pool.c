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
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "transport/wire/crc.h"

#define LOADS	 4 /* queued at a time */
#define SEEN	 4096
#define PIECE	 (256u << 10)
#define GRACE_MS 2000 /* between the end of a lease and eviction, at least */
#define STOP_MS	 2000

enum slot_state { SLOT_FREE, SLOT_LOADING, SLOT_READY };

struct slot {
	enum slot_state state;
	struct cfs_peer_block block;
	struct cfs_rdma_memory *memory;
	uint32_t table_crc;
	uint64_t used_ms, leased_until_ms;
};

struct load {
	struct cfs_peer_block block;
	int fd;
	uint32_t *crcs;
	unsigned n_crcs;
	struct slot *slot;
};

struct cfs_rdma_pool {
	uint8_t *bytes;
	size_t size;

	pthread_mutex_t
		lock; /* protects the rest; held for mapping memory, not for reading files */
	const struct cfs_rdma_ops *ops;
	struct cfs_rdma *d;
	unsigned attached; /* counts devices, so that a load for an earlier one is dropped */
	unsigned n_slots;
	struct slot *slots;
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

static struct slot *find(struct cfs_rdma_pool *p, const struct cfs_peer_block *b)
{
	unsigned i;

	for (i = 0; i < p->n_slots; i++)
		if (p->slots[i].state != SLOT_FREE && is_same(&p->slots[i].block, b))
			return &p->slots[i];
	return NULL;
}

static uint8_t *bytes_of(struct cfs_rdma_pool *p, const struct slot *s)
{
	return p->bytes + (size_t)(s - p->slots) * CFS_RDMA_SLOT;
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

/* Under the lock. */
static void loaded(struct cfs_rdma_pool *p, const struct load *l, unsigned attached, int r,
		   uint32_t table_crc)
{
	struct slot *s = l->slot;

	if (r == 0 && attached == p->attached && p->d)
		r = p->ops->map(p->d, bytes_of(p, s), CFS_RDMA_SLOT, CFS_RDMA_SHARED, &s->memory);
	else if (r == 0)
		r = -ENODEV;
	s->state = r == 0 ? SLOT_READY : SLOT_FREE;
	s->table_crc = table_crc;
	s->used_ms = cfs_now_ms();
	p->stats.loads += r == 0;
	p->stats.load_failures += r < 0;
}

static void pool_free(struct cfs_rdma_pool *p)
{
	munmap(p->bytes, p->size);
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->ended);
	pthread_mutex_destroy(&p->lock);
	free(p->slots);
	free(p);
}

static void *load_blocks(void *arg)
{
	struct cfs_rdma_pool *p = arg;
	bool orphan;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		uint32_t table_crc = 0;
		unsigned attached = p->attached;
		struct load l;
		int r;

		if (p->n_loads == 0) {
			(void)cfs_cond_wait(&p->wake, &p->lock, cfs_deadline_in(60000));
			continue;
		}
		l = p->loads[p->first_load];
		p->first_load = (p->first_load + 1) % LOADS;
		p->n_loads--;
		pthread_mutex_unlock(&p->lock);
		r = load_bytes(&l, bytes_of(p, l.slot), &table_crc);
		if (r < 0)
			cfs_debug("block cannot be loaded for RDMA: slice=%llu block=%u error=%s",
				  (unsigned long long)l.block.slice, l.block.index, cfs_errname(r));
		pthread_mutex_lock(&p->lock);
		loaded(p, &l, attached, r, table_crc);
		load_free(&l);
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
	int r = -ENOMEM;

	if (bytes < CFS_RDMA_SLOT)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->n_slots = (unsigned)CFS_MIN(bytes / CFS_RDMA_SLOT, 1u << 20);
	p->size = (size_t)p->n_slots * CFS_RDMA_SLOT;
	p->slots = calloc(p->n_slots, sizeof(*p->slots));
	p->bytes = mmap(NULL, p->size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!p->slots || p->bytes == MAP_FAILED)
		goto fail;
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
	*ret = p;
	return 0;
fail:
	if (p->bytes != MAP_FAILED)
		munmap(p->bytes, p->size);
	free(p->slots);
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
	unsigned i;

	pthread_mutex_lock(&p->lock);
	for (i = 0; i < p->n_slots; i++) {
		if (p->slots[i].state != SLOT_READY)
			continue;
		p->ops->unmap(p->d, p->slots[i].memory);
		p->slots[i].state = SLOT_FREE;
	}
	p->ops = ops;
	p->d = d;
	p->attached++;
	pthread_mutex_unlock(&p->lock);
}

bool cfs_rdma_pool_grant(struct cfs_rdma_pool *p, const struct cfs_peer_block *b, uint64_t now_ms,
			 struct cfs_rdma_grant *ret)
{
	struct slot *s;
	bool ready;

	pthread_mutex_lock(&p->lock);
	s = find(p, b);
	ready = s && s->state == SLOT_READY;
	if (ready) {
		s->used_ms = now_ms;
		s->leased_until_ms = now_ms + CFS_RDMA_LEASE_MS + GRACE_MS;
		*ret = (struct cfs_rdma_grant){
			.key = s->memory->key,
			.table_crc = s->table_crc,
			.lease_ms = CFS_RDMA_LEASE_MS,
		};
	}
	pthread_mutex_unlock(&p->lock);
	return ready;
}

/* Under the lock: a free slot, or else that of the least recently used block without a lease. */
static struct slot *take_slot(struct cfs_rdma_pool *p)
{
	uint64_t now_ms = cfs_now_ms();
	struct slot *best = NULL;
	unsigned i;

	for (i = 0; i < p->n_slots; i++) {
		struct slot *s = &p->slots[i];

		if (s->state == SLOT_FREE)
			return s;
		if (s->state == SLOT_READY && s->leased_until_ms <= now_ms &&
		    (!best || s->used_ms < best->used_ms))
			best = s;
	}
	if (!best)
		return NULL;
	p->ops->unmap(p->d, best->memory);
	best->state = SLOT_FREE;
	p->stats.evictions++;
	return best;
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
static void queue_load(struct cfs_rdma_pool *p, struct load *l)
{
	l->slot = take_slot(p);
	if (!l->slot || start_thread(p) < 0) {
		load_free(l);
		return;
	}
	l->slot->state = SLOT_LOADING;
	l->slot->block = l->block;
	l->slot->leased_until_ms = 0;
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
	if (p->d && !p->stop && p->n_loads < LOADS && !find(p, b) && is_hot(p, b)) {
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
	unsigned i;

	pthread_mutex_lock(&p->lock);
	*ret = p->stats;
	for (i = 0; i < p->n_slots; i++)
		ret->blocks += p->slots[i].state == SLOT_READY;
	pthread_mutex_unlock(&p->lock);
}

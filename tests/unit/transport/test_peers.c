/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a cache group: a block store that serves a member which asks. When these fail
 * a block is fetched once per reader, others take the memory of this mount, or a mount that ends
 * crashes while it is being asked.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cachefs/disk.h>
#include <cachefs/peers.h>

#include "base/bytes.h"
#include "group_fixture.h"
#include "peer_fixture.h"
#include "unit/metric.h"

#define MIB	((uint64_t)1 << 20)
#define THREADS 12
#define OWNER	1
#define ASKER	2
#define SECOND	3

static uint8_t byte_at(uint64_t slice, uint32_t off)
{
	return (uint8_t)((slice * 2654435761u + off) >> 5);
}

/* ---- an object store that has every block, and takes its time ---- */

static struct bucket {
	struct cfs_object_store base;
	_Atomic unsigned gets;
	_Atomic int pause_ms;
	_Atomic uint64_t held;	   /* a slice whose GETs do not end */
	_Atomic unsigned together; /* others end when so many have begun */
} bucket;

static ssize_t bucket_get(struct cfs_object_store *o, const char *key, uint64_t off,
			  const struct iovec *dst, int n_dst, cfs_deadline_t deadline)
{
	const char *name = strrchr(key, '/') + 1;
	uint64_t slice = strtoull(name, NULL, 10), len = strtoull(strrchr(name, '_') + 1, NULL, 10);
	ssize_t got = 0;
	size_t k;
	int i;

	bucket.gets++;
	if (bucket.pause_ms)
		poll(NULL, 0, bucket.pause_ms);
	if (slice == bucket.held)
		WAIT_FOR(bucket.held != slice);
	else
		WAIT_FOR(bucket.gets >= bucket.together);
	for (i = 0; i < n_dst; i++) {
		for (k = 0; k < dst[i].iov_len && off < len; k++, off++, got++)
			((uint8_t *)dst[i].iov_base)[k] = byte_at(slice, (uint32_t)off);
	}
	return got;
}

static int bucket_put(struct cfs_object_store *o, const char *key, const struct iovec *src,
		      int n_src, unsigned tier, cfs_deadline_t deadline)
{
	return 0;
}

static const struct cfs_object_ops bucket_ops = {
	.name = "bucket", .get = bucket_get, .put = bucket_put};

/* ---- an owner and one who asks ---- */

static struct registry registry;
static struct cfs_pool *pool;
static struct cfs_store *store;
static struct cfs_peers *peers;
static struct cfs_group *other;
static struct cfs_disk *disk; /* or NULL */
static char disk_dir[64];
static unsigned replicas = 1;

static void refuse_all(void *arg, struct cfs_peer_request *req)
{
	cfs_peer_answer(req, &(struct cfs_peer_answer){.err = -ENOENT, .fd = -1});
}

static const struct cfs_peer_serve_ops no_blocks = {.get = refuse_all};

/* Requests that are answered when the test likes to. */
static struct {
	struct cfs_peer_request *v[64];
	_Atomic unsigned n;
} late;

static void answer_later(void *arg, struct cfs_peer_request *req)
{
	late.v[late.n++] = req;
}

static const struct cfs_peer_serve_ops late_blocks = {.get = answer_later};

/* As a member without a disk cache. */
static bool keeps_nothing(void *arg)
{
	(void)arg;
	return false;
}

static struct cfs_group_conf group_conf(uint64_t member, unsigned weight)
{
	return (struct cfs_group_conf){
		.name = "team",
		.member = member,
		.weight = weight,
		.replicas = replicas,
		.address = "127.0.0.1",
		.heartbeat_ms = 100,
		.timeout_ms = LONG_MS,
		.keeps = keeps_nothing,
		.registry = {.put = registry_put,
			     .swap = registry_swap,
			     .drop = registry_drop,
			     .get = registry_get,
			     .each = registry_each,
			     .arg = &registry},
		.ops = &no_blocks,
	};
}

static unsigned members_seen(struct cfs_group *g)
{
	struct cfs_group_stats s;

	cfs_group_stats(g, &s);
	return s.members;
}

/* Takes one block at a time. */
static void open_disk(void)
{
	struct cfs_disk_conf conf = {.pool = pool,
				     .dirs = disk_dir,
				     .uuid = "5ad22e7b-6d15-4b2b-8b6e-4c1ad4a9c0de",
				     .block_size = BLOCK,
				     .size = 1024 * MIB,
				     .pending_max = 1};
	char err[256];

	assert_int_equal(cfs_disk_create(&conf, &disk, err), 0);
	assert_int_equal(cfs_store_add_tier(store, &cfs_disk_tier, disk), 0);
}

static void close_disk(void)
{
	char command[96];

	cfs_disk_destroy(disk);
	disk = NULL;
	snprintf(command, sizeof(command), "rm -rf '%s'", disk_dir);
	assert_int_equal(system(command), 0);
	disk_dir[0] = '\0';
}

static void set_up_both(uint64_t budget, bool fill, struct cfs_group_conf asking)
{
	struct cfs_store_conf conf = {.object = &bucket.base,
				      .volume = "vol",
				      .block_size = BLOCK,
				      .max_downloads = 4,
				      .get_timeout_ms = LONG_MS,
				      .cache_large_write = fill};
	struct cfs_peers_conf owner = {.group = group_conf(OWNER, 100), .fill = fill};
	char err[256];

	registry_open(&registry);
	bucket.base.ops = &bucket_ops;
	bucket.gets = 0;
	bucket.pause_ms = 0;
	bucket.held = bucket.together = 0;
	assert_int_equal(cfs_pool_create(budget, &pool), 0);
	conf.pool = pool;
	assert_int_equal(cfs_store_create(&conf, &store), 0);
	if (disk_dir[0])
		open_disk();
	owner.disk = disk;
	owner.store = store;
	assert_int_equal(cfs_peers_join(&owner, &peers, err), 0);
	assert_int_equal(cfs_group_join(&asking, &other, err), 0);
	WAIT_FOR(members_seen(other) == 2 && members_seen(cfs_peers_group(peers)) == 2);
}

static void set_up(uint64_t budget)
{
	set_up_both(budget, false, group_conf(ASKER, 0));
}

static void end_owner(void)
{
	struct cfs_pool_stats st;
	int i;

	cfs_peers_leave(peers);
	cfs_store_destroy(store);
	cfs_peers_destroy(peers);
	if (disk)
		close_disk();
	cfs_pool_stats(pool, &st);
	for (i = 0; i < CFS_USE_COUNT; i++)
		assert_int_equal(st.used[i], 0);
	cfs_pool_destroy(pool);
}

static void end_asker(void)
{
	cfs_group_leave(other);
	cfs_group_destroy(other);
	registry_close(&registry);
}

struct reading {
	pthread_t thread;
	uint64_t first, last; /* slices */
	uint32_t off, len;
	atomic_bool *stop; /* NULL: once */
	unsigned good, refused, wrong;
};

static void read_one(struct reading *r, uint64_t slice, uint8_t *got)
{
	struct cfs_peer_block b = {.slice = slice, .len = BLOCK};
	struct iovec dst = {.iov_base = got, .iov_len = r->len};
	ssize_t n = cfs_group_read(other, &b, r->off, r->len, &dst, 1, false, NULL, soon());
	uint32_t i;

	if (n == (ssize_t)r->len) {
		for (i = 0; i < r->len && got[i] == byte_at(slice, r->off + i); i += 61)
			;
		if (i >= r->len)
			r->good++;
		else
			r->wrong++;
	} else if (n == -ENOENT) {
		r->refused++;
	} else {
		r->wrong++;
	}
}

static void *run_reading(void *arg)
{
	struct reading *r = arg;
	uint8_t *got = malloc(r->len);
	uint64_t slice;

	do {
		for (slice = r->first; slice <= r->last; slice++)
			read_one(r, slice, got);
	} while (r->stop && !*r->stop);
	free(got);
	return NULL;
}

static void start_reading(struct reading *r)
{
	assert_int_equal(pthread_create(&r->thread, NULL, run_reading, r), 0);
}

/* However many ask for however little of a block, it is fetched once. */
static void test_one_fetch_for_all(void **state)
{
	struct reading r[THREADS] = {0};
	unsigned i;

	set_up(64 * MIB);
	bucket.pause_ms = 50;
	for (i = 0; i < THREADS; i++) {
		r[i] = (struct reading){
			.first = 7, .last = 7, .off = i * 300000, .len = i % 2 ? 5000 : 200000};
		start_reading(&r[i]);
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(r[i].thread, NULL);
		assert_int_equal(r[i].good, 1);
	}
	assert_int_equal(bucket.gets, 1);
	end_owner();
	end_asker();
}

/* A mount with little memory is taken over by those who ask it. */
static void test_reserved_memory_is_bounded(void **state)
{
	struct cfs_block own = {.slice = 1000, .len = BLOCK};
	struct reading r[THREADS] = {0};
	struct cfs_segs segs;
	unsigned i, k;

	set_up(16 * MIB);
	bucket.pause_ms = 5;
	for (i = 0; i < THREADS; i++) {
		r[i] = (struct reading){.first = 1 + i, .last = 4 + i, .len = BLOCK};
		start_reading(&r[i]);
	}
	for (k = 0; k < 4; k++, own.slice++) { /* its own reads go on */
		cfs_segs_init(&segs);
		assert_int_equal(cfs_store_read(store, &own, 0, BLOCK, soon(), &segs), 0);
		cfs_segs_release(&segs);
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(r[i].thread, NULL);
		assert_int_equal(r[i].wrong, 0);
		assert_int_equal(r[i].good + r[i].refused, 4);
	}
	end_owner();
	end_asker();
}

/* A cache disk that is slower than the bucket: the next one who asks has a block fetched again. */
static void test_what_others_fetch_is_kept(void **state)
{
	struct reading r[THREADS] = {0};
	unsigned i;

	snprintf(disk_dir, sizeof(disk_dir), "/tmp/cachefs-peers.XXXXXX");
	assert_non_null(mkdtemp(disk_dir));
	set_up(64 * MIB);
	for (i = 0; i < THREADS; i++) {
		r[i] = (struct reading){.first = 1 + 4 * i, .last = 4 + 4 * i, .len = 4096};
		start_reading(&r[i]);
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(r[i].thread, NULL);
		assert_int_equal(r[i].good, 4);
	}
	WAIT_FOR(metric_of(&cfs_store_metrics, store, "disk_cache_pending_bytes", NULL) == 0);
	assert_int_equal(metric_of(&cfs_disk_metrics, disk, "disk_cache_blocks", NULL),
			 4 * THREADS);
	assert_int_equal(bucket.gets, 4 * THREADS);
	end_owner();
	end_asker();
}

static void *read_own(void *arg)
{
	const struct cfs_block *own = arg;
	struct cfs_segs segs;

	cfs_segs_init(&segs);
	assert_int_equal(cfs_store_read(store, own, 0, BLOCK, soon(), &segs), 0);
	cfs_segs_release(&segs);
	return NULL;
}

/*
 * With little memory, own blocks that are fetched at one time are dropped while the disk cache is
 * at another one, and while a block is fetched for another member; who asks for them next has them
 * fetched again.
 */
static void test_own_blocks_are_kept_in_little_memory(void **state)
{
	struct reading r = {.first = 1, .last = 1, .len = 4096};
	struct cfs_block own[3];
	pthread_t threads[3];
	unsigned i;

	snprintf(disk_dir, sizeof(disk_dir), "/tmp/cachefs-peers.XXXXXX");
	assert_non_null(mkdtemp(disk_dir));
	set_up(24 * MIB);
	bucket.held = r.first;
	start_reading(&r);
	WAIT_FOR(bucket.gets == 1);
	bucket.together = 4;
	for (i = 0; i < 3; i++) {
		own[i] = (struct cfs_block){.slice = 2 + i, .len = BLOCK};
		assert_int_equal(pthread_create(&threads[i], NULL, read_own, &own[i]), 0);
	}
	for (i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	WAIT_FOR(metric_of(&cfs_disk_metrics, disk, "disk_cache_blocks", NULL) == 3);
	bucket.held = 0;
	pthread_join(r.thread, NULL);
	WAIT_FOR(metric_of(&cfs_disk_metrics, disk, "disk_cache_blocks", NULL) == 4);
	r.last = 4;
	run_reading(&r);
	assert_int_equal(r.good, 1 + 4);
	assert_int_equal(bucket.gets, 4);
	end_owner();
	end_asker();
}

/* Unmounting a member that is being asked waits for ever, or crashes. */
static void test_leaving_while_asked(void **state)
{
	struct reading r[THREADS] = {0};
	atomic_bool stop = false;
	unsigned i, good = 0;

	set_up(64 * MIB);
	bucket.pause_ms = 10;
	for (i = 0; i < THREADS; i++) {
		r[i] = (struct reading){.first = 1 + i,
					.last = 1000,
					.len = i % 2 ? BLOCK / 4 : 4096,
					.stop = &stop};
		start_reading(&r[i]);
	}
	WAIT_FOR(bucket.gets > 20);
	end_owner();
	WAIT_FOR(members_seen(other) == 1);
	stop = true;
	for (i = 0; i < THREADS; i++) {
		pthread_join(r[i].thread, NULL);
		assert_int_equal(r[i].wrong, 0);
		good += r[i].good;
	}
	assert_true(good > 0);
	end_asker();
}

/* cache map says that a block is cached which is not, or the other way round. */
static void test_map_tells_what_is_cached(void **state)
{
	struct cfs_block b = {.slice = 3, .len = BLOCK};
	uint64_t owners[CFS_GROUP_REPLICAS_MAX];
	int cached[CFS_GROUP_REPLICAS_MAX];
	struct reading r = {.first = 3, .last = 3, .len = 4096};

	set_up(64 * MIB);
	assert_int_equal(cfs_peers_map(peers, &b, owners, cached, soon()), 1);
	assert_int_equal(owners[0], OWNER);
	assert_int_equal(cached[0], 0);
	start_reading(&r);
	pthread_join(r.thread, NULL);
	assert_int_equal(r.good, 1);
	cfs_peers_map(peers, &b, owners, cached, soon());
	assert_int_equal(cached[0], 1);
	end_owner();
	end_asker();
}

/* A mount that writes for one who is slow to fetch it serves nobody; two of them wait for each
 * other. */
static void test_serves_while_it_fills(void **state)
{
	struct cfs_group_conf slow = group_conf(ASKER, 100);
	struct cfs_block b = {.len = BLOCK};
	struct reading r = {.len = 4096};
	struct cfs_segs data;
	unsigned i;

	cfs_segs_init(&data);
	assert_int_equal(cfs_segs_add_zeros(&data, BLOCK), 0);
	late.n = 0;
	slow.ops = &late_blocks;
	set_up_both(64 * MIB, true, slow);
	for (b.slice = 1; late.n < 8 && b.slice < 60; b.slice++) {
		struct cfs_peer_block pb = {.slice = b.slice, .len = BLOCK};

		if (cfs_group_owns(cfs_peers_group(peers), &pb))
			r.first = r.last = b.slice;
		else
			assert_int_equal(cfs_store_put_sync(store, &b, &data, soon()), 0);
	}
	WAIT_FOR(late.n >= 8);
	cfs_segs_release(&data);
	cfs_store_forget(store, &(struct cfs_block){.slice = r.first, .len = BLOCK});
	start_reading(&r);
	pthread_join(r.thread, NULL);
	for (i = 0; i < late.n; i++)
		refuse_all(NULL, late.v[i]);
	assert_int_equal(r.good, 1);
	end_owner();
	end_asker();
}

static void refuse_busy(void *arg, struct cfs_peer_request *req)
{
	cfs_peer_answer(req, &(struct cfs_peer_answer){.err = -EBUSY, .fd = -1});
}

static const struct cfs_peer_serve_ops busy_blocks = {.get = refuse_busy};

static bool is_on_disk(const struct cfs_block *b)
{
	struct cfs_store_held held;

	cfs_store_held(store, b, 0, b->len, &held);
	return held.disk == b->len;
}

/* Whether it was quick: a refusal on a busy machine may be late. */
static bool fetch_quickly(const struct cfs_block *b, uint32_t len)
{
	const struct cfs_pattern pattern = {.random = len < b->len};
	uint64_t start_ms = cfs_now_ms();
	enum cfs_source source;
	struct cfs_segs segs;

	cfs_segs_init(&segs);
	assert_int_equal(cfs_store_fetch(store, b, 0, len, pattern, soon(), NULL, &segs, &source),
			 0);
	cfs_segs_release(&segs);
	return cfs_now_ms() - start_ms < 100;
}

/*
 * Reads of blocks whose owner refuses them at once, as one with a hung disk does, are each a GET
 * where no other member would be asked for them.
 */
static void test_refused_blocks_are_kept(void **state)
{
	struct cfs_group_conf busy = group_conf(ASKER, 100);
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	unsigned quick[2] = {0};

	snprintf(disk_dir, sizeof(disk_dir), "/tmp/cachefs-peers.XXXXXX");
	assert_non_null(mkdtemp(disk_dir));
	busy.ops = &busy_blocks;
	busy.keeps = NULL;
	set_up_both(64 * MIB, false, busy);
	for (; b.slice < 200 && (quick[0] < 2 || quick[1] < 2); b.slice++) {
		const struct cfs_peer_block pb = {.slice = b.slice, .len = BLOCK};
		bool part = b.slice % 2;

		if (cfs_group_owns(cfs_peers_group(peers), &pb) ||
		    !fetch_quickly(&b, part ? 4096 : BLOCK))
			continue;
		quick[part]++;
		WAIT_FOR(is_on_disk(&b));
	}
	assert_true(quick[0] > 0 && quick[1] > 0);
	end_owner();
	end_asker();
}

static struct {
	struct cfs_group *group;
	_Atomic unsigned hints;
} second;

static void count_warm(void *arg, uint64_t from, const struct cfs_peer_block *b,
		       enum cfs_peer_hint hint)
{
	second.hints += hint == CFS_PEER_WARM;
}

static const struct cfs_peer_serve_ops second_ops = {.get = refuse_all, .hint = count_warm};

static void set_up_replicas(void)
{
	struct cfs_group_conf conf;
	char err[256];

	replicas = 2;
	set_up(64 * MIB);
	conf = group_conf(SECOND, 100);
	conf.ops = &second_ops;
	second.hints = 0;
	assert_int_equal(cfs_group_join(&conf, &second.group, err), 0);
	WAIT_FOR(members_seen(other) == 3 && members_seen(cfs_peers_group(peers)) == 3);
	replicas = 1;
}

/* The first one from there on that the store owns before the other member. */
static uint64_t first_owned(uint64_t slice)
{
	uint64_t owners[CFS_GROUP_REPLICAS_MAX];
	int cached[CFS_GROUP_REPLICAS_MAX];

	for (;; slice++) {
		struct cfs_block b = {.slice = slice, .len = BLOCK};

		assert_int_equal(cfs_peers_map(peers, &b, owners, cached, soon()), 2);
		if (owners[0] == OWNER)
			return slice;
	}
}

/* From there to the end of the block, in parts; scattered: not in their order. */
static void read_block(uint64_t slice, uint32_t from, uint32_t part, bool scattered)
{
	struct reading r = {.first = slice, .last = slice, .len = part};
	unsigned i, n = (BLOCK - from) / part;

	for (i = 0; i < n; i++) {
		r.off = from + (scattered ? 7 * i % n : i) * part;
		run_reading(&r);
	}
	assert_int_equal(r.good, n);
}

/*
 * A popular block has one owner for ever, as its reader has a part of it in memory; or one read of
 * a block has it copied, as that is many requests.
 */
static void test_popular_blocks_are_copied(void **state)
{
	static const struct {
		uint32_t from, part;
		bool scattered;
	} reads[] = {
		{0, BLOCK, false},	  {0, BLOCK / 16, false},
		{0, BLOCK / 16, true},	  {BLOCK / 4, BLOCK / 4, false},
		{BLOCK / 2, 4096, false}, {BLOCK - 4096, 4096, false},
	};
	unsigned i, k;
	uint64_t slice = 0;

	set_up_replicas();
	for (i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
		slice = first_owned(slice + 1);
		for (k = 0; k < 2; k++)
			read_block(slice, reads[i].from, reads[i].part, reads[i].scattered);
		assert_int_equal(second.hints, i);
		read_block(slice, reads[i].from, reads[i].part, reads[i].scattered);
		WAIT_FOR(second.hints == i + 1);
	}
	/* One that goes on being read in small parts: 3 passes more, then 6, 12, 24, 48. */
	slice = first_owned(slice + 1);
	for (k = 0; k < 100; k++)
		read_block(slice, BLOCK - 4096, 4096, false);
	WAIT_FOR(second.hints == i + 5);
	for (k = 0; k < 80; k++)
		read_block(slice, BLOCK - 4096, 4096, false);
	assert_int_equal(second.hints, i + 5);
	cfs_group_leave(second.group);
	cfs_group_destroy(second.group);
	end_owner();
	end_asker();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_fetch_for_all),
		cmocka_unit_test(test_reserved_memory_is_bounded),
		cmocka_unit_test(test_what_others_fetch_is_kept),
		cmocka_unit_test(test_own_blocks_are_kept_in_little_memory),
		cmocka_unit_test(test_leaving_while_asked),
		cmocka_unit_test(test_map_tells_what_is_cached),
		cmocka_unit_test(test_serves_while_it_fills),
		cmocka_unit_test(test_refused_blocks_are_kept),
		cmocka_unit_test(test_popular_blocks_are_copied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

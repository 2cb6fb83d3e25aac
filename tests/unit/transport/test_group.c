/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache groups: the owners of blocks, and the members that a read asks. Each test says which loss its failure means;
 * in all of them a read that a member answers has right bytes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "member_fixture.h"

#define BLOCKS	 64
#define FETCH_MS 8000

/* ---- waiting for the bucket ---- */

struct read {
	struct member *m;
	uint64_t slice;
	cfs_deadline_t deadline;
	ssize_t result;
	uint64_t ended_ms;
};

static void *run_read(void *arg)
{
	struct read *r = arg;

	r->result = read_by(r->m, r->slice, r->deadline);
	r->ended_ms = cfs_now_ms();
	return NULL;
}

/*
 * An owner fetches for nearly all the time that the reader has. A bucket that is as slow for the
 * reader is asked for the block again, over the same line; or an owner that says that it fetches
 * and does not costs the reader all of its time.
 */
static void test_an_owner_that_fetches_until_the_end(void **state)
{
	enum { READERS = 3, OWNER = READERS };
	static const struct {
		uint64_t bucket_us; /* for 128 KiB */
		bool waits;
	} cases[READERS] = {{0, false}, {1000, false}, {60 * 1000 * 1000, true}};
	struct cfs_group_conf conf = {.weight = 100, .timeout_ms = FETCH_MS / 4};
	struct read read[READERS];
	pthread_t readers[READERS];
	struct registry r;
	struct member m[READERS + 1];
	uint64_t start_ms;
	unsigned i;

	registry_open(&r);
	for (i = 0; i <= READERS; i++)
		join_as(&m[i], &r, i + 1, conf);
	for (i = 0; i <= READERS; i++)
		WAIT_FOR(seen_by(&m[i]) == READERS + 1);
	m[OWNER].works = true;
	start_ms = cfs_now_ms();
	for (i = 0; i < READERS; i++) {
		m[i].bucket_us = cases[i].bucket_us;
		read[i] = (struct read){.m = &m[i],
					.slice = block_of(&m[i], OWNER + 1),
					.deadline = start_ms + FETCH_MS};
		assert_int_equal(pthread_create(&readers[i], NULL, run_read, &read[i]), 0);
	}
	WAIT_FOR(m[OWNER].n_held == READERS);
	WAIT_FOR(cfs_now_ms() >= start_ms + FETCH_MS / 32 * 29);
	for (i = 0; i < READERS; i++)
		send_all(m[OWNER].held[i]);
	for (i = 0; i < READERS; i++) {
		pthread_join(readers[i], NULL);
		assert_int_equal(read[i].result, cases[i].waits ? RANGE : -ENOENT);
		assert_true(read[i].ended_ms < read[i].deadline);
	}
	for (i = 0; i <= READERS; i++)
		part(&m[i]);
	registry_close(&r);
}

/* ---- reads that no thread waits for ---- */

#define BUSY 4 /* requests under way */

struct started {
	struct cfs_async async; /* first */
	unsigned kept;
	int err;
	_Atomic bool ended;
};

static struct cfs_async *keep(struct cfs_async *a)
{
	((struct started *)a)->kept++;
	return a;
}

static void note_end(struct cfs_async *a, int err)
{
	struct started *s = (struct started *)a;

	s->err = err;
	s->ended = true;
}

static int start(struct member *m, struct started *s, struct cfs_page *page, uint64_t slice)
{
	struct cfs_peer_block b = block(slice);

	*s = (struct started){
		.async = {.keep = keep, .done = note_end, .page = page, .len = RANGE}};
	memset(page->data, 0, RANGE);
	return cfs_group_start(m->g, &b, 0, &s->async);
}

static void end_well(struct started *s, uint64_t slice)
{
	uint32_t i;

	WAIT_FOR(s->ended);
	assert_int_equal(s->err, 0);
	for (i = 0; i < RANGE; i++)
		assert_int_equal(((uint8_t *)s->async.page->data)[i], byte_at(slice, i));
}

/*
 * Only an owner that has several requests under way and answers promptly is asked without a thread:
 * otherwise one reader would be slower, or reads that could be sent elsewhere would wait for it. A
 * failure is left to the reader, which repeats the read, and is no failure of the peer.
 */
static void test_reads_without_a_thread(void **state)
{
	struct cfs_group_conf conf = {.weight = 100};
	struct read read[BUSY];
	pthread_t readers[BUSY];
	struct cfs_pool *pool;
	struct cfs_page *page;
	struct started s;
	struct registry r;
	struct member a, b;
	uint64_t slice, hits, start_ms;
	unsigned i;

	assert_int_equal(cfs_pool_create(8 << 20, &pool), 0);
	assert_int_equal(cfs_page_get(pool, RANGE, CFS_USE_READ, 0, &page), 0);
	registry_open(&r);
	join_as(&a, &r, 1, conf);
	join_as(&b, &r, 2, conf);
	WAIT_FOR(seen_by(&a) == 2 && seen_by(&b) == 2);
	slice = block_of(&a, 2);
	assert_int_equal(read_from(&a, slice), RANGE);
	assert_int_equal(start(&a, &s, page, slice), -EAGAIN);
	assert_int_equal(s.kept, 0);

	b.works = true;
	for (i = 0; i < BUSY; i++) {
		read[i] = (struct read){.m = &a, .slice = slice, .deadline = soon()};
		assert_int_equal(pthread_create(&readers[i], NULL, run_read, &read[i]), 0);
	}
	WAIT_FOR(b.n_held == BUSY);
	b.works = false;
	hits = stats(&a).hits;
	for (i = 0; i < 100; i++) {
		assert_int_equal(start(&a, &s, page, slice), 0);
		end_well(&s, slice);
		assert_int_equal(s.kept, 1);
	}
	assert_int_equal(stats(&a).hits - hits, 100);
	assert_int_equal(stats(&a).async, 100);
	assert_int_equal(stats(&a).async_repeats, 0);
	assert_int_equal(start(&a, &s, page, block_of(&a, 1)), -EAGAIN); /* an own block */

	/* It says that it fetches the block: after 20 ms, long before the request is late. */
	b.works = true;
	start_ms = cfs_now_ms();
	assert_int_equal(start(&a, &s, page, slice), 0);
	WAIT_FOR(s.ended);
	assert_int_equal(s.err, -ECANCELED);
	printf("given up after %u ms\n", (unsigned)(cfs_now_ms() - start_ms));
	assert_int_equal(start(&a, &s, page, slice), -EAGAIN);
	b.works = false;
	WAIT_FOR(start(&a, &s, page, slice) == 0);
	end_well(&s, slice);

	b.busy = true;
	assert_int_equal(start(&a, &s, page, slice), 0);
	WAIT_FOR(s.ended);
	assert_int_equal(s.err, -EBUSY);
	b.busy = false;
	assert_int_equal(stats(&a).async_repeats, 2);
	assert_int_equal(look(&a, 2).m.state, CFS_PEER_CLOSED_CIRCUIT);
	for (i = 0; i < BUSY; i++)
		send_all(b.held[i]);
	for (i = 0; i < BUSY; i++) {
		pthread_join(readers[i], NULL);
		assert_int_equal(read[i].result, RANGE);
	}
	send_all(b.held[BUSY]);
	part(&a);
	part(&b);
	registry_close(&r);
	cfs_page_unref(page);
	cfs_pool_destroy(pool);
}

/* ---- coming and going ---- */

/* Members disagree on whose a block is, or a leaver moves more than its share. */
static void test_join_and_leave(void **state)
{
	struct registry r;
	struct member m[3];
	uint64_t before[BLOCKS], i;

	registry_open(&r);
	for (i = 0; i < 3; i++)
		join(&m[i], &r, i + 1);
	for (i = 0; i < 3; i++)
		WAIT_FOR(seen_by(&m[i]) == 3);
	for (i = 0; i < BLOCKS; i++) {
		before[i] = owner_of(&m[0], i);
		assert_int_equal(owner_of(&m[1], i), before[i]);
		assert_int_equal(owner_of(&m[2], i), before[i]);
		if (before[i] != 1)
			assert_int_equal(read_from(&m[0], i), RANGE);
		else
			assert_int_equal(read_from(&m[0], i), -ENOENT);
	}
	assert_int_equal(stats(&m[0]).fallbacks, 0);
	part(&m[2]);
	assert_int_equal(registry_members(&r), 2);
	WAIT_FOR(seen_by(&m[0]) == 2 && seen_by(&m[1]) == 2);
	for (i = 0; i < BLOCKS; i++)
		assert_true(before[i] == 3 || owner_of(&m[0], i) == before[i]);
	join(&m[2], &r, 3);
	WAIT_FOR(seen_by(&m[0]) == 3);
	for (i = 0; i < BLOCKS; i++)
		assert_int_equal(owner_of(&m[0], i), before[i]);
	for (i = 0; i < 3; i++)
		part(&m[i]);
	assert_int_equal(r.n, 1); /* the key */
	registry_close(&r);
}

/* The transport's thread is the last that uses a member, and waits for itself: all requests hang. */
static void test_a_member_leaves_while_the_transport_looks(void **state)
{
	struct cfs_group_conf conf = {.weight = 100, .replicas = 2};
	struct member a, b, c;
	struct registry r;
	struct read read;
	pthread_t reader;
	unsigned i, gets;

	registry_open(&r);
	join_as(&a, &r, 1, conf);
	join_as(&b, &r, 2, conf);
	for (i = 0; i < 5; i++) {
		join_as(&c, &r, 3, conf);
		WAIT_FOR(seen_by(&a) == 3 && seen_by(&b) == 3);
		read = (struct read){.m = &b, .slice = block_of(&b, 1), .deadline = soon()};
		gets = a.gets;
		a.expected = 2;
		assert_int_equal(pthread_create(&reader, NULL, run_read, &read), 0);
		WAIT_FOR(a.gets > gets);
		part(&c);
		pthread_join(reader, NULL);
		assert_int_equal(read.result, RANGE);
		a.expected = 0;
	}
	part(&a);
	part(&b);
	registry_close(&r);
}

/* A member that dies stays an owner, or one that was only slow is never used again. */
static void test_heartbeat_stops(void **state)
{
	struct registry r;
	struct member a, b;
	uint64_t of_b;

	registry_open(&r);
	join(&a, &r, 1);
	join(&b, &r, 2);
	WAIT_FOR(seen_by(&a) == 2);
	of_b = block_of(&a, 2);
	b.silent = true;
	WAIT_FOR(seen_by(&a) == 1);
	assert_int_equal(owner_of(&a, of_b), 1);
	assert_int_equal(look(&a, 2).n, 0);
	b.silent = false;
	WAIT_FOR(seen_by(&a) == 2);
	assert_int_equal(owner_of(&a, of_b), 2);
	assert_int_equal(read_from(&a, of_b), RANGE);
	part(&a);
	part(&b);
	registry_close(&r);
}

/* Two mounts with one id fight for its record, and the others change their mind at every heartbeat. */
static void test_one_id_twice(void **state)
{
	struct registry r;
	struct member a, b, c, *stays, *leaves;
	uint64_t of_1;

	registry_open(&r);
	join(&a, &r, 1);
	join(&c, &r, 2);
	join(&b, &r, 1);
	WAIT_FOR(!cfs_group_shares(a.g) || !cfs_group_shares(b.g));
	stays = cfs_group_shares(a.g) ? &a : &b;
	leaves = stays == &a ? &b : &a;
	assert_true(cfs_group_shares(stays->g));
	WAIT_FOR(look(leaves, 1).n == 0);
	of_1 = block_of(&c, 1);
	WAIT_FOR(read_from(&c, of_1) == RANGE && stays->gets > 0);
	part(leaves); /* and does not take the other's record along */
	assert_int_equal(registry_members(&r), 2);
	assert_true(cfs_group_shares(stays->g));
	part(stays);
	part(&c);
	registry_close(&r);
}

/* A member that was killed is taken for another one when it comes back. */
static void test_own_record_of_an_earlier_life(void **state)
{
	struct registry r;
	struct member a;

	registry_open(&r);
	write_phantom(&r, 1, 12345, 77, "");
	join(&a, &r, 1);
	WAIT_FOR(stats(&a).heartbeats >= 3);
	assert_true(cfs_group_shares(a.g));
	assert_int_equal(seen_by(&a), 1);
	part(&a);
	registry_close(&r);
}

/* A block of the previous owner is fetched from object storage again. */
static void test_fresh_member_asks_the_owner_before(void **state)
{
	struct registry r;
	struct member a, b;
	uint64_t of_b;

	registry_open(&r);
	join_as(&a, &r, 1, (struct cfs_group_conf){.weight = 100, .backup_ms = 600000});
	join_as(&b, &r, 2, (struct cfs_group_conf){.weight = 100, .backup_ms = 600000});
	WAIT_FOR(seen_by(&a) == 2);
	assert_true(look(&a, 2).m.fresh && look(&b, 2).m.fresh); /* from its first record on */
	WAIT_FOR(stats(&a).heartbeats > 3);
	assert_false(look(&a, 1).m.fresh || look(&b, 1).m.fresh);
	of_b = block_of(&b, 2);
	assert_int_equal(read_from(&b, of_b), RANGE);
	assert_int_equal(a.only_cached, 1);
	assert_int_equal(stats(&b).previous_hits, 1);
	a.empty = true; /* it does not fetch for the fresh one */
	assert_int_equal(read_from(&b, of_b), -ENOENT);
	assert_int_equal(stats(&b).fallbacks, 0);
	part(&a);
	part(&b);
	registry_close(&r);
}

static void test_freshness_ends(void **state)
{
	struct registry r;
	struct member a, b;

	registry_open(&r);
	join(&a, &r, 1);
	join_as(&b, &r, 2, (struct cfs_group_conf){.weight = 100, .backup_ms = 4 * HEARTBEAT_MS});
	WAIT_FOR(look(&a, 2).n == 1 && !look(&a, 2).m.fresh);
	WAIT_FOR(!look(&b, 2).m.fresh);
	part(&a);
	part(&b);
	registry_close(&r);
}

static void join_three(struct member m[3], struct registry *r, unsigned replicas)
{
	struct cfs_group_conf conf = {.weight = 100, .replicas = replicas};
	uint64_t i;

	registry_open(r);
	for (i = 0; i < 3; i++)
		join_as(&m[i], r, i + 1, conf);
	WAIT_FOR(seen_by(&m[0]) == 3);
}

static void part_three(struct member m[3], struct registry *r)
{
	unsigned i;

	for (i = 0; i < 3; i++)
		part(&m[i]);
	registry_close(r);
}

/* A member that is overloaded makes all go to object storage, though another has the block. */
static void test_replicas(void **state)
{
	uint64_t owners[CFS_GROUP_REPLICAS_MAX], slice;
	int cached[CFS_GROUP_REPLICAS_MAX];
	struct cfs_peer_block b;
	struct registry r;
	struct member m[3];

	join_three(m, &r, 2);
	for (slice = 1;; slice++) {
		b = block(slice);
		assert_int_equal(cfs_group_map(m[0].g, &b, owners, cached, soon()), 2);
		if (owners[0] == 2 && owners[1] == 3)
			break;
	}
	assert_int_equal(cached[0], 1);
	m[1].gets = m[2].gets = 0;
	assert_int_equal(read_from(&m[0], slice), RANGE);
	assert_int_equal(m[2].gets, 0);
	m[1].busy = true;
	assert_int_equal(read_from(&m[0], slice), RANGE);
	assert_int_equal(m[2].gets, 1);
	m[2].busy = true;
	assert_true(read_from(&m[0], slice) < 0);
	assert_int_equal(stats(&m[0]).fallbacks, 1);
	part_three(m, &r);
}

/* Two members that do not reach each other, as all others do, read the same blocks from the bucket for ever. */
static void test_owner_that_is_left_out(void **state)
{
	uint64_t owners[CFS_GROUP_REPLICAS_MAX], slice;
	int cached[CFS_GROUP_REPLICAS_MAX];
	struct cfs_peer_block b = {0};
	unsigned others = 0, own = 0;
	struct registry r;
	struct member m[3];

	join_three(m, &r, 0);
	cfs_transport_drain(m[1].g->transport); /* goes on beating, and refuses connections */
	for (slice = 1; slice <= BLOCKS; slice++) {
		b = block(slice);
		assert_int_equal(cfs_group_map(m[0].g, &b, owners, cached, soon()), 1);
		if (owners[0] != 2)
			continue;
		while (read_from(&m[0], slice) < 0 && !cfs_group_owns(m[0].g, &b) &&
		       stats(&m[0]).fallbacks < 10)
			;
		others += read_from(&m[0], slice) == RANGE;
		own += cfs_group_owns(m[0].g, &b);
	}
	assert_int_equal(seen_by(&m[0]), 3);
	assert_true(others > 0 && own > 0);
	assert_int_equal(m[1].gets, 0);
	assert_true(stats(&m[0]).fallbacks < 10);
	part_three(m, &r);
}

/* Every read of the blocks of a member whose disk hangs is a GET of the bucket. */
static void test_owner_that_refuses(void **state)
{
	uint64_t owners[CFS_GROUP_REPLICAS_MAX], slice;
	int cached[CFS_GROUP_REPLICAS_MAX];
	unsigned others = 0, nobody = 0, itself = 0;
	struct registry r;
	struct member m[3];
	ssize_t n;

	join_three(m, &r, 0);
	m[1].busy = true;
	for (slice = 1; slice <= BLOCKS; slice++) {
		const struct cfs_peer_block b = block(slice);

		assert_int_equal(cfs_group_map(m[0].g, &b, owners, cached, soon()), 1);
		if (owners[0] != 2)
			continue;
		n = read_from(&m[0], slice);
		others += n == RANGE;
		nobody += n < 0;
		itself += n == -EREMCHG; /* the reader is the next member, and keeps the block */
	}
	assert_true(others > 0 && itself > 0);
	assert_int_equal(stats(&m[0]).fallbacks, nobody);
	part_three(m, &r);
}

/* A member cannot be emptied before it is taken away. */
static void test_drain_and_no_sharing(void **state)
{
	struct registry r;
	struct member a, drained, user;
	uint64_t i;

	registry_open(&r);
	join(&a, &r, 1);
	join_as(&drained, &r, 2, (struct cfs_group_conf){.weight = 0});
	join_as(&user, &r, 3, (struct cfs_group_conf){.weight = 100, .no_sharing = true});
	WAIT_FOR(seen_by(&a) == 3 && seen_by(&drained) == 3 && seen_by(&user) == 3);
	for (i = 0; i < BLOCKS; i++) {
		assert_int_equal(owner_of(&a, i), 1);
		assert_int_equal(owner_of(&user, i), 1);
		assert_int_equal(read_from(&user, i), RANGE);
		assert_int_equal(read_from(&drained, i), RANGE);
	}
	assert_false(cfs_group_shares(user.g));
	assert_int_equal(drained.gets, 0);
	part(&a);
	part(&drained);
	part(&user);
	registry_close(&r);
}

/* A mount of the volume that was here before has blocks of the same names with other bytes. */
static void test_another_volume(void **state)
{
	struct cfs_group_conf ours = {.weight = 100, .volume = "new"};
	struct cfs_group_conf before = {.weight = 100, .volume = "old"};
	struct member m[3];
	struct registry r;
	uint64_t i;

	registry_open(&r);
	join_as(&m[0], &r, 1, before);
	join_as(&m[1], &r, 2, ours);
	join(&m[2], &r, 3); /* of a version that does not say */
	for (i = 0; i < 3; i++)
		WAIT_FOR(seen_by(&m[i]) == 3);
	assert_true(look(&m[1], 1).m.incompatible && look(&m[0], 2).m.incompatible);
	assert_false(look(&m[1], 3).m.incompatible || look(&m[2], 2).m.incompatible);
	for (i = 0; i < BLOCKS; i++)
		assert_in_range(owner_of(&m[1], i), 2, 3);
	for (i = 0; i < 3; i++)
		part(&m[i]);
	registry_close(&r);
}

/* While a group is changed over to TLS each kind shares among itself, and nobody is disturbed. */
static void test_with_and_without_tls(void **state)
{
	struct cfs_group_conf secret = {.weight = 100, .transport = CFS_PEER_TLS};
	struct member m[4];
	struct registry r;
	uint64_t i;
	unsigned k;

	registry_open(&r);
	join(&m[0], &r, 1);
	join(&m[1], &r, 2);
	join_as(&m[2], &r, 3, secret);
	join_as(&m[3], &r, 4, secret);
	for (k = 0; k < 4; k++)
		WAIT_FOR(seen_by(&m[k]) == 4);
	for (k = 0; k < 4; k++)
		assert_int_equal(stats(&m[k]).incompatible, 2);
	for (i = 0; i < BLOCKS; i++) {
		assert_in_range(owner_of(&m[0], i), 1, 2);
		assert_int_equal(owner_of(&m[0], i), owner_of(&m[1], i));
		assert_in_range(owner_of(&m[3], i), 3, 4);
		assert_int_equal(owner_of(&m[3], i), owner_of(&m[2], i));
	}
	assert_int_equal(read_from(&m[0], block_of(&m[0], 2)), RANGE);
	assert_int_equal(read_from(&m[2], block_of(&m[2], 4)), RANGE);
	assert_int_equal(stats(&m[0]).asked.conns_by[CFS_PEER_TCP], 1);
	assert_int_equal(stats(&m[2]).asked.conns_by[CFS_PEER_TLS], 1);
	assert_true(look(&m[0], 3).m.transport == CFS_PEER_TLS && look(&m[0], 3).m.incompatible);
	assert_float_equal(look(&m[0], 2).m.share, 0.5, 0.001);
	assert_float_equal(look(&m[0], 3).m.share, 0, 0.001);
	/* One that comes back with TLS changes sides. */
	part(&m[0]);
	join_as(&m[0], &r, 1, secret);
	WAIT_FOR(stats(&m[2]).incompatible == 1 && stats(&m[3]).incompatible == 1 &&
		 stats(&m[1]).incompatible == 3);
	assert_int_equal(read_from(&m[2], block_of(&m[2], 1)), RANGE);
	assert_int_equal(stats(&m[1]).asked.errors[CFS_PEER_E_AUTH], 0);
	for (k = 0; k < 4; k++)
		part(&m[k]);
	registry_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_owner_that_fetches_until_the_end),
		cmocka_unit_test(test_reads_without_a_thread),
		cmocka_unit_test(test_join_and_leave),
		cmocka_unit_test(test_a_member_leaves_while_the_transport_looks),
		cmocka_unit_test(test_heartbeat_stops),
		cmocka_unit_test(test_one_id_twice),
		cmocka_unit_test(test_own_record_of_an_earlier_life),
		cmocka_unit_test(test_fresh_member_asks_the_owner_before),
		cmocka_unit_test(test_freshness_ends),
		cmocka_unit_test(test_replicas),
		cmocka_unit_test(test_owner_that_is_left_out),
		cmocka_unit_test(test_owner_that_refuses),
		cmocka_unit_test(test_drain_and_no_sharing),
		cmocka_unit_test(test_another_volume),
		cmocka_unit_test(test_with_and_without_tls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

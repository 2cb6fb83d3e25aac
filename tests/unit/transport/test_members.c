/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of a cache group's members on a clock of the test's own: members tick as they would,
 * with heartbeats of 5 s, and die, freeze, and lose the registry. When a test here fails, a member that
 * is gone keeps its share for longer than 15 s, or one that is there loses it.
 */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "group_fixture.h"
#include "transport/group/members.h"

#define HEARTBEAT_MS 5000
#define GONE_MS	     15000
#define SOME_MAX     40

struct one {
	struct cfs_members m;
	struct group_record self;
	struct cfs_group_registry reg;
	uint64_t next_ms;
	bool there, frozen;
	unsigned sloppy; /* percent by which its ticks vary */
};

static struct sim {
	struct registry r;
	struct one v[SOME_MAX];
	size_t n;
	uint64_t now_ms, seed;
	unsigned drops;
} sim;

static uint64_t dice(uint64_t sides)
{
	sim.seed = sim.seed * 6364136223846793005u + 1442695040888963407u;
	return (sim.seed >> 33) % sides;
}

static uint64_t tick_after(const struct one *o)
{
	uint64_t tick_ms = o->m.tick_ms;

	return sim.now_ms + tick_ms * 9 / 10 + dice(tick_ms / 5 + 1);
}

static void tick(struct one *o)
{
	int r = cfs_members_read(&o->m, sim.now_ms);

	if (r >= 0)
		cfs_members_write(&o->m, sim.now_ms);
	o->next_ms = tick_after(o);
}

static void run_ms(uint64_t ms)
{
	uint64_t end_ms = sim.now_ms + ms;

	for (;;) {
		struct one *next = NULL;
		size_t i;

		for (i = 0; i < sim.n; i++) {
			struct one *o = &sim.v[i];

			if (o->there && !o->frozen && (!next || o->next_ms < next->next_ms))
				next = o;
		}
		if (!next || next->next_ms > end_ms)
			break;
		sim.now_ms = CFS_MAX(sim.now_ms, next->next_ms);
		tick(next);
	}
	sim.now_ms = end_ms;
}

/* The registry and the members of a mount whose record is set. */
static void set_up(struct one *o)
{
	o->reg = (struct cfs_group_registry){.put = registry_put,
					     .swap = registry_swap,
					     .drop = registry_drop,
					     .get = registry_get,
					     .each = registry_each,
					     .arg = &sim.r};
	o->m = (struct cfs_members){.name = "team",
				    .registry = &o->reg,
				    .self = &o->self,
				    .heartbeat_ms = HEARTBEAT_MS};
	cfs_members_init(&o->m);
}

static struct one *join(uint64_t id)
{
	struct one *o = &sim.v[sim.n++];

	assert_true(sim.n <= SOME_MAX);
	memset(o, 0, sizeof(*o));
	o->self = (struct group_record){
		.member = {.id = id, .weight = 100, .rank = 100},
		.boot = dice(1ull << 31) + 1,
		.heartbeat_ms = HEARTBEAT_MS,
	};
	snprintf(o->self.member.address, sizeof(o->self.member.address), "10.0.%u.%u:7000",
		 (unsigned)(id >> 8 & 255), (unsigned)(id & 255));
	snprintf(o->self.member.volume, sizeof(o->self.member.volume), "volume");
	set_up(o);
	o->there = true;
	tick(o);
	return o;
}

static void die(struct one *o)
{
	o->there = false;
	cfs_members_free(&o->m);
}

static void leave(struct one *o)
{
	cfs_members_leave(&o->m);
	die(o);
}

static void begin(uint64_t seed, size_t n)
{
	size_t i;

	memset(&sim, 0, sizeof(sim));
	sim.seed = seed;
	sim.now_ms = 1000000;
	registry_open(&sim.r);
	for (i = 0; i < n; i++) {
		join(100 + i);
		run_ms(dice(3000));
	}
}

static void end(void)
{
	size_t i;

	for (i = 0; i < sim.n; i++) {
		if (sim.v[i].there)
			leave(&sim.v[i]);
	}
	registry_close(&sim.r);
}

static struct one *leader(void)
{
	struct one *found = NULL;
	size_t i;

	for (i = 0; i < sim.n; i++) {
		if (sim.v[i].there && !sim.v[i].frozen && sim.v[i].m.leading) {
			assert_null(found);
			found = &sim.v[i];
		}
	}
	return found;
}

static struct one *deputy(unsigned rank)
{
	struct one *found = NULL;
	size_t i;

	for (i = 0; i < sim.n; i++) {
		if (sim.v[i].there && !sim.v[i].m.leading &&
		    cfs_members_deputy(&sim.v[i].m) == rank)
			found = &sim.v[i];
	}
	assert_non_null(found);
	return found;
}

/* How many of those that are there have it in their list. */
static size_t known_by(uint64_t id)
{
	size_t i, n = 0;

	for (i = 0; i < sim.n; i++)
		n += sim.v[i].there && !sim.v[i].frozen &&
		     cfs_roster_find(&sim.v[i].m.roster, id) != NULL;
	return n;
}

static size_t there(void)
{
	size_t i, n = 0;

	for (i = 0; i < sim.n; i++)
		n += sim.v[i].there && !sim.v[i].frozen;
	return n;
}

/* Each member knows all others. */
static bool agreed(void)
{
	size_t i;

	for (i = 0; i < sim.n; i++) {
		if (sim.v[i].there && !sim.v[i].frozen && sim.v[i].m.roster.n != there())
			return false;
	}
	return true;
}

static uint64_t until_forgotten(uint64_t id, uint64_t most_ms)
{
	uint64_t from_ms = sim.now_ms;

	while (known_by(id) > 0 && sim.now_ms - from_ms < most_ms)
		run_ms(50);
	return sim.now_ms - from_ms;
}

static void test_one_dies(void **state)
{
	uint64_t seed, took_ms, worst_ms = 0;

	for (seed = 1; seed <= 60; seed++) {
		struct one *o;

		begin(seed, 5);
		run_ms(20000 + dice(5000));
		assert_true(agreed());
		o = &sim.v[dice(5)];
		die(o); /* the leader, the deputy, or another one */
		took_ms = until_forgotten(o->self.member.id, 60000);
		worst_ms = CFS_MAX(worst_ms, took_ms);
		assert_true(agreed());
		assert_non_null(leader());
		end();
	}
	printf("gone after %.1f s at the latest\n", (double)worst_ms / 1000);
	assert_true(worst_ms <= GONE_MS);
}

/* As where a rack loses its power: the leader, the deputy, and up to three others. */
static void test_leader_and_deputy_die(void **state)
{
	uint64_t seed, took_ms, worst_ms = 0;

	for (seed = 1; seed <= 60; seed++) {
		struct one *dying[5];
		size_t n = 2, k;

		begin(seed, 8);
		run_ms(30000 + dice(5000));
		assert_true(agreed());
		dying[0] = leader();
		dying[1] = deputy(1);
		for (k = 0; k < SOME_MAX && n < 2 + seed % 4; k++) {
			struct one *o = &sim.v[k];

			if (k < sim.n && o != dying[0] && o != dying[1] && o != deputy(2))
				dying[n++] = o;
		}
		for (k = 0; k < n; k++)
			die(dying[k]);
		for (k = took_ms = 0; k < n; k++)
			took_ms += until_forgotten(dying[k]->self.member.id, 60000);
		worst_ms = CFS_MAX(worst_ms, took_ms);
		assert_true(agreed());
		assert_non_null(leader());
		end();
	}
	printf("gone after %.1f s at the latest\n", (double)worst_ms / 1000);
	assert_true(worst_ms <= GONE_MS);
}

/* The leader, so many deputies, and another member die together. Returns when all are gone. */
static uint64_t kill_deputies(unsigned deputies)
{
	uint64_t seed, took_ms, worst_ms = 0;

	for (seed = 1; seed <= 60; seed++) {
		struct one *dying[6];
		unsigned k;

		begin(seed, 9);
		run_ms(30000 + dice(5000));
		dying[0] = &sim.v[8];
		dying[1] = leader();
		for (k = 1; k <= deputies; k++)
			dying[1 + k] = deputy(k);
		for (k = 0; k < 2 + deputies; k++)
			die(dying[k]);
		for (k = took_ms = 0; k < 2 + deputies; k++)
			took_ms += until_forgotten(dying[k]->self.member.id, 60000);
		worst_ms = CFS_MAX(worst_ms, took_ms);
		assert_true(agreed());
		assert_non_null(leader());
		end();
	}
	printf("gone after %.1f s at the latest\n", (double)worst_ms / 1000);
	return worst_ms;
}

static void test_leader_and_deputies_die(void **state)
{
	unsigned deputies;

	for (deputies = 1; deputies <= 3; deputies++)
		assert_true(kill_deputies(deputies) <= GONE_MS);
}

/* All who watch: longer than for less, but not for ever. */
static void test_all_who_watch_die(void **state)
{
	assert_true(kill_deputies(4) <= 2 * GONE_MS);
}

/* A weight or an address that changes reaches no other member, or only some. */
static void test_descriptions_change(void **state)
{
	const struct cfs_roster_entry *e;
	size_t i, k;

	begin(1, 7);
	run_ms(20000);
	for (i = 0; i < sim.n; i++) {
		sim.v[i].self.member.weight = (unsigned)(7 + i);
		cfs_members_hurry(&sim.v[i].m);
		run_ms(HEARTBEAT_MS);
		for (k = 0; k < sim.n; k++) {
			e = cfs_roster_find(&sim.v[k].m.roster, sim.v[i].self.member.id);
			assert_non_null(e);
			assert_int_equal(e->weight, 7 + i);
		}
	}
	/* With a leader that has never read any. */
	die(leader());
	run_ms(2 * GONE_MS);
	assert_true(agreed());
	e = cfs_roster_find(&leader()->m.roster, sim.v[6].self.member.id);
	assert_int_equal(e->weight, 13);
	end();
}

static int see_record(void *arg, const char *key, const void *value, size_t len)
{
	struct group_record r;

	(void)key;
	*(int *)arg = cfs_group_decode(value, len, &r);
	return 0;
}

/* Whether its record has its description. */
static bool is_whole(struct one *o)
{
	char key[CFS_GROUP_KEY_MAX];
	int r = -EINVAL;

	cfs_group_member_key("team", o->self.member.id, key);
	assert_int_equal(registry_get(&sim.r, key, see_record, &r), 0);
	return r == 0;
}

/* A leader of a version without descriptions cannot read the records of members that have them. */
static void test_leader_that_reads_no_descriptions(void **state)
{
	char head[64];
	struct one *o;
	unsigned i;

	begin(1, 0);
	for (i = 0; i < 20; i++) {
		snprintf(head, sizeof(head), "4d 7 %u 1250 1 1 1 0 0", i);
		registry_put(&sim.r, "group.list.team/head", head, strlen(head), false);
		if (i == 0)
			o = join(100);
		run_ms(HEARTBEAT_MS / 4);
		assert_true(is_whole(o));
		assert_null(leader());
	}
	run_ms(2 * GONE_MS);
	assert_ptr_equal(leader(), o);
	assert_false(is_whole(o));
	join(101);
	run_ms(HEARTBEAT_MS);
	assert_true(agreed());
	end();
}

/* As members of another format write them: number counts its heartbeats. */
static void put_foreign(uint64_t id, uint64_t number)
{
	char key[CFS_GROUP_KEY_MAX], text[96];

	snprintf(text, sizeof(text), "{\"id\":\"%016" PRIx64 "\",\"number\":%" PRIu64 "}", id,
		 number);
	cfs_group_member_key("team", id, key);
	registry_put(&sim.r, key, text, strlen(text), false);
}

static bool is_there(const char *key)
{
	size_t i;

	for (i = 0; i < sim.r.n; i++) {
		if (strcmp(sim.r.v[i].key, key) == 0)
			return true;
	}
	return false;
}

/* A secret that no member uses stays for ever; or it goes while members of its form need it. */
static void test_key_of_another_form(void **state)
{
	begin(1, 0);
	registry_put(&sim.r, "group.key.team/", "{}", 2, true);
	put_foreign(8000, 1);
	leave(join(100));
	assert_true(is_there("group.key.team/"));
	cfs_members_drop_record(&join(101)->m, 8000);
	leave(&sim.v[1]);
	leave(join(102));
	assert_false(is_there("group.key.team/"));
	end();
}

static void test_leaving(void **state)
{
	struct one *o;

	begin(1, 4);
	run_ms(20000);
	o = leader();
	leave(o);
	assert_in_range(until_forgotten(o->self.member.id, 60000), 0, HEARTBEAT_MS);
	o = deputy(1);
	leave(o);
	assert_in_range(until_forgotten(o->self.member.id, 60000), 0, HEARTBEAT_MS);
	end();
	assert_int_equal(sim.r.n, 0);
}

/* The registry was away, for however long: nobody is gone. */
static void test_registry_is_away(void **state)
{
	uint64_t seed;

	for (seed = 1; seed <= 20; seed++) {
		unsigned i;

		begin(seed, 5);
		run_ms(20000);
		sim.r.err = -EIO;
		run_ms(30000 + dice(100000));
		sim.r.err = 0;
		for (i = 0; i < 400; i++) {
			run_ms(50);
			assert_true(agreed());
		}
		assert_non_null(leader());
		end();
	}
}

/* One that was stopped while it led goes on as if it led. */
static void test_leader_is_frozen(void **state)
{
	uint64_t seed;

	for (seed = 1; seed <= 20; seed++) {
		struct one *o, *other;

		begin(seed, 5);
		run_ms(20000);
		o = leader();
		o->frozen = true;
		run_ms(8000 + dice(60000));
		other = leader();
		assert_non_null(other);
		o->frozen = false;
		o->next_ms = sim.now_ms;
		run_ms(2 * HEARTBEAT_MS);
		assert_ptr_equal(leader(), other);
		assert_true(agreed());
		end();
	}
}

/* A list that is older than what a member has, or of another past, is kept for ever. */
static void test_registry_goes_back(void **state)
{
	struct registry_record *head = NULL;
	char before[CFS_MEMBERS_HEAD_MAX];
	size_t i;

	begin(1, 5);
	run_ms(20000);
	for (i = 0; i < sim.r.n; i++) {
		if (strcmp(sim.r.v[i].key, "group.list.team/head") == 0)
			head = &sim.r.v[i];
	}
	assert_non_null(head);
	snprintf(before, sizeof(before), "%s", head->value);
	join(200);
	run_ms(5000);
	assert_true(agreed());
	/* As after a failover that lost the last seconds, the changes among them. */
	for (i = sim.r.n; i-- > 0;) {
		if (strncmp(sim.r.v[i].key, "group.list.team/d", 17) == 0)
			registry_drop(&sim.r, sim.r.v[i].key);
	}
	registry_put(&sim.r, "group.list.team/head", before, strlen(before), false);
	run_ms(60000);
	assert_true(agreed());
	join(201);
	run_ms(5000);
	assert_true(agreed());
	end();
}

/* All records of the list are lost. */
static void test_list_is_lost(void **state)
{
	size_t i;

	begin(1, 5);
	run_ms(20000);
	for (i = sim.r.n; i-- > 0;) {
		if (strncmp(sim.r.v[i].key, "group.list.", 11) == 0)
			registry_drop(&sim.r, sim.r.v[i].key);
	}
	for (i = 0; i < 100; i++) {
		run_ms(200);
		assert_true(agreed());
	}
	assert_non_null(leader());
	join(200);
	run_ms(5000);
	assert_true(agreed());
	end();
}

/* A record of the list, or its head, has other content than its leader wrote. */
static void test_list_is_damaged(void **state)
{
	static const char *const what[] = {"group.list.team/head", "group.list.team/s",
					   "group.list.team/d"};
	static const char *const garbage[] = {"nonsense", "=volume\n+77 100 100 - 10.1.1.1:1\n",
					      ""};
	size_t i, j, k;

	for (i = 0; i < CFS_ARRAY_SIZE(what); i++) {
		for (j = 0; j < CFS_ARRAY_SIZE(garbage); j++) {
			begin(i * 7 + j + 1, 6);
			run_ms(20000);
			join(200);
			run_ms(20000);
			/* Members that have the list do not read it again; one that joins does. */
			for (k = 0; k < sim.r.n; k++) {
				if (strncmp(sim.r.v[k].key, what[i], strlen(what[i])) == 0)
					registry_put(&sim.r, sim.r.v[k].key, garbage[j],
						     strlen(garbage[j]), false);
			}
			join(201);
			run_ms(20000);
			assert_true(agreed());
			assert_non_null(leader());
			end();
		}
	}
}

static unsigned heads_read;

static int count_heads(void *arg, const char *key, cfs_group_record_fn fn, void *fn_arg)
{
	heads_read += strcmp(key, "group.list.team/head") == 0;
	assert_true(heads_read < 1000); /* of one tick */
	return registry_get(arg, key, fn, fn_arg);
}

static int refuse_put(void *arg, const char *key, const void *value, size_t len, bool fresh)
{
	(void)arg;
	(void)key;
	(void)value;
	(void)len;
	(void)fresh;
	return -EROFS;
}

static int refuse_swap(void *arg, const char *key, const void *old, size_t old_len,
		       const void *value, size_t len)
{
	(void)old;
	(void)old_len;
	return refuse_put(arg, key, value, len, false);
}

/* A member that cannot write reads a list with a gap for ever: its mount does not end. */
static void test_list_with_a_gap_for_one_that_cannot_write(void **state)
{
	struct one *o;
	size_t i;

	(void)state;
	begin(1, 1);
	run_ms(20000);
	sim.v[0].frozen = true;
	for (i = sim.r.n; i-- > 0;) {
		if (strncmp(sim.r.v[i].key, "group.list.", 11) == 0 &&
		    strcmp(sim.r.v[i].key, "group.list.team/head") != 0)
			registry_drop(&sim.r, sim.r.v[i].key);
	}
	o = &sim.v[sim.n];
	memset(o, 0, sizeof(*o));
	o->self = (struct group_record){
		.member = {.id = 200}, .boot = 7, .heartbeat_ms = HEARTBEAT_MS};
	set_up(o);
	o->reg.put = refuse_put;
	o->reg.swap = refuse_swap;
	o->reg.get = count_heads;
	for (i = 0; i < 5; i++) {
		heads_read = 0;
		tick(o);
		assert_false(o->m.known);
		sim.now_ms = o->next_ms;
	}
	cfs_members_free(&o->m);
	sim.v[0].frozen = false;
	end();
}

/* The registry fills up with changes that nobody reads any more. */
static void test_old_changes_are_removed(void **state)
{
	struct one *late;
	unsigned i;

	begin(1, 3);
	late = &sim.v[2];
	run_ms(20000);
	late->frozen = true;
	for (i = 0; i < 300; i++) {
		struct one *o = join(1000 + i);

		run_ms(5000);
		leave(o);
		sim.n--;
		run_ms(5000);
	}
	assert_true(sim.r.n < 200);
	late->frozen = false;
	late->next_ms = sim.now_ms;
	run_ms(20000);
	assert_true(agreed());
	end();
}

/* Listings that end early, at any place: nobody is gone, nothing is removed. */
static void test_listings_end_early(void **state)
{
	unsigned i;

	begin(1, 6);
	run_ms(20000);
	for (i = 0; i < 200; i++) {
		sim.r.cut_at = (int)(i % 6) + 1;
		run_ms(100 + dice(400));
		assert_true(agreed());
	}
	sim.r.cut_at = 0;
	run_ms(20000);
	assert_true(agreed());
	end();
}

static void put_phantom(uint64_t id, uint64_t number)
{
	struct group_record rec = {
		.member = {.id = id, .weight = 100, .rank = 100},
		.boot = 7,
		.number = number,
		.heartbeat_ms = HEARTBEAT_MS,
		.info = 1,
	};
	char key[CFS_GROUP_KEY_MAX], *text;

	snprintf(rec.member.address, sizeof(rec.member.address), "10.1.%u.%u:7000",
		 (unsigned)(id >> 8 & 255), (unsigned)(id & 255));
	if (number == 1) {
		text = cfs_group_encode_info(&rec);
		cfs_group_info_key("team", id, key);
		registry_put(&sim.r, key, text, strlen(text), false);
		free(text);
	}
	text = cfs_group_encode(&rec);
	cfs_group_member_key("team", id, key);
	registry_put(&sim.r, key, text, strlen(text), false);
	free(text);
}

/* A member whose description is not there is unknown to every leader that reads the records then. */
static void test_description_is_lost(void **state)
{
	char key[CFS_GROUP_KEY_MAX];
	size_t i, k;

	for (i = 5; i < 7; i++) {
		begin(i, 7);
		run_ms(20000);
		cfs_group_info_key("team", sim.v[i].self.member.id, key);
		assert_int_equal(registry_drop(&sim.r, key), 0);
		for (k = 0; k < 5; k++)
			die(&sim.v[k]);
		run_ms(3 * GONE_MS);
		assert_non_null(leader());
		assert_true(agreed());
		end();
	}
}

/* Of the records of member 5000 not the second one, once. */
static int drop_but_second(void *arg, const char *key)
{
	if (strstr(key, "/0000000000001388") && sim.drops++ == 1)
		return -EIO;
	return registry_drop(arg, key);
}

/* The registry fails between two removals: a description stays for ever. */
static void test_removal_is_interrupted(void **state)
{
	char record[CFS_GROUP_KEY_MAX], info[CFS_GROUP_KEY_MAX];
	unsigned minute;

	begin(1, 1);
	run_ms(20000);
	put_phantom(5000, 1);
	cfs_group_member_key("team", 5000, record);
	cfs_group_info_key("team", 5000, info);
	assert_true(is_there(record) && is_there(info));
	sim.v[0].reg.drop = drop_but_second;
	for (minute = 0; minute < 12; minute++)
		run_ms(60000);
	assert_true(sim.drops > 1);
	assert_false(is_there(record) || is_there(info));
	sim.v[0].reg.drop = registry_drop;
	end();
}

static size_t records_from(uint64_t id, uint64_t end)
{
	size_t i, n = 0;

	for (i = 0; i < sim.r.n; i++) {
		const char *slash = strchr(sim.r.v[i].key, '/');
		uint64_t of = strtoull(slash + 1, NULL, 16);

		n += registry_is_members(sim.r.v[i].key) && of >= id && of < end;
	}
	return n;
}

/* Records that nobody writes any more are listed at every tick, for ever. */
static void test_malformed_records(void **state)
{
	const size_t many = 150;
	unsigned minute, heartbeat;
	size_t i;

	begin(1, 3);
	run_ms(20000);
	for (i = 0; i < many; i++)
		put_foreign(9000 + i, 1);
	for (minute = 0; minute < 9; minute++) {
		for (heartbeat = 0; heartbeat < 12; heartbeat++) {
			put_foreign(8000, minute * 12 + heartbeat); /* is alive */
			run_ms(HEARTBEAT_MS);
			assert_true(agreed());
		}
		/* However often others take over. */
		if (minute == 4)
			leave(leader());
	}
	assert_int_equal(records_from(9000, 9000 + many), many);
	for (minute = 9; minute < 16; minute++) {
		for (heartbeat = 0; heartbeat < 12; heartbeat++) {
			put_foreign(8000, minute * 12 + heartbeat);
			run_ms(HEARTBEAT_MS);
		}
	}
	assert_int_equal(records_from(9000, 9000 + many), 0);
	assert_int_equal(records_from(8000, 8001), 1);
	run_ms(12 * 60 * 1000);
	assert_int_equal(records_from(8000, 8001), 0);
	assert_true(agreed());
	end();
}

/* The bytes a member reads grow with their number: all together read the square of it. */
static void test_traffic(void **state)
{
	const unsigned real = 12, phantoms = 2000;
	uint64_t per_member[2], heartbeat;
	unsigned i, k;

	begin(1, real);
	for (k = 0; k < 2; k++) {
		for (heartbeat = 1; heartbeat <= 12; heartbeat++) {
			for (i = 0; i < k * phantoms; i++)
				put_phantom(5000 + i, heartbeat);
			if (heartbeat == 4)
				sim.r.bytes = 0; /* all have been listed */
			run_ms(HEARTBEAT_MS);
		}
		assert_int_equal(sim.v[3].m.roster.n, real + k * phantoms);
		sim.r.bytes -= k * phantoms * 8 * 60; /* written by phantoms, about */
		per_member[k] = sim.r.bytes / (real + k * phantoms) / (9 * HEARTBEAT_MS / 1000);
		printf("%u members: %" PRIu64 " bytes per second and member\n", real + k * phantoms,
		       per_member[k]);
	}
	/* Of the second kind most is what leader and deputies read, once for all. */
	assert_true(per_member[0] < 500 && per_member[1] < 300);
	for (i = 0; i < phantoms; i++)
		cfs_members_drop_record(&sim.v[0].m, 5000 + i);
	run_ms(GONE_MS);
	assert_true(agreed());
	end();
}

/* ---- the list as text ---- */

static void test_text_there_and_back(void **state)
{
	struct cfs_roster_entry e = {.id = 0xfedc,
				     .weight = 3,
				     .rank = 7,
				     .fresh = true,
				     .address = "[fd00::1]:7000",
				     .volume = "one"};
	struct cfs_roster a = {0}, b = {0};
	char text[3 * CFS_ROSTER_LINE_MAX];
	size_t n;

	assert_int_equal(cfs_roster_set(&a, &e), 0);
	n = cfs_roster_begin("one", text);
	n += cfs_roster_line(&e, "one", text + n);
	assert_int_equal(cfs_roster_apply(&b, text, n), 0);
	assert_int_equal(a.sum, b.sum);
	assert_true(cfs_roster_same(&a.v[0], &b.v[0]));
	e = (struct cfs_roster_entry){.id = 1, .transport = CFS_PEER_TLS, .memory_only = true};
	assert_int_equal(cfs_roster_set(&a, &e), 0);
	n = cfs_roster_begin("one", text);
	n += cfs_roster_line(&e, "one", text + n);
	assert_int_equal(cfs_roster_apply(&b, text, n), 0);
	assert_int_equal(a.sum, b.sum);
	assert_true(cfs_roster_same(&a.v[0], &b.v[0]) && cfs_roster_same(&a.v[1], &b.v[1]));
	n = cfs_roster_gone(0xfedc, text);
	assert_int_equal(cfs_roster_apply(&b, text, n), 0);
	cfs_roster_remove(&a, 0xfedc);
	assert_int_equal(a.n, 1);
	assert_int_equal(a.sum, b.sum);
	cfs_roster_free(&a);
	cfs_roster_free(&b);
}

/* A damaged record must not bring the other members down. */
static void test_text_garbage(void **state)
{
	static const char *const wrong[] = {"x\n", "+\n", "+0 1 1 - -\n", "+1 1 1 -", "+1 1 1\n",
					    "-\n", "\n",  "=v",		  "-x\n"};
	char text[512];
	struct cfs_roster r = {0};
	size_t i, k, n;

	sim.seed = 1;
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(cfs_roster_apply(&r, wrong[i], strlen(wrong[i])), -EINVAL);
	for (i = 0; i < 20000; i++) {
		n = (size_t)snprintf(text, sizeof(text),
				     "=vol\n+12 1 1 f 10.0.0.1:1\n-12\n+13 1 1 - - v\n");
		for (k = 0; k < 1 + i % 4; k++)
			text[dice(n)] = (char)dice(256);
		(void)cfs_roster_apply(&r, text, n);
		for (k = 1; k < r.n; k++)
			assert_true(r.v[k - 1].id < r.v[k].id);
		cfs_roster_free(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_dies),
		cmocka_unit_test(test_leader_and_deputy_die),
		cmocka_unit_test(test_leader_and_deputies_die),
		cmocka_unit_test(test_all_who_watch_die),
		cmocka_unit_test(test_descriptions_change),
		cmocka_unit_test(test_leader_that_reads_no_descriptions),
		cmocka_unit_test(test_key_of_another_form),
		cmocka_unit_test(test_leaving),
		cmocka_unit_test(test_registry_is_away),
		cmocka_unit_test(test_leader_is_frozen),
		cmocka_unit_test(test_registry_goes_back),
		cmocka_unit_test(test_list_is_lost),
		cmocka_unit_test(test_list_is_damaged),
		cmocka_unit_test(test_list_with_a_gap_for_one_that_cannot_write),
		cmocka_unit_test(test_old_changes_are_removed),
		cmocka_unit_test(test_listings_end_early),
		cmocka_unit_test(test_description_is_lost),
		cmocka_unit_test(test_removal_is_interrupted),
		cmocka_unit_test(test_malformed_records),
		cmocka_unit_test(test_traffic),
		cmocka_unit_test(test_text_there_and_back),
		cmocka_unit_test(test_text_garbage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members META-URL COUNT
 *
 * What COUNT members of a cache group ask of the metadata, on a clock of its own: all of them write
 * their records, heartbeat by heartbeat; leader, deputies and a few others also read as members do, and stand
 * for the rest. One in a hundred leaves per minute and another one comes. Prints a row of
 * docs/scale.md: bytes are those of the connections' payload, both ways.
 */
#include <cachefs/meta.h>
#include <cachefs/records.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "transport/group/members.h"

#define HEARTBEAT_MS	5000
#define READERS_MAX	12 /* leader, deputies, and others */
#define DEPUTIES	4
#define WARM_HEARTBEATS 6
#define HEARTBEATS	12

struct one {
	struct cfs_members m;
	struct group_record self;
	uint64_t key_ms;
};

static struct cfs_meta *meta;
static struct cfs_group_registry registry;
static struct one *all;
static size_t n_all, n_readers;
static uint64_t now_ms = 1000000, next_id = 1;
static uint64_t bytes_of[3]; /* leader, deputies, others that read */

static _Noreturn void fail(const char *what, int r)
{
	fprintf(stderr, "members: %s: %s\n", what, strerror(-r));
	exit(1);
}

/* ---- the registry ---- */

static int put(void *arg, const char *key, const void *value, size_t len, bool fresh)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);

	return cfs_meta_put_record(arg, &ctx, key, value, len, fresh);
}

static int swap(void *arg, const char *key, const void *old, size_t old_len, const void *value,
		size_t len)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);

	return cfs_meta_swap_record(arg, &ctx, key, old, old_len, value, len);
}

static int drop(void *arg, const char *key)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);

	return cfs_meta_drop_record(arg, &ctx, key);
}

static int get(void *arg, const char *key, cfs_group_record_fn fn, void *fn_arg)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);

	return cfs_meta_get_record(arg, &ctx, key, fn, fn_arg);
}

static int each(void *arg, const char *table, cfs_group_record_fn fn, void *fn_arg)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);

	return cfs_meta_each_record(arg, &ctx, table, fn, fn_arg);
}

/* Of all connections of this process, which stay open. */
static uint64_t traffic(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint64_t sum = 0;
	struct dirent *e;

	while (d && (e = readdir(d))) {
		struct tcp_info info = {0};
		socklen_t len = sizeof(info);

		if (getsockopt(atoi(e->d_name), IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
			sum += info.tcpi_bytes_received + info.tcpi_bytes_sent;
	}
	if (d)
		closedir(d);
	return sum;
}

/* ---- members ---- */

static void begin(struct one *o)
{
	uint64_t id = next_id++;

	memset(o, 0, sizeof(*o));
	o->self = (struct group_record){
		/*
		 * The first are the deputies, which read. Others are not in the order in which they
		 * come: they go anywhere in the list.
		 */
		.member = {.id = id <= READERS_MAX ? id : id * 0x9e3779b97f4a7c15u,
			   .weight = 100,
			   .rank = 100},
		.boot = cfs_random_u64() >> 1,
		.heartbeat_ms = HEARTBEAT_MS,
	};
	snprintf(o->self.member.address, sizeof(o->self.member.address), "10.%u.%u.%u:34567",
		 (unsigned)(id >> 16 & 255), (unsigned)(id >> 8 & 255), (unsigned)(id & 255));
	snprintf(o->self.member.volume, sizeof(o->self.member.volume),
		 "00112233-4455-6677-8899-aabbccddeeff");
	snprintf(o->self.member.host, sizeof(o->self.member.host), "node-%05u.example.com",
		 (unsigned)id);
	snprintf(o->self.member.mount_point, sizeof(o->self.member.mount_point), "/mnt/volume");
	snprintf(o->self.member.version, sizeof(o->self.member.version), "1.0.0");
	o->self.member.cached_bytes = 1ull << 40;
	o->m = (struct cfs_members){.name = "bench",
				    .registry = &registry,
				    .self = &o->self,
				    .heartbeat_ms = HEARTBEAT_MS,
				    .head.infos = 1}; /* as those that read find it */
	cfs_members_init(&o->m);
}

static void tick(struct one *o, bool reads)
{
	struct group_key key;
	int r = 0;

	if (reads && now_ms - o->key_ms >= HEARTBEAT_MS) {
		o->key_ms = now_ms;
		r = cfs_group_read_key(&registry, "bench", &key);
	}
	if (reads && r >= 0)
		r = cfs_members_read(&o->m, now_ms);
	if (r >= 0)
		r = cfs_members_write(&o->m, now_ms);
	if (r < 0)
		fail("a tick", r);
}

/* A quarter of the members that only write have their heartbeat in this tick. */
static void tick_all(unsigned part, bool count)
{
	size_t i;

	for (i = 0; i < n_all; i++) {
		bool reads = i < n_readers;
		uint64_t before;

		if (!reads && i % 4 != part)
			continue;
		before = reads && count ? traffic() : 0;
		tick(&all[i], reads);
		if (before)
			bytes_of[all[i].m.leading		 ? 0
				 : cfs_members_deputy(&all[i].m) ? 1
								 : 2] += traffic() - before;
	}
	now_ms += HEARTBEAT_MS / 4;
}

static void replace(struct one *o)
{
	cfs_members_leave(&o->m);
	cfs_members_free(&o->m);
	begin(o);
}

static void run_heartbeats(unsigned heartbeats, bool count)
{
	double owed = 0;
	unsigned i, k;

	for (i = 0; i < heartbeats; i++) {
		for (k = 0; k < 4; k++)
			tick_all(k, count);
		if (!count || n_all == n_readers)
			continue;
		for (owed += (double)n_all / 100 / 12; owed >= 1; owed--)
			replace(&all[n_readers + cfs_random_u64() % (n_all - n_readers)]);
	}
}

/* From its last record until the last of those that read has it in its list no more. */
static double gone_after_s(void)
{
	struct one *dies = &all[n_all - 1];
	uint64_t id = dies->self.member.id, from_ms = dies->m.put_ms;
	bool known = true;
	unsigned part;
	size_t i;

	n_all--;
	for (part = 0; known && now_ms - from_ms < 60000; part = (part + 1) % 4) {
		tick_all(part, false);
		known = false;
		for (i = 0; i < n_readers; i++)
			known = known || cfs_roster_find(&all[i].m.roster, id);
	}
	n_all++;
	return (double)(now_ms - from_ms) / 1000;
}

int main(int argc, char **argv)
{
	struct cfs_meta_conf conf = {.no_bgjob = true};
	double seconds = HEARTBEATS * HEARTBEAT_MS / 1000.0, leads, watches, reads, each_s, gone_s;
	struct group_key key;
	char err[256];
	size_t i, others;
	int r;

	if (argc != 3 || (n_all = strtoul(argv[2], NULL, 10)) < 7) {
		fprintf(stderr, "usage: members META-URL COUNT, at least 7\n");
		return 2;
	}
	r = cfs_meta_open(argv[1], &conf, &meta, err);
	if (r < 0)
		fail(err, r);
	registry = (struct cfs_group_registry){
		.put = put, .swap = swap, .drop = drop, .get = get, .each = each, .arg = meta};
	r = cfs_group_get_key(&registry, "bench", &key);
	if (r < 0)
		fail("the key", r);
	n_readers = CFS_MIN(n_all - 1, (size_t)READERS_MAX);
	all = calloc(n_all, sizeof(*all));
	for (i = 0; all && i < n_all; i++)
		begin(&all[i]);
	run_heartbeats(WARM_HEARTBEATS, false);
	run_heartbeats(HEARTBEATS, true);
	if (all[n_readers - 1].m.roster.n < n_all - n_all / 50 - 1)
		fail("members are missing", -ENOENT);
	others = n_readers - 1 - DEPUTIES;
	leads = (double)bytes_of[0] / seconds;
	watches = (double)bytes_of[1] / DEPUTIES / seconds;
	reads = (double)bytes_of[2] / (double)others / seconds;
	each_s = (leads + DEPUTIES * watches + reads * (double)(n_all - 1 - DEPUTIES)) /
		 (double)n_all;
	gone_s = gone_after_s();
	printf("| %zu | %.0f | %.0f | %.1f | %.1f | %.2f | %.1f |\n", n_all, each_s, reads,
	       leads / 1000, watches / 1000, each_s * (double)n_all / 1e6, gone_s);
	for (i = 0; i < n_all; i++) {
		cfs_members_leave(&all[i].m);
		cfs_members_free(&all[i].m);
	}
	free(all);
	cfs_meta_close(meta);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Advice on the server's settings for a volume. */
#include <stdlib.h>
#include <string.h>

#include "meta/redis/ops.h"

/* Fraction of maxmemory that is still fine. */
#define MEMORY_MAX 0.8

struct advising {
	cfs_advice_fn fn;
	void *arg;
	const char *info;
};

bool rds_info_field(const char *info, const char *name, char *buf, size_t size)
{
	size_t len = strlen(name);
	const char *p = info;

	while ((p = strstr(p, name)) != NULL) {
		if ((p == info || p[-1] == '\n') && p[len] == ':') {
			p += len + 1;
			snprintf(buf, size, "%.*s", (int)strcspn(p, "\r\n"), p);
			return true;
		}
		p += len;
	}
	return false;
}

static int64_t number(const struct advising *a, const char *name)
{
	char text[32];

	return rds_info_field(a->info, name, text, sizeof(text)) ? strtoll(text, NULL, 10) : -1;
}

static void advise_eviction(const struct advising *a)
{
	char policy[40];

	if (!rds_info_field(a->info, "maxmemory_policy", policy, sizeof(policy)))
		return;
	if (strcmp(policy, "noeviction") != 0)
		cfs_advise(a->fn, a->arg, CFS_ADVICE_CHANGE, "eviction policy",
			   "%s removes files when memory is short: CONFIG SET maxmemory-policy "
			   "noeviction",
			   policy);
	else
		cfs_advise(a->fn, a->arg, CFS_ADVICE_OK, "eviction policy", "noeviction");
}

static void advise_durability(const struct advising *a)
{
	char status[16] = "";

	if (number(a, "aof_enabled") == 0)
		cfs_advise(a->fn, a->arg, CFS_ADVICE_CHANGE, "durability",
			   "without an append-only file a crash of the server takes back what came "
			   "after its last snapshot: CONFIG SET appendonly yes");
	else if (number(a, "aof_enabled") == 1)
		cfs_advise(a->fn, a->arg, CFS_ADVICE_OK, "durability", "append-only file");
	if ((rds_info_field(a->info, "aof_last_write_status", status, sizeof(status)) &&
	     strcmp(status, "ok") != 0) ||
	    (rds_info_field(a->info, "rdb_last_bgsave_status", status, sizeof(status)) &&
	     strcmp(status, "ok") != 0))
		cfs_advise(a->fn, a->arg, CFS_ADVICE_CHANGE, "disk of the server",
			   "the last save has failed: see the server's log");
}

static void advise_memory(const struct advising *a)
{
	int64_t used = number(a, "used_memory"), max = number(a, "maxmemory");

	if (used < 0)
		return;
	if (max > 0 && (double)used > MEMORY_MAX * (double)max)
		cfs_advise(
			a->fn, a->arg, CFS_ADVICE_CHANGE, "memory",
			"%lld of %lld MiB are in use; when it is full nothing can be made: raise "
			"maxmemory",
			(long long)used >> 20, (long long)max >> 20);
	else
		cfs_advise(a->fn, a->arg, CFS_ADVICE_OK, "memory", "%lld MiB in use",
			   (long long)used >> 20);
}

static int64_t part(const redisReply *time, size_t i)
{
	const redisReply *p = i < time->elements ? time->element[i] : NULL;

	return p && p->str ? strtoll(p->str, NULL, 10) : 0;
}

int rds_op_advise(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_advice_fn fn, void *arg)
{
	struct advising a = {.fn = fn, .arg = arg};
	struct timespec before = cfs_wall();
	RDS_REQUEST(q, e);
	int64_t max;
	int r;

	rds_command(&q, "s", "TIME");
	rds_command(&q, "s", "INFO");
	r = rds_run(&q, ctx, CFS_META_OP_other);
	if (r == 0) {
		if (q.reply[0]->type == REDIS_REPLY_ARRAY)
			cfs_advise_clock(fn, arg,
					 part(q.reply[0], 0) * 1000000 + part(q.reply[0], 1),
					 before);
		a.info = rds_is_bytes(q.reply[1]) ? q.reply[1]->str : "";
		advise_eviction(&a);
		advise_durability(&a);
		advise_memory(&a);
		max = number(&a, "maxclients");
		if (max > 0)
			cfs_advise_connections(fn, arg, number(&a, "connected_clients"), max);
	}
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Advice on the server's settings for a volume. */
#include <stdlib.h>
#include <string.h>

#include "meta/redis/ops.h"

/* Fraction of maxmemory that is still fine. */
#define MEMORY_MAX 0.8

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

static int64_t number(const char *info, const char *name)
{
	char text[32];

	return rds_info_field(info, name, text, sizeof(text)) ? strtoll(text, NULL, 10) : -1;
}

static void advise_eviction(const struct cfs_adviser *to, const char *info)
{
	char policy[40];

	if (!rds_info_field(info, "maxmemory_policy", policy, sizeof(policy)))
		return;
	if (strcmp(policy, "noeviction") != 0)
		cfs_advise(to, CFS_ADVICE_CHANGE, "eviction policy",
			   "%s: the server deletes files when it runs out of memory: CONFIG SET "
			   "maxmemory-policy "
			   "noeviction",
			   policy);
	else
		cfs_advise(to, CFS_ADVICE_OK, "eviction policy", "noeviction");
}

static void advise_durability(const struct cfs_adviser *to, const char *info)
{
	char status[16] = "";

	if (number(info, "aof_enabled") == 0)
		cfs_advise(to, CFS_ADVICE_CHANGE, "durability",
			   "without an append-only file, a crash of the server loses all changes "
			   "since its last snapshot: CONFIG SET appendonly yes");
	else if (number(info, "aof_enabled") == 1)
		cfs_advise(to, CFS_ADVICE_OK, "durability", "append-only file");
	if ((rds_info_field(info, "aof_last_write_status", status, sizeof(status)) &&
	     strcmp(status, "ok") != 0) ||
	    (rds_info_field(info, "rdb_last_bgsave_status", status, sizeof(status)) &&
	     strcmp(status, "ok") != 0))
		cfs_advise(to, CFS_ADVICE_CHANGE, "disk of the server",
			   "the last save has failed: see the server's log");
}

static void advise_memory(const struct cfs_adviser *to, const char *info)
{
	int64_t used = number(info, "used_memory"), max = number(info, "maxmemory");

	if (used < 0)
		return;
	if (max > 0 && (double)used > MEMORY_MAX * (double)max)
		cfs_advise(to, CFS_ADVICE_CHANGE, "memory",
			   "%lld of %lld MiB are in use; at the limit, all changes fail: raise "
			   "maxmemory",
			   (long long)used >> 20, (long long)max >> 20);
	else
		cfs_advise(to, CFS_ADVICE_OK, "memory", "%lld MiB in use", (long long)used >> 20);
}

int rds_op_advise(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_adviser *to)
{
	struct timespec before = cfs_wall();
	RDS_REQUEST(q, e);
	const char *info;
	int64_t max;
	int r;

	rds_command(&q, "s", "TIME");
	rds_command(&q, "s", "INFO");
	r = rds_run(&q, ctx, CFS_META_OP_other);
	if (r == 0) {
		if (q.reply[0]->type == REDIS_REPLY_ARRAY)
			cfs_advise_clock(to,
					 rds_int(q.reply[0]->element[0]) * 1000000 +
						 rds_int(q.reply[0]->element[1]),
					 before);
		info = rds_is_bytes(q.reply[1]) ? q.reply[1]->str : "";
		advise_eviction(to, info);
		advise_durability(to, info);
		advise_memory(to, info);
		max = number(info, "maxclients");
		if (max > 0)
			cfs_advise_connections(to, number(info, "connected_clients"), max);
	}
	return r;
}

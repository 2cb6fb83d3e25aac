/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes sure, before objects are deleted, that acknowledged changes survive a crash of the server's
 * host.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "meta/redis/ops.h"

/*
 * With appendfsync everysec, changes acknowledged in the last two seconds may be lost
 * (https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/). WAITAOF would be
 * exact, but blocks all requests of the connection meanwhile.
 */
enum { LATE_MS = 2000, PAUSE_MS = 100 };

/* *ret_log: there is an append-only file. *ret_idle: its last sync has succeeded. */
static int ask(struct cfs_engine *e, const struct cfs_ctx *ctx, bool *ret_log, bool *ret_idle)
{
	char enabled[8] = "", pending[24] = "0", status[16] = "ok";
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_delete, "ss", "INFO", "persistence");

	if (r == 0 && rds_is_bytes(q.reply[0])) {
		rds_info_field(q.reply[0]->str, "aof_enabled", enabled, sizeof(enabled));
		rds_info_field(q.reply[0]->str, "aof_pending_bio_fsync", pending, sizeof(pending));
		rds_info_field(q.reply[0]->str, "aof_last_write_status", status, sizeof(status));
	}
	*ret_log = !strcmp(enabled, "1");
	*ret_idle = !strcmp(pending, "0") && !strcmp(status, "ok");
	return r;
}

int rds_op_settle(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct rds *rds = rds_of(e);
	bool log = true, idle = true;
	int r = 0;

	if (!rds->info_refused)
		r = ask(e, ctx, &log, &idle);
	/* Without an append-only file there is nothing to wait for. */
	if (r || !log)
		return r;
	cfs_sleep_until(cfs_deadline_in(LATE_MS));
	if (rds->info_refused)
		return 0;
	do {
		r = ask(e, ctx, &log, &idle);
		if (!r && !idle)
			cfs_sleep_until(cfs_deadline_in(PAUSE_MS));
	} while (!r && !idle && !cfs_deadline_passed(ctx->deadline));
	return r ? r : idle ? 0 : -ETIMEDOUT;
}

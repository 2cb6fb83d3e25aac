/* SPDX-License-Identifier: Apache-2.0 */
/* The changelog (volume-format section 14): one line of text per change. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "meta/sql/sql.h"

/* Lines read, and removed, in one transaction. */
#define TRIM_LINES 1000

int sql_log(struct sql_conn *c, const struct cfs_ctx *ctx, const char *fmt, ...)
{
	struct cfs_engine_host *host = sql_host(c);
	cfs_auto_free char *line = NULL;
	size_t size;
	va_list ap;
	FILE *f;
	int r;

	if (!cfs_host_changelog(host))
		return 0;
	f = open_memstream(&line, &size);
	if (!f)
		return -ENOMEM;
	fprintf(f, "%lld.%09ld|", (long long)ctx->now.tv_sec, ctx->now.tv_nsec);
	va_start(ap, fmt);
	vfprintf(f, fmt, ap);
	va_end(ap);
	fprintf(f, "|(%" PRIu64 ",%" PRIu64 ")", cfs_host_sid(host), cfs_host_txn_number(host));
	if (fclose(f))
		return -ENOMEM;
	r = sql_exec(c, SQL_log_entry, "t", line, size);
	return r < 0 ? r : 0;
}

/* ---- housekeeping ---- */

struct trim {
	int64_t before_s, max_lines;
	bool more;
};

/* Finds the last line older than before_s; lines are in commit order. *ret_n: old lines read. */
static int last_old(struct sql_conn *c, const struct trim *a, int64_t *ret_id, unsigned *ret_n)
{
	int64_t last = 0;
	unsigned n = 0;
	int r = sql_query(c, SQL_oldest_lines, "i", (int64_t)TRIM_LINES);

	while (!r && (r = sql_next(c, SQL_oldest_lines)) > 0) {
		size_t len;
		const char *line = sql_blob(c, SQL_oldest_lines, 1, &len);
		char second[24] = "";

		memcpy(second, line, len < sizeof(second) ? len : sizeof(second) - 1);
		if (strtoll(second, NULL, 10) >= a->before_s)
			break;
		last = sql_int(c, SQL_oldest_lines, 0);
		n++;
		r = 0;
	}
	sql_done(c, SQL_oldest_lines);
	*ret_id = last;
	*ret_n = n;
	return r < 0 ? r : 0;
}

static int trim(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct trim *a = arg;
	int64_t cut;
	unsigned n;
	int r;

	sql_repeatable();
	r = last_old(c, a, &cut, &n);
	if (r < 0)
		return r;
	if (a->max_lines > 0) {
		r = sql_row(c, SQL_newest_line, "");
		if (r < 0)
			return r;
		if (r && sql_int(c, SQL_newest_line, 0) - a->max_lines > cut)
			cut = sql_int(c, SQL_newest_line, 0) - a->max_lines;
		sql_done(c, SQL_newest_line);
	}
	r = cut > 0 ? sql_exec(c, SQL_drop_lines, "i", cut) : 0;
	a->more = n == TRIM_LINES;
	return r < 0 ? r : 0;
}

int sql_op_trim_changelog(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			  int64_t max_lines)
{
	struct trim a = {.before_s = before_s, .max_lines = max_lines};
	int r;

	do {
		r = sql_txn(sql_db(e), ctx, CFS_META_OP_other, trim, &a);
	} while (!r && a.more && !cfs_deadline_passed(ctx->deadline));
	return r;
}

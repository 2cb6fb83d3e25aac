/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <string.h>

#include "meta/redis/ops.h"

static void add(struct rds_apply *a, const char *fmt, va_list ap)
{
	rds_words(&a->words, "u", (uint64_t)strlen(fmt));
	rds_words_v(&a->words, fmt, ap);
	a->n_words += 1 + strlen(fmt);
}

void rds_apply_if(struct rds_apply *a, const void *expected, size_t len, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add(a, fmt, ap);
	va_end(ap);
	rds_words(&a->words, "b", expected, len);
	a->n_words++;
	a->conditions++;
}

void rds_apply_do(struct rds_apply *a, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add(a, fmt, ap);
	va_end(ap);
}

int rds_apply_run(struct rds_apply *a, struct cfs_engine *e, const struct cfs_ctx *ctx,
		  enum cfs_meta_op op)
{
	RDS_REQUEST(q, e);

	rds_script_begin(&q, ctx, &rds_apply_lua, 1 + a->n_words);
	rds_words(&q, "u", (uint64_t)a->conditions);
	rds_append(&q, &a->words);
	return rds_script_run(&q, ctx, op, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Usage of owners when memory ends. When these fail, an owner's usage is too small from then on, and
 * the owner passes the limit.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "meta/quota/quota.h"

enum { UID = 1000, GID = 2000, SPACE = 4096 };

static bool no_memory;
static int64_t stored[2]; /* space of the user, of the group */

void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	return no_memory ? NULL : __real_reallocarray(p, n, size);
}

static int get_counters(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t *ret_space,
			int64_t *ret_inodes)
{
	*ret_space = *ret_inodes = 0;
	return 0;
}

static int each_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_quota_fn fn,
		      void *arg)
{
	return 0;
}

static int add_quota_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *mark,
			   const struct cfs_quota *deltas, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		stored[deltas[i].kind == CFS_QUOTA_GROUP] += deltas[i].used_space;
	return 0;
}

static const struct cfs_engine_ops ops = {
	.inline_usage = true,
	.get_counters = get_counters,
	.each_quota = each_quota,
	.add_quota_usage = add_quota_usage,
};

static struct cfs_engine engine = {.ops = &ops};

static struct cfs_quotas *loaded(const struct cfs_ctx *ctx)
{
	struct cfs_quotas *q;

	assert_int_equal(cfs_quotas_create(&q), 0);
	cfs_quotas_attach(q, &engine);
	assert_int_equal(cfs_quotas_load(q, ctx), 0);
	atomic_store(&cfs_quotas_volume(q)->user_group_quota, true);
	stored[0] = stored[1] = 0;
	return q;
}

static void use_space(struct cfs_quotas *q, const struct cfs_ctx *ctx)
{
	const struct cfs_usage u = {.uid = UID, .gid = GID, .owner_space = SPACE};

	cfs_quotas_begin(q);
	cfs_quotas_end(q, ctx, &u);
}

static void test_load_keeps_pending_usage(void **state)
{
	const struct cfs_ctx ctx = {.deadline = cfs_deadline_in(10000)};
	struct cfs_quotas *q = loaded(&ctx);

	use_space(q, &ctx);
	no_memory = true;
	assert_int_equal(cfs_quotas_load(q, &ctx), -ENOMEM);
	no_memory = false;
	assert_int_equal(cfs_quotas_flush(q, &ctx), 0);
	assert_int_equal(stored[0], SPACE);
	assert_int_equal(stored[1], SPACE);
	cfs_quotas_destroy(q);
}

static void test_missed_usage_is_named(void **state)
{
	const struct cfs_ctx ctx = {.deadline = cfs_deadline_in(10000)};
	struct cfs_quotas *q = loaded(&ctx);
	char text[512] = "";
	int fds[2], saved = dup(STDERR_FILENO);

	assert_int_equal(pipe(fds), 0);
	dup2(fds[1], STDERR_FILENO);
	close(fds[1]);
	no_memory = true;
	use_space(q, &ctx);
	no_memory = false;
	dup2(saved, STDERR_FILENO);
	close(saved);
	assert_true(read(fds[0], text, sizeof(text) - 1) >= 0);
	close(fds[0]);
	assert_non_null(strstr(text, "user 1000 and group 2000 miss a change"));
	cfs_quotas_destroy(q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_load_keeps_pending_usage),
		cmocka_unit_test(test_missed_usage_is_named),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_WARN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

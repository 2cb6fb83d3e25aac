/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The VFS: what the mount itself says about names, callers and attributes, whatever the volume
 * holds.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "unit/metric.h"
#include "vfs_fixture.h"

/* ---- names that the mount keeps for itself ---- */

static void read_special(const char *name, char *buf, size_t size)
{
	struct cfs_vfs_open o = {0};
	struct cfs_vfs_entry e;
	struct cfs_segs segs;
	struct cfs_ctx c = ctx();

	assert_int_equal(lookup(name, &e), 0);
	assert_int_equal(cfs_vfs_open(vfs, &c, e.ino, O_RDONLY, &o), 0);
	cfs_segs_init(&segs);
	assert_int_equal(cfs_vfs_read(vfs, &c, o.fh, 0, (uint32_t)size - 1, NULL, &segs), 0);
	assert_true(segs.len > 0 && segs.len < size);
	cfs_segs_copy_out(&segs, 0, buf, segs.len);
	buf[segs.len] = '\0';
	cfs_segs_release(&segs);
	assert_int_equal(release(o.fh), 0);
}

/* Without it: monitoring shows the number of one thing under the name of another. */
static void numbers_stand_beside_their_names(void **state)
{
	static char text[65536];
	char *described, *help;
	size_t len;

	start(0, 0);
	read_special(".stats", text, sizeof(text));
	assert_non_null(strstr(text, "\ncachefs_data_commits_total 77\n"));
	assert_non_null(strstr(text, "\ncachefs_object_requests_total{method=\"get\"} 78\n"));
	assert_non_null(strstr(text, "\ncachefs_object_requests_total{method=\"put\"} 77\n"));
	assert_non_null(strstr(text, "\ncachefs_store_uploads_queued 79\n"));
	assert_non_null(strstr(text, "\ncachefs_open_handles 0\n"));
	assert_non_null(
		strstr(text, "\ncachefs_object_request_seconds_total{method=\"get\"} 1.500000\n"));
	assert_int_equal(cfs_vfs_show_metrics(vfs, "a=\"b\"", &described, &len), 0);
	help = strstr(described, "# HELP cachefs_object_requests_total Gets.\n"
				 "# TYPE cachefs_object_requests_total counter\n"
				 "cachefs_object_requests_total{a=\"b\",method=\"get\"} 78\n"
				 "cachefs_object_requests_total{a=\"b\",method=\"put\"} 77\n"
				 "# HELP cachefs_data_commits_total");
	assert_non_null(help);
	free(described);
}

/* Without it: any user can make the mount hold as much memory as he has descriptors for. */
static void the_texts_that_others_hold_are_few(void **state)
{
	struct cfs_vfs_open o[600] = {0}, mine = {0};
	struct cfs_ctx user, admin;
	struct cfs_vfs_entry e;
	unsigned i, n = 0;
	int r = 0;

	start(0, 0);
	user = cfs_vfs_ctx(vfs, 1000, 1000, 1);
	admin = cfs_vfs_ctx(vfs, 0, 0, 1);
	assert_int_equal(lookup(".stats", &e), 0);
	while (n < 600 && r == 0) {
		r = cfs_vfs_open(vfs, &user, e.ino, O_RDONLY, &o[n]);
		n += r == 0;
	}
	assert_int_equal(r, -EBUSY);
	assert_true(n >= 100);
	assert_int_equal(cfs_vfs_open(vfs, &admin, e.ino, O_RDONLY, &mine), 0);
	assert_int_equal(release(mine.fh), 0);
	for (i = 0; i < n; i++)
		assert_int_equal(release(o[i].fh), 0);
	assert_int_equal(cfs_vfs_open(vfs, &user, e.ino, O_RDONLY, &o[0]), 0);
	assert_int_equal(release(o[0].fh), 0);
}

/* Without it: a reader of the log who falls behind takes all memory, or is not told of gaps. */
static void a_slow_reader_of_the_log_is_told_what_it_lost(void **state)
{
	char text[65536];
	struct cfs_vfs_open o = {0};
	struct cfs_vfs_entry e;
	struct cfs_segs segs;
	size_t all = 0, i, n = 20000;
	struct cfs_ctx c;

	start(0, 0);
	c = ctx();
	assert_false(cfs_vfs_logging(vfs));
	assert_int_equal(lookup(".accesslog", &e), 0);
	assert_int_equal(cfs_vfs_open(vfs, &c, e.ino, O_RDONLY, &o), 0);
	assert_true(cfs_vfs_logging(vfs));
	for (i = 0; i < n; i++)
		cfs_vfs_log(vfs, &c, "lookup", "1,a name\nwith a break", -ENOENT, 1234567);
	do {
		cfs_segs_init(&segs);
		assert_int_equal(cfs_vfs_read(vfs, &c, o.fh, all, sizeof(text) - 1, NULL, &segs),
				 0);
		cfs_segs_copy_out(&segs, 0, text, segs.len);
		text[segs.len] = '\0';
		all += segs.len;
		if (all == segs.len)
			assert_non_null(strstr(text, "[uid:0,gid:0,pid:1] lookup (1,a name?with a "
						     "break): No such file or directory <0.001234>"
						     "\n"));
		cfs_segs_release(&segs);
	} while (strcmp(text, "#\n") != 0);
	assert_true(all <= (1 << 20) + 100);
	cfs_vfs_log(vfs, &c, "lookup", "1,f", 0, 0);
	cfs_segs_init(&segs);
	assert_int_equal(cfs_vfs_read(vfs, &c, o.fh, all, sizeof(text) - 1, NULL, &segs), 0);
	cfs_segs_copy_out(&segs, 0, text, segs.len);
	text[segs.len] = '\0';
	cfs_segs_release(&segs);
	assert_memory_equal(text, "# ", 2);
	assert_non_null(strstr(text, " lines lost\n"));
	assert_non_null(strstr(text, "lookup (1,f): OK <0.000000>\n"));
	assert_int_equal(release(o.fh), 0);
	assert_false(cfs_vfs_logging(vfs));
}

#define MS 1000000ULL

static void ended(uint64_t took_ms, uint64_t now_ms)
{
	const struct cfs_vfs_request req = {
		.op = "read", .ino = 5, .pid = 1, .start_ns = (now_ms - took_ms) * MS};

	cfs_vfs_ended(vfs, &req, -EIO, now_ms * MS);
}

/* Without it: the list of slow requests grows, or shows the first ones for ever, or not the worst.
 */
static void the_slowest_requests_are_kept_for_a_while(void **state)
{
	struct cfs_vfs_slow slow[CFS_VFS_SLOW_MAX];
	unsigned i, n;

	start(0, 0);
	ended(9, 1000000);
	assert_int_equal(cfs_vfs_slowest(vfs, 1000000 * MS, slow), 0);
	for (i = 0; i < 100; i++)
		ended(10 + i * 37 % 100, 1000000 + i);
	n = cfs_vfs_slowest(vfs, 1000100 * MS, slow);
	assert_int_equal(n, CFS_VFS_SLOW_MAX);
	for (i = 0; i < n; i++) {
		assert_int_equal(slow[i].took_ns, (109 - i) * MS);
		assert_string_equal(slow[i].op, "read");
		assert_int_equal(slow[i].ino, 5);
		assert_int_equal(slow[i].result, -EIO);
	}
	/* Threads may come in another order than that in which they looked at the clock. */
	ended(110, 1000050);
	n = cfs_vfs_slowest(vfs, 1000000 * MS, slow);
	assert_int_equal(n, CFS_VFS_SLOW_MAX);
	assert_int_equal(slow[0].took_ns, 110 * MS);
	assert_int_equal(slow[1].took_ns, 109 * MS);
	/* When these are old, what was too fast for the list is slow again. */
	ended(11, 1000100 + 600000);
	n = cfs_vfs_slowest(vfs, (1000100 + 600000) * MS, slow);
	assert_int_equal(n, 1);
	assert_int_equal(slow[0].took_ns, 11 * MS);
	assert_int_equal(cfs_vfs_slowest(vfs, (1000100 + 1200000) * MS, slow), 0);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "request_seconds_total", NULL),
			 (9 + 100 * 10 + 99 * 50 + 110 + 11) * MS);
}

/* Without it: names that the format keeps for itself can be created, and break other clients. */
static void reserved_names_are_refused(void **state)
{
	struct cfs_mknod req = {
		.parent = 1, .name = ".stats", .name_len = 6, .type = CFS_TYPE_FILE};
	struct cfs_vfs_entry e;
	struct cfs_ctx c;

	start(1000, 0);
	c = ctx();
	assert_int_equal(cfs_vfs_mknod(vfs, &c, &req, &e), -EEXIST);
	assert_int_equal(unlink_file(".trash"), -EPERM);
	assert_int_equal(lookup(".control", &e), -ENOENT);
}

static int control(void *arg, const struct cfs_ctx *ctx, const char *req, size_t len, char **ret,
		   size_t *ret_len)
{
	int n = asprintf(ret, *req == '0' ? "" : "answer to %c", *req);

	*ret_len = (size_t)n;
	if (*req != 'x')
		return 0;
	free(*ret);
	return -EINVAL;
}

static int ask(uint64_t fh, uint64_t off, const char *req)
{
	const struct iovec iov = {.iov_base = (void *)req, .iov_len = strlen(req)};
	struct cfs_ctx c = ctx();
	uint64_t at;

	return cfs_vfs_write(vfs, &c, fh, off, false, &iov, 1, &at);
}

static int answer(uint64_t fh, uint64_t off, uint32_t size, const char *want)
{
	struct cfs_segs segs;
	struct cfs_ctx c = ctx();
	char buf[64] = "";
	int r;

	cfs_segs_init(&segs);
	r = cfs_vfs_read(vfs, &c, fh, off, size, NULL, &segs);
	if (r == 0) {
		cfs_segs_copy_out(&segs, 0, buf, segs.len);
		assert_string_equal(buf, want);
	}
	cfs_segs_release(&segs);
	return r;
}

/* Without it: of two threads on one descriptor one gets the other's answer, and its own request is lost. */
static void a_request_ends_before_the_next(void **state)
{
	const struct cfs_vfs_conf conf = {.pool = pool, .control = control};
	struct cfs_vfs_entry e;
	struct cfs_vfs_open o;
	struct cfs_ctx c;

	start(0, 0);
	cfs_vfs_destroy(vfs);
	assert_int_equal(cfs_vfs_create(&conf, &vfs), 0);
	c = ctx();
	assert_int_equal(lookup(".control", &e), 0);
	assert_int_equal(cfs_vfs_open(vfs, &c, e.ino, O_RDWR, &o), 0);
	assert_int_equal(ask(o.fh, 0, "b"), 0);
	assert_int_equal(ask(o.fh, 1, "c"), -EBUSY);
	assert_int_equal(answer(o.fh, 1, 6, "answer"), 0);
	assert_int_equal(ask(o.fh, 7, "c"), -EBUSY);
	assert_int_equal(answer(o.fh, 7, 64, " to b"), 0);
	assert_int_equal(answer(o.fh, 12, 64, ""), 0);
	/* Neither a failure nor an empty answer keeps the next one out. */
	assert_int_equal(ask(o.fh, 12, "x"), 0);
	assert_int_equal(answer(o.fh, 13, 64, ""), -EINVAL);
	assert_int_equal(ask(o.fh, 13, "0"), 0);
	assert_int_equal(answer(o.fh, 14, 64, ""), 0);
	assert_int_equal(ask(o.fh, 14, "d"), 0);
	assert_int_equal(answer(o.fh, 15, 64, "answer to d"), 0);
	assert_int_equal(release(o.fh), 0);
}

/* ---- callers and attributes ---- */

/* Without it: files served over root-squash belong to root after all, or nobody may use them. */
static void identities_are_replaced(void **state)
{
	struct cfs_vfs_conf conf = {.squash_root = {true, 5, 6}, .pool = pool};
	struct cfs_ctx c;

	assert_int_equal(cfs_vfs_create(&conf, &vfs), 0);
	c = cfs_vfs_ctx(vfs, 0, 0, 1);
	assert_true(c.uid == 5 && c.gid == 6 && c.check && c.admin && !c.n_groups);
	c = cfs_vfs_ctx(vfs, 7, 8, 1);
	assert_true(c.uid == 7 && c.gid == 8 && !c.check && !c.admin);
	cfs_vfs_destroy(vfs);
	conf.squash_all = (struct cfs_vfs_squash){true, 9, 10};
	conf.check_permissions = true;
	assert_int_equal(cfs_vfs_create(&conf, &vfs), 0);
	c = cfs_vfs_ctx(vfs, 0, 0, 1);
	assert_true(c.uid == 9 && c.gid == 10 && c.check);
	c = cfs_vfs_ctx(vfs, 7, 8, 1);
	assert_true(c.uid == 9 && c.gid == 10 && c.check && !c.n_groups);
}

/*
 * Without it: who creates a file that another mount has just made may write to it, whatever its
 * mode: the kernel judges nothing that it believes to be new.
 */
static void a_file_that_has_appeared_is_judged(void **state)
{
	const struct cfs_mknod req = {
		.parent = CFS_ROOT_INO, .name = "f00001", .name_len = 6, .type = CFS_TYPE_FILE};
	struct cfs_vfs_open o = {0};
	struct cfs_vfs_entry e;
	struct cfs_ctx c;

	start(0, 0);
	fill_engine(2);
	c = cfs_vfs_ctx(vfs, 2000, 2000, 1);
	assert_int_equal(cfs_vfs_create_file(vfs, &c, &req, O_RDWR, &e, &o), -EACCES);
	meta.attr[1].mode = 0666;
	assert_int_equal(cfs_vfs_create_file(vfs, &c, &req, O_RDWR, &e, &o), 0);
	assert_int_equal(release(o.fh), 0);
	meta.exists[1] = false;
	assert_int_equal(cfs_vfs_create_file(vfs, &c, &req, O_RDWR, &e, &o), 0);
	assert_int_equal(meta.attr[1].mode, 0644);
	assert_int_equal(release(o.fh), 0);
}

/* Without it: each write costs a metadata round trip, and listings show attributes that cannot be
 * read. */
static void security_attributes_do_not_exist_by_default(void **state)
{
	char buf[64];
	struct cfs_ctx c;
	int calls;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	calls = meta.calls;
	assert_int_equal(cfs_vfs_getxattr(vfs, &c, FIRST_INO, "security.capability", NULL, 0),
			 -ENODATA);
	assert_int_equal(meta.calls, calls);
	assert_int_equal(cfs_vfs_listxattr(vfs, &c, FIRST_INO, buf, sizeof(buf)), 14);
	assert_memory_equal(buf, "user.a\0user.b", 14);
}

/* Without it: chattr drops flags that another client has set, or accepts what it cannot keep. */
static void unknown_inode_flags_are_refused(void **state)
{
	struct cfs_ctx c;
	uint32_t flags;

	start(1000, 0);
	fill_engine(3);
	c = ctx();
	meta.attr[1].flags = 4;
	assert_int_equal(cfs_vfs_set_flags(vfs, &c, FIRST_INO + 1, 0x10), 0);
	assert_int_equal(meta.attr[1].flags, 4 | CFS_FLAG_IMMUTABLE);
	assert_int_equal(cfs_vfs_get_flags(vfs, &c, FIRST_INO + 1, &flags), 0);
	assert_int_equal(flags, 0x10);
	assert_int_equal(cfs_vfs_set_flags(vfs, &c, FIRST_INO + 1, 0x40), -EOPNOTSUPP);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(numbers_stand_beside_their_names, stop),
		cmocka_unit_test_teardown(the_texts_that_others_hold_are_few, stop),
		cmocka_unit_test_teardown(a_slow_reader_of_the_log_is_told_what_it_lost, stop),
		cmocka_unit_test_teardown(the_slowest_requests_are_kept_for_a_while, stop),
		cmocka_unit_test_teardown(reserved_names_are_refused, stop),
		cmocka_unit_test_teardown(a_request_ends_before_the_next, stop),
		cmocka_unit_test_teardown(identities_are_replaced, stop),
		cmocka_unit_test_teardown(a_file_that_has_appeared_is_judged, stop),
		cmocka_unit_test_teardown(security_attributes_do_not_exist_by_default, stop),
		cmocka_unit_test_teardown(unknown_inode_flags_are_refused, stop),
	};

	return cmocka_run_group_tests(tests, make_pool, free_pool);
}

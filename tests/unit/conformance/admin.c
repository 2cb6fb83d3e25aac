/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine calls of administration commands. They delete data believed unused and
 * overwrite values believed wrong: a wrong answer here costs data that was in order.
 */
#include <stdio.h>

#include "base/bytes.h"
#include "conformance.h"
#include "meta/api/clone.h"
#include "meta/api/jobs.h"

enum { BIG_DIR = 1500, FAR_CHUNKS = 1030 };

#define OPS vol.m->eng->ops
#define ENG vol.m->eng

static void flush(void)
{
	struct cfs_ctx c = as_root();

	OK(cfs_quotas_flush(vol.m->quotas, &c));
}

/* ---- scan ---- */

/* How often the rows that a test knows were met. */
struct seen {
	enum cfs_meta_table table;
	cfs_ino_t ino, parent; /* wanted */
	uint64_t slice;
	uint32_t indx;
	size_t rows;
	struct cfs_row last; /* its pointers are dead */
	struct cfs_slice slices[8];
	char name[CFS_NAME_MAX + 1];
	int stop_with;
};

static bool wanted(const struct seen *s, const struct cfs_row *r)
{
	size_t i;

	switch (s->table) {
	case CFS_TABLE_REF:
		return r->ref.id == s->slice;
	case CFS_TABLE_EDGE:
		return r->ino == s->ino && r->edge.parent == s->parent;
	case CFS_TABLE_CHUNK:
		return r->ino == s->ino && r->list.indx == s->indx;
	case CFS_TABLE_DELAYED:
		for (i = 0; i < r->list.n; i++) {
			if (r->list.slices[i].id == s->slice)
				return true;
		}
		return false;
	default:
		return r->ino == s->ino;
	}
}

static int meet(void *arg, const struct cfs_row *r)
{
	struct seen *s = arg;
	size_t i;

	if (!wanted(s, r))
		return 0;
	s->rows++;
	s->last = *r;
	if (s->table == CFS_TABLE_EDGE)
		snprintf(s->name, sizeof(s->name), "%.*s", (int)r->edge.name_len, r->edge.name);
	if (s->table == CFS_TABLE_CHUNK || s->table == CFS_TABLE_DELAYED) {
		for (i = 0; i < r->list.n && i < CFS_ARRAY_SIZE(s->slices); i++)
			s->slices[i] = r->list.slices[i];
	}
	return s->stop_with;
}

static size_t scan(struct seen *s)
{
	s->rows = 0;
	OK(cfs_meta_scan(vol.m, s->table, meet, s));
	return s->rows;
}

/* A slice without a row of its own has one reference, where engines keep it so. */
static int64_t refs_of(uint64_t id)
{
	struct seen s = {.table = CFS_TABLE_REF, .slice = id};

	return scan(&s) ? s.last.ref.refs : 1;
}

/* Without it: fsck and gc take what they were not shown for missing, and remove it. */
static void test_scan_names(void **state)
{
	cfs_ino_t d = test_dir("scan-names"), e = make_dir(d, "e"), f = make_file(d, "f");
	cfs_ino_t link = make(d, "s", CFS_TYPE_SYMLINK);
	struct seen node = {.table = CFS_TABLE_NODE, .ino = f};
	struct seen edge = {.table = CFS_TABLE_EDGE, .ino = f, .parent = d};
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	OK(try_link(&c, f, e, "other name"));
	write_at(f, 0, 5000);
	assert_int_not_equal(scan(&node), 0);
	a = attr_of(f);
	assert_int_equal(node.last.attr.type, CFS_TYPE_FILE);
	assert_int_equal(node.last.attr.length, 5000);
	assert_int_equal(node.last.attr.nlink, 2);
	assert_int_equal(node.last.attr.mode, a.mode);
	assert_int_equal(cfs_timespec_cmp(node.last.attr.mtime, a.mtime), 0);
	assert_int_not_equal(scan(&edge), 0);
	assert_string_equal(edge.name, "f");
	assert_int_equal(edge.last.edge.type, CFS_TYPE_FILE);
	edge.parent = e;
	assert_int_not_equal(scan(&edge), 0);
	assert_string_equal(edge.name, "other name");
	node.ino = link;
	assert_int_not_equal(scan(&node), 0);
	assert_int_equal(node.last.attr.type, CFS_TYPE_SYMLINK);
	node.ino = CFS_ROOT_INO;
	assert_int_not_equal(scan(&node), 0);
	/* The callback's word is the last. */
	edge.stop_with = -ECANCELED;
	assert_int_equal(cfs_meta_scan(vol.m, CFS_TABLE_EDGE, meet, &edge), -ECANCELED);
}

static void test_scan_data(void **state)
{
	cfs_ino_t d = test_dir("scan-data"), f = make_file(d, "f");
	uint64_t first = write_at(f, 0, 5000), second = write_at(f, 4000, 300);
	uint64_t far = write_at(f, 7 * CFS_CHUNK_SIZE + 11, 100);
	struct seen s = {.table = CFS_TABLE_CHUNK, .ino = f};

	assert_int_not_equal(scan(&s), 0);
	assert_false(s.last.list.damaged);
	assert_int_equal(s.last.list.n, 2);
	assert_int_equal(s.slices[0].id, first);
	assert_int_equal(s.slices[1].id, second);
	assert_int_equal(s.slices[1].pos, 4000);
	assert_int_equal(s.slices[1].len, 300);
	s.indx = 7;
	assert_int_not_equal(scan(&s), 0);
	assert_int_equal(s.last.list.n, 1);
	assert_int_equal(s.slices[0].id, far);
	assert_int_equal(s.slices[0].pos, 11);
	s.indx = 3;
	assert_int_equal(scan(&s), 0);
	assert_int_equal(refs_of(far), 1);
}

static int keep_id(void *arg, uint64_t id, uint32_t size)
{
	uint64_t *ids = arg;

	if (ids[0] < 63)
		ids[++ids[0]] = id;
	return 0;
}

static bool has_id(const uint64_t *ids, uint64_t id)
{
	size_t i;

	for (i = 1; i <= ids[0]; i++) {
		if (ids[i] == id)
			return true;
	}
	return false;
}

static void test_scan_deleted(void **state)
{
	cfs_ino_t d = test_dir("scan-deleted"), open = make_file(d, "open"), f = make_file(d, "f");
	cfs_ino_t busy = make_file(d, "busy");
	struct cfs_engine_remove req = {.parent = d, .name = "f", .name_len = 1};
	struct cfs_slice *head, merged = {.size = 300, .len = 300};
	struct seen s = {.table = CFS_TABLE_SUSTAINED, .ino = open};
	uint64_t a = write_at(busy, 0, 200), dead[64];
	struct cfs_usage usage = {0};
	struct cfs_ctx c = as_root();
	struct cfs_removed gone;
	int rc;

	write_at(f, 0, 10000);
	set_open(open, true);
	unlink_name(d, "open");
	assert_int_not_equal(scan(&s), 0);
	assert_int_equal(s.last.sid, cfs_host_sid(&vol.m->host));
	set_open(open, false);
	OK(cfs_meta_close_ino(vol.m, &c, open));
	assert_int_equal(scan(&s), 0);

	/* As a client that dies between the removal of a name and that of the data. */
	cfs_quotas_begin(vol.m->quotas);
	OK(OPS->remove(ENG, &c, &req, &gone, &usage));
	cfs_quotas_end(vol.m->quotas, &c, &usage);
	s = (struct seen){.table = CFS_TABLE_DELFILE, .ino = f};
	assert_int_not_equal(scan(&s), 0);
	assert_int_equal(s.last.deleted.length, 10000);
	assert_in_range(s.last.deleted.when_s, c.now.tv_sec - 60, c.now.tv_sec + 60);
	cfs_jobs_delete_file(vol.m, f, 10000);

	change_setting(trash_on);
	write_at(busy, 100, 200);
	assert_int_equal(cfs_meta_read_chunk(vol.m, &c, busy, 0, &head), 2);
	OK(cfs_meta_new_slice(vol.m, &c, &merged.id));
	OK(cfs_meta_compact_chunk(vol.m, &c, busy, 0, head, 2, 0, &merged));
	free(head);
	s = (struct seen){.table = CFS_TABLE_DELAYED, .slice = a};
	assert_int_not_equal(scan(&s), 0);
	assert_int_equal(s.last.list.n, 2);
	assert_in_range(s.last.list.deleted_s, c.now.tv_sec - 60, c.now.tv_sec + 60);
	assert_int_equal(s.slices[0].size, 200);
	do {
		dead[0] = 0;
		rc = OPS->expire_delayed(ENG, &c, c.now.tv_sec + 100, keep_id, dead);
		assert_true(rc >= 0);
		for (; dead[0]; dead[0]--)
			OK(cfs_meta_drop_slice(vol.m, &c, dead[dead[0]], 200));
	} while (rc == 0);
	assert_int_equal(scan(&s), 0);
}

struct tally {
	cfs_ino_t first;
	uint8_t met[BIG_DIR];
};

static int count(void *arg, const struct cfs_row *r)
{
	struct tally *t = arg;

	if (r->ino >= t->first && r->ino < t->first + BIG_DIR)
		t->met[r->ino - t->first] = 1;
	return 0;
}

/* Pages must join: what lies on a border is not lost. */
static void test_scan_many(void **state)
{
	static const enum cfs_meta_table tables[] = {CFS_TABLE_NODE, CFS_TABLE_EDGE};
	cfs_ino_t d = test_dir("scan-many"), ino[BIG_DIR];
	struct tally t;
	char name[32];
	size_t i, k;

	for (i = 0; i < BIG_DIR; i++) {
		snprintf(name, sizeof(name), "f%zu", i);
		ino[i] = make_file(d, name);
	}
	for (k = 0; k < 2; k++) {
		for (i = 0; i < BIG_DIR; i += k ? 7 : 1) {
			/* ids of one batch follow each other, those of the next may not */
			if (i == 0 || ino[i] < t.first || ino[i] >= t.first + BIG_DIR) {
				t = (struct tally){.first = ino[i]};
				OK(cfs_meta_scan(vol.m, tables[k], count, &t));
			}
			assert_true(t.met[ino[i] - t.first]);
		}
	}
	for (i = 0; i < BIG_DIR; i++) {
		snprintf(name, sizeof(name), "f%zu", i);
		unlink_name(d, name);
	}
}

/* ---- list_chunks ---- */

/* Without it: seeking data in a sparse file skips some, and gc keeps or removes the wrong blocks.
 */
static void test_list_chunks(void **state)
{
	cfs_ino_t d = test_dir("list-chunks"), f = make_file(d, "f"), many = make_file(d, "many");
	struct cfs_chunk_len v[1024];
	struct cfs_ctx c = as_root();
	uint32_t i;

	assert_int_equal(cfs_meta_list_chunks(vol.m, &c, f, 0, v), 0);
	write_at(f, 0, 10);
	write_at(f, 10, 10);
	write_at(f, 5 * CFS_CHUNK_SIZE, 10);
	write_at(f, 70000ULL * CFS_CHUNK_SIZE + 1, 10);
	assert_int_equal(cfs_meta_list_chunks(vol.m, &c, f, 0, v), 3);
	assert_int_equal(v[0].indx, 0);
	assert_int_equal(v[0].records, 2);
	assert_int_equal(v[1].indx, 5);
	assert_int_equal(v[1].records, 1);
	assert_int_equal(v[2].indx, 70000);
	assert_int_equal(cfs_meta_list_chunks(vol.m, &c, f, 5, v), 2);
	assert_int_equal(v[0].indx, 5);
	assert_int_equal(cfs_meta_list_chunks(vol.m, &c, f, 6, v), 1);
	assert_int_equal(v[0].indx, 70000);
	assert_int_equal(cfs_meta_list_chunks(vol.m, &c, f, 70001, v), 0);

	for (i = 0; i < FAR_CHUNKS; i++)
		write_at(many, (uint64_t)i * 2 * CFS_CHUNK_SIZE, 1);
	assert_int_equal(cfs_meta_list_chunks(vol.m, &c, many, 0, v), 1024);
	for (i = 0; i < 1024; i++)
		assert_int_equal(v[i].indx, i * 2);
	assert_int_equal(cfs_meta_list_chunks(vol.m, &c, many, v[1023].indx + 1, v),
			 FAR_CHUNKS - 1024);
	assert_int_equal(v[0].indx, 2048);
}

/* ---- check and repair ---- */

static struct cfs_check check(cfs_ino_t ino, unsigned repair)
{
	struct cfs_ctx c = as_root();
	struct cfs_check k = {0};

	flush();
	OK(cfs_meta_check_inode(vol.m, &c, ino, repair, &k));
	return k;
}

/* Without it: fsck --repair rewrites what was right. */
static void test_check_healthy(void **state)
{
	cfs_ino_t d = test_dir("check-healthy"), e = make_dir(d, "e"), f = make_file(d, "f");
	cfs_ino_t one = make_file(e, "one");
	struct cfs_ctx c = as_root();
	struct cfs_check k;
	const unsigned all = ~0u;

	OK(try_link(&c, f, e, "f2"));
	write_at(f, 0, 9000);
	k = check(d, all);
	assert_int_equal(k.damage, 0);
	assert_int_equal(k.repaired, 0);
	assert_int_equal(k.names, 1);
	assert_int_equal(k.nlink, 3);
	assert_int_equal(k.parent, CFS_ROOT_INO);
	assert_int_equal(k.attr.type, CFS_TYPE_DIR);
	k = check(f, all);
	assert_int_equal(k.damage, 0);
	assert_int_equal(k.names, 2);
	assert_int_equal(k.nlink, 2);
	k = check(one, all);
	assert_int_equal(k.damage, 0);
	assert_int_equal(k.parent, e);
	assert_int_equal(check(CFS_ROOT_INO, all).damage, 0);
	k = check((cfs_ino_t)1 << 61, all); /* nobody has ever heard of it */
	assert_int_equal(k.damage, 0);
	assert_int_equal(k.attr.type, 0);
	assert_int_equal(k.attr.nlink, 0);
	/* A deletion under way is no damage. */
	set_open(one, true);
	unlink_name(e, "one");
	assert_int_equal(check(one, all).damage, 0);
	OK(try_getattr(one));
	set_open(one, false);
	OK(cfs_meta_close_ino(vol.m, &c, one));
}

static void set_dir_stat(cfs_ino_t dir, const struct cfs_dir_stat *st)
{
	struct cfs_row row = {.ino = dir, .stat = *st};
	struct cfs_ctx c = as_root();

	OK(OPS->put_rows(ENG, &c, CFS_TABLE_DIR_STAT, &row, 1));
}

static void test_check_dir_stats(void **state)
{
	cfs_ino_t d = test_dir("check-stats"), f = make_file(d, "f");
	struct cfs_dir_stat right = {.length = 9000, .space = 12288, .inodes = 1}, st;
	struct cfs_dir_stat wrong = {.length = 9000, .space = 4096, .inodes = 2};
	struct cfs_ctx c = as_root();
	struct cfs_check k;

	write_at(f, 0, 9000);
	flush();
	set_dir_stat(d, &wrong);
	k = check(d, 0);
	assert_int_equal(k.damage, CFS_DAMAGE_STAT);
	assert_int_equal(k.repaired, 0);
	assert_int_equal(k.stat.space, 4096);
	assert_int_equal(k.want.space, 12288);
	k = check(d, CFS_DAMAGE_NLINK); /* not that kind */
	assert_int_equal(k.repaired, 0);
	OK(OPS->get_dir_stat(ENG, &c, d, &st));
	assert_memory_equal(&st, &wrong, sizeof(st));
	k = check(d, CFS_DAMAGE_STAT);
	assert_int_equal(k.repaired, CFS_DAMAGE_STAT);
	OK(OPS->get_dir_stat(ENG, &c, d, &st));
	assert_memory_equal(&st, &right, sizeof(st));
	wrong = right;
	wrong.length = 8999;
	set_dir_stat(d, &wrong);
	assert_int_equal(check(d, CFS_DAMAGE_STAT).damage, CFS_DAMAGE_LENGTH);
	assert_int_equal(check(d, CFS_DAMAGE_LENGTH).repaired, CFS_DAMAGE_LENGTH);
	assert_int_equal(check(d, 0).damage, 0);
}

static void put_edge(cfs_ino_t parent, const char *name, cfs_ino_t ino, uint8_t type)
{
	struct cfs_row row = {
		.ino = ino,
		.edge = {.parent = parent, .name = name, .name_len = strlen(name), .type = type},
	};
	struct cfs_ctx c = as_root();

	OK(OPS->put_rows(ENG, &c, CFS_TABLE_EDGE, &row, 1));
}

/* A name that appeared by itself: the number of links follows. */
static void test_check_nlink(void **state)
{
	cfs_ino_t d = test_dir("check-nlink"), f = make_file(d, "f");
	struct cfs_check k;

	put_edge(d, "f-too", f, CFS_TYPE_FILE);
	k = check(f, 0);
	assert_true(k.damage & CFS_DAMAGE_NLINK);
	assert_int_equal(k.names, 2);
	assert_int_equal(k.nlink, 2);
	assert_int_equal(k.attr.nlink, 1);
	assert_int_equal(attr_of(f).nlink, 1);
	k = check(f, ~0u);
	assert_true(k.repaired & CFS_DAMAGE_NLINK);
	assert_int_equal(attr_of(f).nlink, 2);
	assert_int_equal(check(f, 0).damage, 0);
	check(d, ~0u); /* an entry more */
	assert_int_equal(check(d, 0).damage, 0);
	unlink_name(d, "f-too");
	assert_int_equal(attr_of(f).nlink, 1);
}

static struct cfs_sums sums(void)
{
	struct cfs_ctx c = as_root();
	struct cfs_sums s = {0};

	OK(cfs_meta_check_usage(vol.m, &c, &s));
	return s;
}

static void assert_counted(int64_t space, int64_t inodes)
{
	struct cfs_sums s = sums();

	assert_int_equal(s.space - s.counted_space, space);
	assert_int_equal(s.inodes - s.counted_inodes, inodes);
}

/* An inode that nothing leads to is space that is paid for; one with links is left for a human. */
static void test_check_orphan(void **state)
{
	const cfs_ino_t lost = (cfs_ino_t)1 << 60;
	struct cfs_row row = {
		.ino = lost,
		.attr = {.type = CFS_TYPE_FILE, .mode = 0644, .length = 5000, .parent = 1},
	};
	struct cfs_ctx c = as_root();

	OK(OPS->put_rows(ENG, &c, CFS_TABLE_NODE, &row, 1));
	assert_counted(8192, 1);
	OK(cfs_meta_add_usage(vol.m, &c, 8192, 1));
	assert_int_equal(check(lost, 0).damage, CFS_DAMAGE_ORPHAN);
	assert_int_equal(check(lost, CFS_DAMAGE_ORPHAN).repaired, CFS_DAMAGE_ORPHAN);
	flush();
	assert_int_equal(try_getattr(lost), -ENOENT);
	assert_counted(0, 0);
	cfs_jobs_delete_file(vol.m, lost, 5000);
}

/* A setxattr that was committed while the last name went: nothing else would ever find its row. */
static void test_check_xattr(void **state)
{
	const cfs_ino_t gone = ((cfs_ino_t)1 << 60) + 1;
	cfs_ino_t d = test_dir("check-xattr"), f = make_file(d, "f");
	struct cfs_row row = {
		.ino = gone,
		.xattr = {.name = "user.a", .name_len = 6, .value = "1", .value_len = 1},
	};
	struct cfs_ctx c = as_root();
	char value[4];

	OK(cfs_meta_setxattr(vol.m, &c, f, "user.a", "22", 2, 0));
	OK(OPS->put_rows(ENG, &c, CFS_TABLE_XATTR, &row, 1));
	assert_int_equal(check(f, ~0u).damage, 0);
	assert_int_equal(cfs_meta_getxattr(vol.m, &c, f, "user.a", value, sizeof(value)), 2);
	assert_int_equal(check(gone, 0).damage, CFS_DAMAGE_XATTR);
	assert_int_equal(check(gone, CFS_DAMAGE_DATA).repaired, 0);
	assert_int_equal(check(gone, CFS_DAMAGE_XATTR).repaired, CFS_DAMAGE_XATTR);
	assert_int_equal(check(gone, 0).damage, 0);
	assert_int_equal(cfs_meta_getxattr(vol.m, &c, f, "user.a", value, sizeof(value)), 2);
}

/* Without it: a volume is full that is not, or the other way round. */
static void test_check_usage(void **state)
{
	cfs_ino_t d = test_dir("check-usage"), f = make_file(d, "f");
	struct cfs_ctx c = as_root();
	uint64_t mark;

	write_at(f, 0, 100000);
	flush();
	mark = sums().mark;
	assert_int_equal(sums().mark, mark);
	/* The sum is the same, and yet something has changed: its usage may be on its way. */
	unlink_name(d, "f");
	f = make_file(d, "f");
	write_at(f, 0, 100000);
	flush();
	assert_int_not_equal(sums().mark, mark);
	assert_counted(0, 0);
	OK(OPS->add_usage(ENG, &c, NULL, 40960, -3, NULL, 0));
	assert_counted(-40960, 3);
	OK(cfs_meta_add_usage(vol.m, &c, -40960, 3));
	assert_counted(0, 0);
}

/* Without it: two repairs at once set a count that neither wanted, and blocks in use go. */
static void test_fix_refs(void **state)
{
	cfs_ino_t d = test_dir("fix-refs"), f = make_file(d, "f");
	uint64_t id = write_at(f, 0, 100), unknown, dead[64] = {0};
	struct cfs_ctx c = as_root();

	OK(cfs_meta_fix_refs(vol.m, &c, id, 100, 1, 3));
	assert_int_equal(refs_of(id), 3);
	assert_int_equal(cfs_meta_fix_refs(vol.m, &c, id, 100, 1, 9), -EAGAIN);
	assert_int_equal(cfs_meta_fix_refs(vol.m, &c, id, 100, 2, 9), -EAGAIN);
	assert_int_equal(cfs_meta_fix_refs(vol.m, &c, id, 100, -1, 9), -EAGAIN);
	assert_int_equal(refs_of(id), 3);
	/* Three links to it: one goes with the file. */
	unlink_name(d, "f");
	wait_deletions();
	assert_false(slice_deleted(id));
	assert_int_equal(refs_of(id), 2);
	OK(cfs_meta_fix_refs(vol.m, &c, id, 100, 2, 0));
	OK(OPS->each_dead_slice(ENG, &c, 63, keep_id, dead));
	assert_true(has_id(dead, id));
	OK(cfs_meta_drop_slice(vol.m, &c, id, 100));

	OK(cfs_meta_new_slice(vol.m, &c, &unknown));
	OK(cfs_meta_fix_refs(vol.m, &c, unknown, 100, -1, 2));
	assert_int_equal(refs_of(unknown), 2);
	OK(cfs_meta_fix_refs(vol.m, &c, unknown, 100, 2, 0));
	OK(cfs_meta_drop_slice(vol.m, &c, unknown, 100));
	dead[0] = 0;
	OK(OPS->each_dead_slice(ENG, &c, 63, keep_id, dead));
	assert_false(has_id(dead, id));
	assert_false(has_id(dead, unknown));
}

/* Statistics of before the switch was off would be taken for true. */
static void test_clear_dir_stats(void **state)
{
	cfs_ino_t d = test_dir("clear-stats"), e = make_dir(d, "e");
	const struct cfs_dir_stat all = {.length = 10010, .space = 3 * 8192, .inodes = 4};
	struct seen s = {.table = CFS_TABLE_DIR_STAT, .ino = d};
	struct cfs_ctx c = as_root();
	struct cfs_dir_stat st;
	struct cfs_check k;

	write_at(make_file(d, "f"), 0, 5000);
	flush();
	OK(cfs_meta_get_dir_stat(vol.m, &c, d, &st));
	assert_int_not_equal(scan(&s), 0);
	assert_int_equal(s.last.stat.space, 8192 + 4096);
	assert_int_equal(s.last.stat.inodes, 2);
	assert_int_equal(s.last.stat.length, 5000);
	OK(cfs_meta_clear_dir_stats(vol.m, &c));
	assert_int_equal(cfs_meta_get_dir_stat(vol.m, &c, d, &st), -ENODATA);
	assert_int_equal(cfs_meta_get_dir_stat(vol.m, &c, e, &st), -ENODATA);
	assert_int_equal(scan(&s), 0);
	/* A counter without a row is not made from nothing. */
	write_at(make_file(d, "g"), 0, 10);
	flush();
	assert_int_equal(cfs_meta_get_dir_stat(vol.m, &c, d, &st), -ENODATA);
	assert_int_equal(check(d, 0).damage, 0);
	/* Until somebody asks for a row: of the entries that are there, and counted on from there.
	 */
	k = check(d, CFS_CHECK_NO_STAT);
	assert_int_equal(k.repaired, CFS_CHECK_NO_STAT);
	assert_int_equal(k.damage, 0);
	write_at(make_file(d, "h"), 0, 5000);
	flush();
	OK(cfs_meta_get_dir_stat(vol.m, &c, d, &st));
	assert_memory_equal(&st, &all, sizeof(st));
	assert_int_equal(check(d, CFS_CHECK_NO_STAT).repaired, 0);
}

/* ---- clones ---- */

static cfs_ino_t detached(cfs_ino_t src, struct cfs_entry *ret)
{
	struct cfs_usage usage = {0};
	struct cfs_ctx c = as_root();
	uint64_t ino;

	OK(cfs_ids_next(vol.m, &vol.m->inode_ids, &c, &ino));
	cfs_quotas_begin(vol.m->quotas);
	OK(OPS->clone_ino(ENG, &c, src, ino, CFS_ROOT_INO, NULL, 0, true, ret, &usage));
	cfs_quotas_end(vol.m->quotas, &c, &usage);
	assert_int_equal(ret->ino, ino);
	return ino;
}

static int drop_detached(cfs_ino_t ino)
{
	struct cfs_usage usage = {0};
	struct cfs_ctx c = as_root();
	int rc;

	cfs_quotas_begin(vol.m->quotas);
	rc = OPS->drop_detached(ENG, &c, ino, &usage);
	cfs_quotas_end(vol.m->quotas, &c, rc ? NULL : &usage);
	return rc;
}

/* A copy that was given up goes; the original, whose blocks it shares, stays. */
static void test_drop_detached(void **state)
{
	cfs_ino_t d = test_dir("drop-detached"), f = make_file(d, "f"), copy, dir;
	struct seen s = {.table = CFS_TABLE_DETACHED};
	struct cfs_ctx c = as_root();
	uint64_t id = write_at(f, 0, 9000);
	struct cfs_usage usage = {0};
	struct cfs_entry e, inside;

	OK(cfs_meta_setxattr(vol.m, &c, f, "user.x", "1", 1, 0));
	copy = detached(f, &e);
	assert_int_equal(e.attr.length, 9000);
	assert_int_equal(refs_of(id), 2);
	s.ino = copy;
	assert_int_not_equal(scan(&s), 0);
	assert_in_range(s.last.added_s, c.now.tv_sec - 60, c.now.tv_sec + 60);
	assert_int_equal(check(copy, ~0u).damage, 0); /* it is on its way in */
	flush();
	assert_counted(0, 0);
	OK(drop_detached(copy));
	cfs_jobs_delete_file(vol.m, copy, 9000);
	wait_deletions();
	assert_int_equal(try_getattr(copy), -ENOENT);
	assert_int_equal(scan(&s), 0);
	assert_int_equal(refs_of(id), 1);
	assert_false(slice_deleted(id));
	assert_int_equal(drop_detached(copy), -ENOENT);
	assert_int_equal(drop_detached(f), -ENOENT); /* it has a name */
	OK(try_getattr(f));

	/* A directory goes when it is empty, and not before. */
	dir = detached(make_dir(d, "sub"), &e);
	OK(cfs_ids_next(vol.m, &vol.m->inode_ids, &c, &copy));
	cfs_quotas_begin(vol.m->quotas);
	OK(OPS->clone_ino(ENG, &c, f, copy, dir, "f", 1, false, &inside, &usage));
	cfs_quotas_end(vol.m->quotas, &c, &usage);
	assert_int_equal(drop_detached(dir), -ENOTEMPTY);
	assert_int_equal(inside.ino, copy);
	OK(try_getattr(copy));
	OK(cfs_clone_discard(vol.m, dir));
	assert_int_equal(try_getattr(dir), -ENOENT);
	assert_int_equal(try_getattr(copy), -ENOENT);
	wait_deletions();
	assert_false(slice_deleted(id));
	assert_int_equal(refs_of(id), 1);
}

static void test_clone(void **state)
{
	cfs_ino_t d = test_dir("clone"), src = make_dir(d, "src"), f = make_file(src, "f"), copy;
	uint64_t id = write_at(f, 0, 9000);
	struct cfs_clone req = {
		.src = src, .parent = d, .name = "dst", .name_len = 3, .preserve = true};
	struct cfs_ctx c = as_root();
	struct cfs_entry e;

	make(src, "link", CFS_TYPE_SYMLINK);
	make_dir(src, "sub");
	OK(cfs_meta_clone(vol.m, &c, &req, &e));
	assert_int_equal(find(d, "dst"), e.ino);
	assert_int_equal(attr_of(e.ino).nlink, 3);
	assert_int_equal(attr_of(d).nlink, 4);
	copy = find(e.ino, "f");
	assert_int_not_equal(copy, f);
	assert_int_equal(attr_of(copy).length, 9000);
	assert_int_equal(refs_of(id), 2);
	assert_int_equal(cfs_meta_clone(vol.m, &c, &req, &e), -EEXIST);
	unlink_name(src, "f");
	wait_deletions();
	assert_false(slice_deleted(id));
	unlink_name(find(d, "dst"), "f");
	wait_deletions();
	assert_true(slice_deleted(id));
}

/* ---- slices that were stored in vain ---- */

static void test_orphan_slice(void **state)
{
	cfs_ino_t d = test_dir("orphan-slice"), f = make_file(d, "f");
	uint64_t used = write_at(f, 0, 100), id, dead[64] = {0};
	struct cfs_ctx c = as_root();

	OK(cfs_meta_new_slice(vol.m, &c, &id));
	OK(OPS->orphan_slice(ENG, &c, id, 777));
	OK(OPS->orphan_slice(ENG, &c, id, 777)); /* an answer may have been lost */
	assert_int_equal(OPS->orphan_slice(ENG, &c, used, 100), -EBUSY);
	OK(OPS->each_dead_slice(ENG, &c, 63, keep_id, dead));
	assert_true(has_id(dead, id));
	assert_false(has_id(dead, used));
	OK(cfs_meta_drop_slice(vol.m, &c, id, 777));
	dead[0] = 0;
	OK(OPS->each_dead_slice(ENG, &c, 63, keep_id, dead));
	assert_false(has_id(dead, id));
	assert_int_equal(refs_of(used), 1);
}

TEST_LIST(admin, T(test_scan_names), T(test_scan_data), T(test_scan_deleted), T(test_scan_many),
	  T(test_list_chunks), T(test_check_healthy), T(test_check_dir_stats), T(test_check_nlink),
	  T(test_check_orphan), T(test_check_xattr), T(test_check_usage), T(test_fix_refs),
	  T(test_clear_dir_stats), T(test_drop_detached), T(test_clone), T(test_orphan_slice));

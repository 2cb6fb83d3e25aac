/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail a file reads back other bytes than were written, blocks are deleted that a file
 * still needs, or blocks that no file needs are kept for ever.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "sql_fixture.h"

#define CELL	  (1u << 20) /* the model's smallest unit of data */
#define PER_CHUNK (CFS_CHUNK_SIZE / CELL)
#define CELLS	  (3 * PER_CHUNK)
#define FILES	  5
#define STEPS	  1500
#define SLICES	  4096

/* A plain array beside each file: which piece of written data a cell shows, 0 for zeros. */
struct file {
	cfs_ino_t ino;
	uint32_t cells[CELLS];
	unsigned n;
};

static struct {
	struct file files[FILES];
	uint32_t tags[SLICES][PER_CHUNK]; /* what was stored in a slice */
	uint64_t next_slice;
	uint32_t next_tag;
	unsigned names;
	bool dead[SLICES];
} w;

static unsigned seed;

static unsigned below(unsigned n)
{
	return (unsigned)rand_r(&seed) % n;
}

static int note_dead(void *arg, uint64_t id, uint32_t size)
{
	struct fixture *f = arg;

	assert_true(id && id < SLICES);
	assert_false(w.dead[id]);
	w.dead[id] = true;
	assert_int_equal(size, fixture_number(f, "SELECT size FROM jfs_chunk_ref WHERE chunkid=%d",
					      (int)id));
	assert_int_equal(f->e->ops->drop_slice(f->e, &f->ctx, id, size), 0);
	return 0;
}

static struct file *new_file(struct fixture *f, struct file *file)
{
	char name[32];

	snprintf(name, sizeof(name), "f%u", w.names++);
	*file = (struct file){.ino = fixture_make(f, CFS_ROOT_INO, name, CFS_TYPE_FILE)};
	return file;
}

static int commit_slice(struct fixture *f, cfs_ino_t ino, uint32_t indx, const struct cfs_slice *s,
			struct cfs_attr *ret, unsigned *ret_records, struct cfs_usage *ret_usage)
{
	struct cfs_commit c = {.ino = ino, .indx = indx, .slice = *s, .mtime = f->ctx.now};
	int r = f->e->ops->commit_slice(f->e, &f->ctx, &c, ret_records, ret_usage);

	*ret = c.attr;
	return r;
}

/* ---- steps ---- */

static void write_slice(struct fixture *f, struct file *file)
{
	unsigned len = 1 + below(20), pos = below(PER_CHUNK - len + 1), indx = below(3), i;
	const struct cfs_slice s = {
		.pos = pos * CELL,
		.id = w.next_slice++,
		.size = len * CELL,
		.len = len * CELL,
	};
	struct cfs_usage usage;
	struct cfs_attr attr;
	unsigned records, at = indx * (unsigned)PER_CHUNK + pos;

	assert_int_equal(commit_slice(f, file->ino, indx, &s, &attr, &records, &usage), 0);
	for (i = 0; i < len; i++)
		w.tags[s.id][i] = file->cells[at + i] = w.next_tag++;
	file->n = CFS_MAX(file->n, at + len);
	assert_int_equal(attr.length, (uint64_t)file->n * CELL);
	assert_int_equal(records, fixture_number(f,
						 "SELECT length(CAST(slices AS BLOB))/24 FROM "
						 "jfs_chunk WHERE inode=%d AND indx=%u",
						 (int)file->ino, indx));
}

static void truncate_file(struct fixture *f, struct file *file)
{
	unsigned n = below(CELLS + 1), i;
	struct cfs_usage usage;
	struct cfs_attr attr;

	assert_int_equal(
		f->e->ops->truncate(f->e, &f->ctx, file->ino, (uint64_t)n * CELL, &attr, &usage),
		0);
	for (i = n; i < CELLS; i++)
		file->cells[i] = 0;
	file->n = n;
}

static void punch(struct fixture *f, struct file *file)
{
	unsigned off = below(CELLS), len = 1 + below(CELLS - off), i;
	bool keep = below(2);
	unsigned mode = keep ? CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_KEEP_SIZE : CFS_FALLOC_ZERO_RANGE;
	struct cfs_usage usage;
	struct cfs_attr attr;

	assert_int_equal(f->e->ops->fallocate(f->e, &f->ctx, file->ino, mode, (uint64_t)off * CELL,
					      (uint64_t)len * CELL, &attr, &usage),
			 0);
	for (i = off; i < off + len; i++)
		file->cells[i] = 0;
	if (!keep)
		file->n = CFS_MAX(file->n, off + len);
	assert_int_equal(attr.length, (uint64_t)file->n * CELL);
}

static void copy(struct fixture *f, struct file *src, struct file *dst)
{
	unsigned len = 1 + below(100), from = below(CELLS - len + 1), to = below(CELLS - len + 1);
	const struct cfs_copy_range req = {
		.src = src->ino,
		.dst = dst->ino,
		.src_off = (uint64_t)from * CELL,
		.dst_off = (uint64_t)to * CELL,
		.len = (uint64_t)len * CELL,
	};
	unsigned want = from < src->n ? CFS_MIN(len, src->n - from) : 0;
	struct cfs_usage usage;
	struct cfs_attr attr;
	uint64_t copied;
	int r = f->e->ops->copy_range(f->e, &f->ctx, &req, &copied, &attr, &usage);

	if (src == dst && want && from < to + want && to < from + want) {
		assert_int_equal(r, -EINVAL);
		return;
	}
	assert_int_equal(r, 0);
	assert_int_equal(copied, (uint64_t)want * CELL);
	memmove(dst->cells + to, src->cells + from, want * sizeof(*dst->cells));
	if (want)
		dst->n = CFS_MAX(dst->n, to + want);
	assert_int_equal(attr.length, (uint64_t)dst->n * CELL);
}

static void overlay(const struct cfs_slice *v, size_t n, uint32_t cells[PER_CHUNK])
{
	size_t i, j;

	memset(cells, 0, PER_CHUNK * sizeof(*cells));
	for (i = 0; i < n; i++)
		for (j = 0; j < v[i].len / CELL; j++)
			cells[v[i].pos / CELL + j] =
				v[i].id ? w.tags[v[i].id][v[i].off / CELL + j] : 0;
}

static void compact(struct fixture *f, struct file *file)
{
	unsigned indx = below(3);
	uint32_t view[PER_CHUNK], first = UINT32_MAX, end = 0;
	struct cfs_slice *v = NULL, merged;
	ssize_t count = f->e->ops->read_chunk(f->e, &f->ctx, file->ino, indx, &v);
	bool trash = below(2), stale = !below(4);
	size_t n, skipped, i;
	int r;

	assert_true(count >= 0);
	if (count < 2) {
		free(v);
		return;
	}
	n = 2 + below((unsigned)count - 1);
	skipped = below((unsigned)n);
	overlay(v, n, view);
	for (i = skipped; i < n; i++) {
		first = CFS_MIN(first, v[i].pos);
		end = CFS_MAX(end, v[i].pos + v[i].len);
	}
	merged = (struct cfs_slice){
		.pos = first,
		.id = w.next_slice++,
		.size = end - first,
		.len = end - first,
	};
	memcpy(w.tags[merged.id], view + first / CELL, (end - first) / CELL * sizeof(*view));
	if (stale)
		v[0].off ^= 1;
	r = f->e->ops->compact_chunk(f->e, &f->ctx, file->ino, indx, v, n, skipped, &merged, trash,
				     note_dead, f);
	free(v);
	assert_int_equal(r, stale ? -EAGAIN : 0);
	if (stale) {
		assert_int_equal(fixture_number(f,
						"SELECT refs FROM jfs_chunk_ref WHERE chunkid=%d",
						(int)merged.id),
				 0);
		assert_int_equal(f->e->ops->each_dead_slice(f->e, &f->ctx, 10, note_dead, f), 0);
	}
}

static void expire(struct fixture *f)
{
	assert_true(f->e->ops->expire_delayed(f->e, &f->ctx, f->ctx.now.tv_sec + 1, note_dead, f) >=
		    0);
}

static void delete_data(struct fixture *f, cfs_ino_t ino, uint64_t length)
{
	int r;

	do {
		r = f->e->ops->delete_chunk(f->e, &f->ctx, ino, note_dead, f);
		assert_true(r >= 0);
	} while (r == 0);
	assert_int_equal(f->e->ops->drop_delfile(f->e, &f->ctx, ino, length), 0);
}

static void remove_file(struct fixture *f, const struct file *file)
{
	struct cfs_engine_remove req = {.parent = CFS_ROOT_INO};
	struct cfs_removed removed;
	struct cfs_usage usage;
	char name[32];

	snprintf(name, sizeof(name), "f%d",
		 (int)fixture_number(f,
				     "SELECT CAST(substr(CAST(name AS TEXT),2) AS INT) FROM "
				     "jfs_edge WHERE inode=%d",
				     (int)file->ino));
	req.name = name;
	req.name_len = strlen(name);
	assert_int_equal(f->e->ops->delete_chunk(f->e, &f->ctx, file->ino, note_dead, f), -EBUSY);
	assert_int_equal(f->e->ops->remove(f->e, &f->ctx, &req, &removed, &usage), 0);
	assert_int_equal(removed.outcome, CFS_REMOVED_DELETED);
	assert_int_equal(
		fixture_number(f, "SELECT length FROM jfs_delfile WHERE inode=%d", (int)file->ino),
		removed.has_data ? (int64_t)file->n * CELL : 0);
	delete_data(f, file->ino, removed.attr.length);
}

static void clone_file(struct fixture *f, struct file *src, struct file *dst)
{
	struct cfs_entry entry;
	struct cfs_usage usage;
	char name[32];
	int len;

	if (src == dst)
		return;
	remove_file(f, dst);
	len = snprintf(name, sizeof(name), "f%u", w.names++);
	assert_int_equal(f->e->ops->clone_ino(f->e, &f->ctx, src->ino, f->next_ino++, CFS_ROOT_INO,
					      NULL, 0, true, &entry, &usage),
			 0);
	assert_int_equal(f->e->ops->attach(f->e, &f->ctx, entry.ino, CFS_ROOT_INO, name,
					   (size_t)len, &usage),
			 0);
	*dst = *src;
	dst->ino = entry.ino;
}

/* ---- checks ---- */

static void check_content(struct fixture *f, const struct file *file)
{
	uint32_t view[PER_CHUNK], indx;
	unsigned i;

	for (indx = 0; indx < 3; indx++) {
		struct cfs_slice *v = NULL;
		ssize_t n = f->e->ops->read_chunk(f->e, &f->ctx, file->ino, indx, &v);

		assert_true(n >= 0);
		overlay(v, (size_t)n, view);
		free(v);
		for (i = 0; i < PER_CHUNK && indx * PER_CHUNK + i < file->n; i++)
			assert_int_equal(view[i], file->cells[indx * PER_CHUNK + i]);
	}
}

static void count_list(const uint8_t *p, int bytes, int step, int at, unsigned *refs)
{
	for (; bytes > 0; p += step, bytes -= step) {
		uint64_t id = cfs_get_be64(p + at);

		assert_true(id < SLICES);
		if (id)
			refs[id]++;
	}
}

/* Counts every record and pair and holds the reference rows against it. */
static void check_refs(struct fixture *f)
{
	static unsigned refs[SLICES];
	sqlite3_stmt *stmt;
	uint64_t id;

	memset(refs, 0, sizeof(refs));
	assert_int_equal(sqlite3_prepare_v2(f->db, "SELECT slices FROM jfs_chunk", -1, &stmt, NULL),
			 SQLITE_OK);
	while (sqlite3_step(stmt) == SQLITE_ROW)
		count_list(sqlite3_column_blob(stmt, 0), sqlite3_column_bytes(stmt, 0), 24, 4,
			   refs);
	sqlite3_finalize(stmt);
	assert_int_equal(
		sqlite3_prepare_v2(f->db, "SELECT slices FROM jfs_delslices", -1, &stmt, NULL),
		SQLITE_OK);
	while (sqlite3_step(stmt) == SQLITE_ROW)
		count_list(sqlite3_column_blob(stmt, 0), sqlite3_column_bytes(stmt, 0), 12, 0,
			   refs);
	sqlite3_finalize(stmt);
	for (id = 1; id < w.next_slice; id++) {
		int64_t stored = fixture_number(
			f, "SELECT refs FROM jfs_chunk_ref WHERE chunkid=%d", (int)id);

		assert_int_equal(stored, refs[id]);
		if (w.dead[id])
			assert_int_equal(refs[id], 0);
		else
			assert_int_not_equal(refs[id], 0);
	}
}

static void check_usage(struct fixture *f)
{
	int64_t space = 0, got_space, got_inodes;
	struct cfs_dir_stat st;
	unsigned i;

	for (i = 0; i < FILES; i++)
		space += cfs_space_of((uint64_t)w.files[i].n * CELL);
	assert_int_equal(f->e->ops->get_counters(f->e, &f->ctx, &got_space, &got_inodes), 0);
	assert_int_equal(got_space, space);
	assert_int_equal(got_inodes, FILES);
	assert_int_equal(f->e->ops->get_dir_stat(f->e, &f->ctx, CFS_ROOT_INO, &st), 0);
	assert_int_equal(st.space, space);
	assert_int_equal(st.inodes, FILES);
}

static void random_step(struct fixture *f)
{
	struct file *a = &w.files[below(FILES)], *b = &w.files[below(FILES)];

	switch (below(16)) {
	case 0:
		truncate_file(f, a);
		break;
	case 1:
		punch(f, a);
		break;
	case 2:
	case 3:
	case 4:
		copy(f, a, b);
		break;
	case 5:
	case 6:
		compact(f, a);
		break;
	case 7:
		expire(f);
		break;
	case 8:
		if (below(4))
			break;
		remove_file(f, a);
		new_file(f, a);
		break;
	case 9:
		if (!below(4))
			clone_file(f, a, b);
		break;
	default:
		write_slice(f, a);
	}
}

static void test_random_data(void **state)
{
	const struct cfs_row none = {.ino = CFS_ROOT_INO};
	struct fixture *f = *state;
	const char *given = getenv("SEED");
	unsigned i, j;

	seed = given ? (unsigned)strtoul(given, NULL, 10) : 20261121;
	print_message("SEED=%u\n", seed);
	memset(&w, 0, sizeof(w));
	w.next_slice = w.next_tag = 1;
	assert_int_equal(f->e->ops->put_rows(f->e, &f->ctx, CFS_TABLE_DIR_STAT, &none, 1), 0);
	for (i = 0; i < FILES; i++)
		new_file(f, &w.files[i]);
	for (i = 0; i < STEPS; i++) {
		random_step(f);
		for (j = 0; j < FILES && i % 20 == 0; j++)
			check_content(f, &w.files[j]);
		if (i % 100 == 99) {
			check_refs(f);
			check_usage(f);
		}
	}
	for (i = 0; i < FILES; i++)
		remove_file(f, &w.files[i]);
	while ((i = (unsigned)f->e->ops->expire_delayed(f->e, &f->ctx, INT64_MAX, note_dead, f)) ==
	       0)
		;
	assert_int_equal(i, 1);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_chunk_ref"), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_chunk"), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_delfile"), 0);
}

/* A damaged delayed entry keeps no other from its end, and stays. */
static void test_damaged_delayed(void **state)
{
	struct fixture *f = *state;
	int i;

	memset(&w, 0, sizeof(w));
	fixture_number(f, "INSERT INTO jfs_chunk_ref VALUES (1,100,1),(2,100,1)");
	fixture_number(f, "INSERT INTO jfs_delslices VALUES (5,1,x'00'),(7,1,x'00'),"
			  "(6,1,x'000000000000000100000064'),(8,1,x'000000000000000200000064')");
	for (i = 2; i-- > 0;) {
		assert_int_equal(f->e->ops->expire_delayed(f->e, &f->ctx, INT64_MAX, note_dead, f),
				 0);
		assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_delslices"), 2 + i);
	}
	assert_int_equal(f->e->ops->expire_delayed(f->e, &f->ctx, INT64_MAX, note_dead, f), -EIO);
	assert_int_equal(f->e->ops->expire_delayed(f->e, &f->ctx, 0, note_dead, f), 1);
	assert_int_equal(fixture_number(f, "SELECT sum(chunkid) FROM jfs_delslices"), 5 + 7);
}

/* ---- the replication record at connect ---- */

static int deny_record(void *arg, int action, const char *table, const char *column, const char *db,
		       const char *by)
{
	return action == SQLITE_READ && !strcmp(table, "jfs_cachefs_record") ? SQLITE_DENY
									     : SQLITE_OK;
}

static int with_denial(sqlite3 *handle, char **err, const struct sqlite3_api_routines *api)
{
	return sqlite3_set_authorizer(handle, deny_record, NULL);
}

/*
 * A connection that cannot read whether the volume is replicated does not open: one that took it for
 * not replicated would move the log away from replication when it closes.
 */
static void test_replication_unknown(void **state)
{
	struct fixture *f = *state;
	const struct cfs_meta_conf meta = {.timeout_ms = 10000};
	struct cfs_engine_conf conf = {.meta = &meta, .host = &f->host};
	char text[64], err[256] = "";
	struct cfs_engine *e = NULL;
	struct cfs_url url;
	int r;

	fixture_number(f, "CREATE TABLE IF NOT EXISTS jfs_cachefs_record (name BLOB, value BLOB)");
	snprintf(text, sizeof(text), "sqlite3://%s/meta.db", f->dir);
	assert_int_equal(cfs_url_parse(text, &url, err), 0);
	conf.url = &url;
	sqlite3_auto_extension((void (*)(void))with_denial);
	r = cfs_engine_sqlite.open(&conf, &e, err);
	sqlite3_cancel_auto_extension((void (*)(void))with_denial);
	cfs_url_free(&url);
	if (r >= 0)
		e->ops->close(e);
	assert_int_equal(r, -EACCES);
}

/* ---- the examples of volume-format section 6 ---- */

static void put_slice(struct fixture *f, cfs_ino_t ino, uint32_t pos, uint64_t id, uint32_t len)
{
	const struct cfs_slice s = {.pos = pos, .id = id, .size = len, .len = len};
	struct cfs_usage usage;
	struct cfs_attr attr;
	unsigned records;

	assert_int_equal(commit_slice(f, ino, 0, &s, &attr, &records, &usage), 0);
}

static void test_format_of_truncate_and_copy(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ext = fixture_make(f, CFS_ROOT_INO, "trunc-extend", CFS_TYPE_FILE);
	cfs_ino_t punched = fixture_make(f, CFS_ROOT_INO, "punched", CFS_TYPE_FILE);
	cfs_ino_t cfr = fixture_make(f, CFS_ROOT_INO, "cfr", CFS_TYPE_FILE);
	const struct cfs_copy_range req = {punched, cfr, 30000, 5000, 200000};
	struct cfs_usage usage;
	struct cfs_attr attr;
	uint64_t copied;

	put_slice(f, ext, 0, 35, 307200);
	assert_int_equal(f->e->ops->truncate(f->e, &f->ctx, ext, 102401, &attr, &usage), 0);
	assert_int_equal(f->e->ops->truncate(f->e, &f->ctx, ext, 204800, &attr, &usage), 0);
	f->ctx.now.tv_sec++;
	assert_int_equal(f->e->ops->truncate(f->e, &f->ctx, ext, 204800, &attr, &usage), 0);
	assert_int_equal(attr.mtime.tv_sec, f->ctx.now.tv_sec - 1);
	assert_string_equal(fixture_hex(f, "SELECT slices FROM jfs_chunk WHERE inode=%d", (int)ext),
			    "0000000000000000000000230004b000000000000004b000"
			    "000190010000000000000000000000000000000000031fff"
			    "000190010000000000000000000000000000000000018fff");

	put_slice(f, punched, 0, 0x27, 0x40000);
	assert_int_equal(f->e->ops->fallocate(f->e, &f->ctx, punched,
					      CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_KEEP_SIZE, 0x10000,
					      0x11170, &attr, &usage),
			 0);
	assert_int_equal(f->e->ops->copy_range(f->e, &f->ctx, &req, &copied, &attr, &usage), 0);
	assert_string_equal(fixture_hex(f, "SELECT slices FROM jfs_chunk WHERE inode=%d", (int)cfr),
			    "00001388000000000000002700040000000075300000"
			    "8ad0"
			    "00009e58000000000000000000000000000000000001"
			    "1170"
			    "0001afc8000000000000002700040000000211700001"
			    "7100");
	assert_int_equal(fixture_number(f, "SELECT refs FROM jfs_chunk_ref WHERE chunkid=39"), 3);
	assert_int_equal(attr.length, 205000);
}

/* A length change over a huge sparse file must not visit every chunk. */
static void test_huge_sparse(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, CFS_ROOT_INO, "sparse", CFS_TYPE_FILE);
	struct cfs_usage usage;
	struct cfs_attr attr;

	assert_int_equal(f->e->ops->truncate(f->e, &f->ctx, ino, CFS_FILE_MAX - 1, &attr, &usage),
			 0);
	assert_int_equal(f->e->ops->truncate(f->e, &f->ctx, ino, CFS_FILE_MAX, &attr, &usage),
			 -EFBIG);
	assert_int_equal(f->e->ops->fallocate(f->e, &f->ctx, ino, CFS_FALLOC_ZERO_RANGE, 5,
					      CFS_FILE_MAX - 6, &attr, &usage),
			 0);
	assert_int_equal(f->e->ops->truncate(f->e, &f->ctx, ino, 0, &attr, &usage), 0);
	assert_true(fixture_number(f, "SELECT count(*) FROM jfs_chunk") <= 2);
}

static void test_write_to_what_is_gone(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, CFS_ROOT_INO, "x", CFS_TYPE_FILE);
	const struct cfs_slice s = {.id = 5, .size = 100, .len = 100};
	const struct cfs_engine_remove req = {.parent = CFS_ROOT_INO, .name = "x", .name_len = 1};
	struct cfs_slice *list = NULL;
	struct cfs_removed removed;
	struct cfs_usage usage;
	struct cfs_attr attr;
	unsigned records;

	assert_int_equal(f->e->ops->read_chunk(f->e, &f->ctx, ino, 0, &list), 0);
	assert_int_equal(f->e->ops->remove(f->e, &f->ctx, &req, &removed, &usage), 0);
	assert_int_equal(commit_slice(f, ino, 0, &s, &attr, &records, &usage), -ENOENT);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_chunk_ref"), 0);
	assert_int_equal(f->e->ops->read_chunk(f->e, &f->ctx, ino, 0, &list), -ENOENT);
}

/* A slice id that is in use (a counter that was set back) must not take over the other file's. */
static void test_slice_id_in_use(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, CFS_ROOT_INO, "x", CFS_TYPE_FILE);
	const struct cfs_slice s = {.pos = 100, .id = 5, .size = 100, .len = 100};
	struct cfs_usage usage;
	struct cfs_attr attr;
	unsigned records;

	put_slice(f, ino, 0, 5, 100);
	assert_int_equal(commit_slice(f, ino, 0, &s, &attr, &records, &usage), -EEXIST);
	assert_int_equal(fixture_attr(f, ino).length, 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_random_data, fixture_setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(test_damaged_delayed, fixture_setup,
						fixture_teardown),
		cmocka_unit_test_setup_teardown(test_replication_unknown, fixture_setup,
						fixture_teardown),
		cmocka_unit_test_setup_teardown(test_format_of_truncate_and_copy, fixture_setup,
						fixture_teardown),
		cmocka_unit_test_setup_teardown(test_huge_sparse, fixture_setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(test_write_to_what_is_gone, fixture_setup,
						fixture_teardown),
		cmocka_unit_test_setup_teardown(test_slice_id_in_use, fixture_setup,
						fixture_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

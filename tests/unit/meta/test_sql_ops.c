/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail a removed file cannot be found in the trash, a rename loses or doubles a file,
 * du and quotas drift, or two programs hold the same lock.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "sql_fixture.h"

static const cfs_ino_t root = CFS_ROOT_INO;

static int unlink_at(struct fixture *f, cfs_ino_t parent, const char *name, cfs_ino_t trash,
		     struct cfs_removed *ret)
{
	const struct cfs_engine_remove req = {
		.parent = parent,
		.name = name,
		.name_len = strlen(name),
		.trash = trash,
	};
	struct cfs_usage usage;

	return f->e->ops->remove(f->e, &f->ctx, &req, ret, &usage);
}

static int rmdir_at(struct fixture *f, cfs_ino_t parent, const char *name, cfs_ino_t trash,
		    struct cfs_removed *ret)
{
	const struct cfs_engine_remove req = {
		.dir = true,
		.parent = parent,
		.name = name,
		.name_len = strlen(name),
		.trash = trash,
	};
	struct cfs_usage usage;

	return f->e->ops->remove(f->e, &f->ctx, &req, ret, &usage);
}

static int rename_at(struct fixture *f, cfs_ino_t src, const char *from, cfs_ino_t dst,
		     const char *to, unsigned flags, cfs_ino_t trash, struct cfs_renamed *ret)
{
	const struct cfs_engine_rename req = {
		.r = {.src_parent = src,
		      .dst_parent = dst,
		      .src_name = from,
		      .dst_name = to,
		      .src_len = strlen(from),
		      .dst_len = strlen(to),
		      .flags = flags},
		.trash = trash,
	};
	struct cfs_usage usage;

	return f->e->ops->rename(f->e, &f->ctx, &req, ret, &usage);
}

static int link_at(struct fixture *f, cfs_ino_t ino, cfs_ino_t parent, const char *name)
{
	struct cfs_engine_link req = {ino, parent, name, strlen(name), 0};
	struct cfs_usage usage;
	struct cfs_attr attr;

	return f->e->ops->link(f->e, &f->ctx, &req, &attr, &usage);
}

static cfs_ino_t lookup(struct fixture *f, cfs_ino_t parent, const char *name)
{
	struct cfs_entry entry;
	int r = f->e->ops->lookup(f->e, &f->ctx, parent, name, strlen(name), &entry);

	assert_true(r == 0 || r == -ENOENT);
	return r ? 0 : entry.ino;
}

static int set_flags(struct fixture *f, cfs_ino_t ino, uint8_t flags)
{
	const struct cfs_attr in = {.flags = flags};
	struct cfs_usage usage;
	struct cfs_attr attr;

	return f->e->ops->setattr(f->e, &f->ctx, ino, CFS_SET_FLAGS, &in, &attr, &usage);
}

static int set_mode(struct fixture *f, cfs_ino_t ino, uint16_t mode)
{
	const struct cfs_attr in = {.mode = mode};
	struct cfs_usage usage;
	struct cfs_attr attr;

	return f->e->ops->setattr(f->e, &f->ctx, ino, CFS_SET_MODE, &in, &attr, &usage);
}

/* ---- removal ---- */

static void test_trash(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t hour = fixture_hour(f), dir = fixture_make(f, root, "dir", CFS_TYPE_DIR);
	cfs_ino_t ino = fixture_make(f, dir, "file", CFS_TYPE_FILE);
	cfs_ino_t sub = fixture_make(f, dir, "sub", CFS_TYPE_DIR);
	struct cfs_removed removed;
	char name[300], longest[256] = "", want[300];

	f->ctx.now.tv_sec += 10;
	assert_int_equal(unlink_at(f, dir, "file", hour, &removed), 0);
	assert_int_equal(removed.outcome, CFS_REMOVED_TRASHED);
	snprintf(name, sizeof(name), "%d-%d-file", (int)dir, (int)ino);
	assert_int_equal(lookup(f, hour, name), ino);
	assert_int_equal(lookup(f, dir, "file"), 0);
	assert_int_equal(fixture_attr(f, ino).parent, hour);
	assert_int_equal(fixture_attr(f, ino).nlink, 1);
	assert_int_equal(fixture_attr(f, ino).ctime.tv_sec, f->ctx.now.tv_sec);
	assert_int_equal(fixture_attr(f, ino).mtime.tv_sec, f->ctx.now.tv_sec - 10);
	assert_int_equal(fixture_attr(f, dir).mtime.tv_sec, f->ctx.now.tv_sec - 10);

	assert_int_equal(rmdir_at(f, root, "dir", hour, &removed), -ENOTEMPTY);
	assert_int_equal(rmdir_at(f, dir, "sub", hour, &removed), 0);
	assert_int_equal(fixture_attr(f, dir).mtime.tv_sec, f->ctx.now.tv_sec);
	assert_int_equal(fixture_attr(f, dir).nlink, 2);
	assert_int_equal(fixture_attr(f, hour).nlink, 2);
	assert_int_equal(
		fixture_number(f, "SELECT count(*) FROM jfs_dir_stats WHERE inode=%d", (int)sub),
		0);
	assert_int_equal(fixture_number(f, "SELECT used_inodes FROM jfs_dir_stats WHERE inode=%lld",
					(long long)hour),
			 2);

	memset(longest, 'x', 255);
	ino = fixture_make(f, root, longest, CFS_TYPE_FILE);
	assert_int_equal(unlink_at(f, root, longest, hour, &removed), 0);
	snprintf(want, sizeof(want), "1-%d-%s", (int)ino, longest);
	want[255] = '\0';
	assert_int_equal(lookup(f, hour, want), ino);

	/* From the trash it goes for real, at root's hands only. */
	f->ctx.uid = 1000;
	assert_int_equal(unlink_at(f, hour, want, 0, &removed), -EPERM);
	f->ctx.uid = 0;
	assert_int_equal(unlink_at(f, hour, want, 0, &removed), 0);
	assert_int_equal(removed.outcome, CFS_REMOVED_DELETED);

	ino = fixture_make(f, root, "secret", CFS_TYPE_FILE);
	assert_int_equal(set_flags(f, ino, CFS_FLAG_SKIP_TRASH), 0);
	assert_int_equal(unlink_at(f, root, "secret", hour, &removed), 0);
	assert_int_equal(removed.outcome, CFS_REMOVED_DELETED);
}

/* The second removal of the same name of a hard link in one hour must not fail. */
static void test_trash_of_hard_links(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t hour = fixture_hour(f), ino = fixture_make(f, root, "a", CFS_TYPE_FILE);
	struct cfs_removed removed;

	assert_int_equal(link_at(f, ino, root, "b"), 0);
	assert_int_equal(unlink_at(f, root, "a", hour, &removed), 0);
	assert_int_equal(removed.outcome, CFS_REMOVED_TRASHED);
	assert_int_equal(fixture_attr(f, ino).parent, 0);
	assert_int_equal(fixture_attr(f, ino).nlink, 2);
	assert_int_equal(link_at(f, ino, root, "a"), 0);
	assert_int_equal(unlink_at(f, root, "a", hour, &removed), 0);
	assert_int_equal(removed.outcome, CFS_REMOVED_LINKED);
	assert_int_equal(fixture_attr(f, ino).nlink, 2);
	assert_int_equal(unlink_at(f, root, "b", 0, &removed), 0);
	assert_int_equal(fixture_attr(f, ino).nlink, 1);
}

static void test_sustained(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, root, "open", CFS_TYPE_FILE);
	struct cfs_removed removed;
	struct cfs_usage usage;
	int64_t space, inodes;
	uint64_t length;

	assert_int_equal(f->e->ops->end_sustained(f->e, &f->ctx, FIXTURE_SID, ino, &length, &usage),
			 -ENOENT);
	f->open_ino = ino;
	assert_int_equal(unlink_at(f, root, "open", 0, &removed), 0);
	assert_int_equal(removed.outcome, CFS_REMOVED_SUSTAINED);
	assert_int_equal(fixture_attr(f, ino).nlink, 0);
	assert_int_equal(
		fixture_number(f, "SELECT inode FROM jfs_sustained WHERE sid=%d", FIXTURE_SID),
		(int64_t)ino);
	assert_int_equal(f->e->ops->get_counters(f->e, &f->ctx, &space, &inodes), 0);
	assert_int_equal(inodes, 1);
	f->open_ino = 0;
	assert_int_equal(f->e->ops->end_sustained(f->e, &f->ctx, FIXTURE_SID, ino, &length, &usage),
			 0);
	assert_int_equal(usage.inodes, -1);
	assert_int_equal(f->e->ops->get_counters(f->e, &f->ctx, &space, &inodes), 0);
	assert_int_equal(space, 0);
	assert_int_equal(inodes, 0);
	/* It was never written: there is nothing to delete later. */
	assert_true(length == UINT64_MAX);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_delfile"), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_sustained"), 0);
}

/* A client that died with open removed files must not leave them behind. */
static void test_clean_session(void **state)
{
	struct fixture *f = *state;
	struct cfs_removed removed;
	char name[16];
	int i;

	for (i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "open%d", i);
		f->open_ino = fixture_make(f, root, name, CFS_TYPE_FILE);
		assert_int_equal(unlink_at(f, root, name, 0, &removed), 0);
	}
	assert_int_equal(f->e->ops->flock(f->e, &f->ctx, root, FIXTURE_SID, 1, CFS_LOCK_READ), 0);
	assert_int_equal(f->e->ops->clean_session(f->e, &f->ctx, FIXTURE_SID, INT64_MAX), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_sustained"), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_flock"), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_delfile"), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_node WHERE nlink=0"), 0);
}

static void test_removal_errors(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t dir = fixture_make(f, root, "dir", CFS_TYPE_DIR);
	cfs_ino_t file = fixture_make(f, dir, "file", CFS_TYPE_FILE);
	struct cfs_removed removed;

	assert_int_equal(unlink_at(f, root, "none", 0, &removed), -ENOENT);
	assert_int_equal(unlink_at(f, root, "dir", 0, &removed), -EISDIR);
	assert_int_equal(rmdir_at(f, dir, "file", 0, &removed), -ENOTDIR);
	assert_int_equal(unlink_at(f, 4711, "file", 0, &removed), -ENOENT);
	assert_int_equal(set_flags(f, file, CFS_FLAG_IMMUTABLE), 0);
	assert_int_equal(unlink_at(f, dir, "file", 0, &removed), -EPERM);
	assert_int_equal(set_flags(f, file, 0), 0);
	assert_int_equal(set_mode(f, dir, 01777), 0);
	f->ctx.uid = 1000;
	assert_int_equal(unlink_at(f, dir, "file", 0, &removed), -EACCES);
	f->ctx.uid = 0;
	assert_int_equal(unlink_at(f, dir, "file", 0, &removed), 0);
	assert_int_equal(rmdir_at(f, root, "dir", 0, &removed), 0);
	assert_int_equal(fixture_attr(f, root).nlink, 2);
}

/* A name whose node was lost can still be removed. */
static void test_dangling_name(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, root, "lost", CFS_TYPE_FILE);
	struct cfs_removed removed;

	fixture_number(f, "DELETE FROM jfs_node WHERE inode=%d", (int)ino);
	assert_int_equal(unlink_at(f, root, "lost", fixture_hour(f), &removed), 0);
	assert_int_equal(
		fixture_number(f, "SELECT count(*) FROM jfs_edge WHERE inode=%d", (int)ino), 0);
}

/* ---- rename ---- */

enum { FILE_A, FILE_B, EMPTY_DIR, FULL_DIR, NOTHING, KINDS };

static cfs_ino_t make_kind(struct fixture *f, int kind, const char *name)
{
	cfs_ino_t ino;

	if (kind == NOTHING)
		return 0;
	ino = fixture_make(f, root, name, kind <= FILE_B ? CFS_TYPE_FILE : CFS_TYPE_DIR);
	if (kind == FULL_DIR)
		fixture_make(f, ino, "inside", CFS_TYPE_FILE);
	return ino;
}

static void test_rename_errors(void **state)
{
	static const int plain[KINDS][KINDS] = {
		/* to:        file      file      empty     full        nothing */
		[FILE_A] = {0, 0, -EISDIR, -EISDIR, 0},
		[FILE_B] = {0, 0, -EISDIR, -EISDIR, 0},
		[EMPTY_DIR] = {-ENOTDIR, -ENOTDIR, 0, -ENOTEMPTY, 0},
		[FULL_DIR] = {-ENOTDIR, -ENOTDIR, 0, -ENOTEMPTY, 0},
		[NOTHING] = {-ENOENT, -ENOENT, -ENOENT, -ENOENT, -ENOENT},
	};
	static const unsigned flags[] = {0, CFS_RENAME_NOREPLACE, CFS_RENAME_EXCHANGE};
	struct fixture *f = *state;
	struct cfs_renamed renamed;
	char from[32], to[32];
	int src, dst, i, want, n = 0;

	for (i = 0; i < 3; i++)
		for (src = 0; src < KINDS; src++)
			for (dst = 0; dst < KINDS; dst++) {
				cfs_ino_t a, b;

				snprintf(from, sizeof(from), "from%d", n);
				snprintf(to, sizeof(to), "to%d", n++);
				a = make_kind(f, src, from);
				b = make_kind(f, dst, to);
				want = plain[src][dst];
				if (src != NOTHING && flags[i] == CFS_RENAME_NOREPLACE)
					want = b ? -EEXIST : 0;
				if (src != NOTHING && flags[i] == CFS_RENAME_EXCHANGE)
					want = b ? 0 : -ENOENT;
				assert_int_equal(
					rename_at(f, root, from, root, to, flags[i], 0, &renamed),
					want);
				if (want) {
					assert_int_equal(lookup(f, root, from), a);
					assert_int_equal(lookup(f, root, to), b);
					continue;
				}
				assert_int_equal(lookup(f, root, to), a);
				assert_int_equal(lookup(f, root, from),
						 flags[i] == CFS_RENAME_EXCHANGE ? b : 0);
			}
}

static void test_rename_rules(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t hour = fixture_hour(f), d = fixture_make(f, root, "d", CFS_TYPE_DIR);
	cfs_ino_t sub = fixture_make(f, d, "sub", CFS_TYPE_DIR);
	cfs_ino_t a = fixture_make(f, root, "a", CFS_TYPE_FILE);
	struct cfs_renamed renamed;
	struct cfs_removed removed;
	char name[64];

	/* Two names of one file: nothing happens. */
	assert_int_equal(link_at(f, a, d, "a2"), 0);
	assert_int_equal(rename_at(f, root, "a", d, "a2", 0, hour, &renamed), 0);
	assert_int_equal(renamed.victim.outcome, CFS_REMOVED_NONE);
	assert_int_equal(lookup(f, root, "a"), a);
	assert_int_equal(fixture_attr(f, a).nlink, 2);

	assert_int_equal(rename_at(f, root, "d", d, "x", 0, hour, &renamed), -EINVAL);
	assert_int_equal(rename_at(f, d, "sub", root, "d", 0, hour, &renamed), -ENOTEMPTY);
	assert_int_equal(rename_at(f, d, "sub", root, "d", CFS_RENAME_EXCHANGE, hour, &renamed),
			 -EINVAL);
	assert_int_equal(rename_at(f, root, "a", hour, "x", 0, 0, &renamed), -EPERM);

	/* A directory changes hands: link counts and parent follow. */
	assert_int_equal(rename_at(f, d, "sub", root, "sub", 0, hour, &renamed), 0);
	assert_int_equal(fixture_attr(f, d).nlink, 2);
	assert_int_equal(fixture_attr(f, root).nlink, 4);
	assert_int_equal(fixture_attr(f, sub).parent, root);

	/* A directory out of a sticky directory needs its owner, even for the sticky one's. */
	assert_int_equal(set_mode(f, d, 01777), 0);
	assert_int_equal(rename_at(f, root, "sub", d, "sub", 0, hour, &renamed), 0);
	fixture_number(f, "UPDATE jfs_node SET uid=1000 WHERE inode=%d", (int)d);
	f->ctx.uid = 1000;
	assert_int_equal(rename_at(f, d, "sub", root, "sub", 0, hour, &renamed), -EACCES);
	assert_int_equal(rename_at(f, d, "sub", d, "sub2", 0, hour, &renamed), 0);
	f->ctx.uid = 0;

	/* The victim goes to the trash, and comes back by a rename. */
	fixture_make(f, root, "b", CFS_TYPE_FILE);
	assert_int_equal(rename_at(f, root, "b", d, "sub2", 0, hour, &renamed), -EISDIR);
	assert_int_equal(unlink_at(f, d, "a2", 0, &removed), 0);
	assert_int_equal(rename_at(f, root, "b", root, "a", 0, hour, &renamed), 0);
	assert_int_equal(renamed.victim.outcome, CFS_REMOVED_TRASHED);
	assert_int_equal(renamed.victim.ino, a);
	snprintf(name, sizeof(name), "1-%d-a", (int)a);
	assert_int_equal(lookup(f, hour, name), a);
	f->ctx.uid = 1000;
	assert_int_equal(rename_at(f, hour, name, root, "back", 0, 0, &renamed), -EPERM);
	f->ctx.uid = 0;
	assert_int_equal(rename_at(f, hour, name, root, "back", CFS_RENAME_NOREPLACE, 0, &renamed),
			 0);
	assert_int_equal(lookup(f, root, "back"), a);
}

/* ---- usage and link counts under random name operations ---- */

#define DIRS  4
#define NAMES 5

static void check_tree(struct fixture *f)
{
	/* nlink of directories and files, parent, dir_stats, counters: each row by itself */
	assert_int_equal(fixture_number(f,
					"SELECT count(*) FROM jfs_node n WHERE type=2 AND "
					"inode<%lld AND nlink<>2+(SELECT count(*) FROM jfs_edge "
					"WHERE parent=n.inode AND type=2)",
					(long long)CFS_TRASH_INO),
			 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_node n WHERE type<>2 AND "
					   "nlink<>(SELECT count(*) FROM jfs_edge "
					   "WHERE inode=n.inode)"),
			 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_node n JOIN jfs_edge e ON "
					   "e.inode=n.inode WHERE n.parent<>0 AND "
					   "n.parent<>e.parent"),
			 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_edge e LEFT JOIN jfs_node n "
					   "ON n.inode=e.inode WHERE n.inode IS NULL OR "
					   "n.type<>e.type"),
			 0);
	assert_int_equal(
		fixture_number(f,
			       "SELECT count(*) FROM jfs_dir_stats s WHERE used_inodes<>"
			       "(SELECT count(*) FROM jfs_edge WHERE parent=s.inode) OR "
			       "used_space<>(SELECT count(*)*4096+coalesce(sum(CASE WHEN n.type=1"
			       " AND n.length>0 THEN (n.length-1)/4096*4096 ELSE 0 END),0)"
			       " FROM jfs_edge e JOIN jfs_node n ON n.inode=e.inode "
			       "WHERE e.parent=s.inode) OR data_length<>(SELECT "
			       "coalesce(sum(CASE n.type WHEN 1 THEN n.length ELSE 0 END),0) FROM "
			       "jfs_edge e JOIN jfs_node n ON n.inode=e.inode WHERE "
			       "e.parent=s.inode)"),
		0);
	assert_int_equal(fixture_number(f, "SELECT value FROM jfs_counter WHERE "
					   "name='totalInodes'"),
			 fixture_number(f,
					"SELECT count(*) FROM jfs_node WHERE inode NOT IN "
					"(1,%lld)",
					(long long)CFS_TRASH_INO));
	assert_int_equal(fixture_number(f, "SELECT value FROM jfs_counter WHERE name='usedSpace'"),
			 fixture_number(f,
					"SELECT sum(4096+CASE WHEN type=1 AND length>0 THEN "
					"(length-1)/4096*4096 ELSE 0 END) FROM jfs_node WHERE "
					"inode NOT IN (1,%lld)",
					(long long)CFS_TRASH_INO));
}

static void random_names(struct fixture *f, unsigned *seed, const cfs_ino_t dirs[DIRS],
			 cfs_ino_t hour)
{
	static const unsigned flags[] = {0, 0, CFS_RENAME_NOREPLACE, CFS_RENAME_EXCHANGE};
	cfs_ino_t d = dirs[rand_r(seed) % DIRS], d2 = dirs[rand_r(seed) % DIRS], ino;
	cfs_ino_t trash = rand_r(seed) % 2 ? hour : 0;
	const char name[] = {(char)('a' + rand_r(seed) % NAMES), 0};
	const char name2[] = {(char)('a' + rand_r(seed) % NAMES), 0};
	struct cfs_renamed renamed;
	struct cfs_removed removed;
	struct cfs_usage usage;
	struct cfs_attr attr;

	ino = lookup(f, d, name);
	switch (rand_r(seed) % 8) {
	case 0:
	case 1:
		if (!ino)
			fixture_make(f, d, name, (uint8_t)(CFS_TYPE_FILE + rand_r(seed) % 4));
		break;
	case 2:
		if (ino)
			link_at(f, ino, d2, name2);
		break;
	case 3:
		unlink_at(f, d, name, trash, &removed);
		break;
	case 4:
		rmdir_at(f, d, name, trash, &removed);
		break;
	case 5:
		if (ino)
			f->e->ops->truncate(f->e, &f->ctx, ino, (uint64_t)rand_r(seed) % 20000,
					    &attr, &usage);
		break;
	default:
		rename_at(f, d, name, d2, name2, flags[rand_r(seed) % 4], trash, &renamed);
	}
}

static void test_random_names(void **state)
{
	const struct cfs_row none = {.ino = root};
	struct fixture *f = *state;
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 20261121;
	cfs_ino_t dirs[DIRS] = {root}, hour = fixture_hour(f);
	char name[16];
	int i;

	print_message("SEED=%u\n", seed);
	assert_int_equal(f->e->ops->put_rows(f->e, &f->ctx, CFS_TABLE_DIR_STAT, &none, 1), 0);
	for (i = 1; i < DIRS; i++) {
		snprintf(name, sizeof(name), "dir%d", i);
		dirs[i] = fixture_make(f, root, name, CFS_TYPE_DIR);
	}
	for (i = 0; i < 3000; i++) {
		random_names(f, &seed, dirs, hour);
		if (i % 50 == 49)
			check_tree(f);
	}
}

/* ---- locks ---- */

static int setlk(struct fixture *f, cfs_ino_t ino, uint64_t owner, uint32_t type, uint64_t start,
		 uint64_t end)
{
	const struct cfs_plock l = {.type = type, .pid = 0x516, .start = start, .end = end};

	return f->e->ops->setlk(f->e, &f->ctx, ino, FIXTURE_SID, owner, &l);
}

static void test_plock(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, root, "file", CFS_TYPE_FILE);
	struct cfs_plock l = {.type = CFS_LOCK_WRITE, .start = 0, .end = INT64_MAX};
	uint64_t sid, owner;

	assert_int_equal(setlk(f, 4711, 1, CFS_LOCK_READ, 0, 5), -ENOENT);
	assert_int_equal(setlk(f, ino, 1, CFS_LOCK_WRITE, 0, 99), 0);
	assert_int_equal(setlk(f, ino, 1, CFS_LOCK_READ, 200, 249), 0);
	assert_int_equal(setlk(f, ino, 1, CFS_LOCK_WRITE, 1000, INT64_MAX), 0);
	assert_int_equal(setlk(f, ino, 1, CFS_LOCK_NONE, 40, 49), 0);
	assert_string_equal(fixture_hex(f, "SELECT records FROM jfs_plock"),
			    "000000010000051600000000000000000000000000000027"
			    "000000010000051600000000000000320000000000000063"
			    "000000000000051600000000000000c800000000000000f9"
			    "000000010000051600000000000003e87fffffffffffffff");
	assert_int_equal(setlk(f, ino, 2, CFS_LOCK_READ, 45, 60), -EAGAIN);
	assert_int_equal(setlk(f, ino, 2, CFS_LOCK_READ, 40, 49), 0);
	assert_int_equal(setlk(f, ino, 2, CFS_LOCK_READ, 210, 220), 0);
	assert_int_equal(f->e->ops->getlk(f->e, &f->ctx, ino, 99, 1, &l, &sid, &owner), 0);
	assert_int_equal(l.type, CFS_LOCK_WRITE);
	assert_int_equal(l.end, 39);
	assert_int_equal(sid, FIXTURE_SID);
	assert_int_equal(owner, 1);
	l = (struct cfs_plock){.type = CFS_LOCK_READ, .start = 100, .end = 250};
	assert_int_equal(f->e->ops->getlk(f->e, &f->ctx, ino, 99, 1, &l, &sid, &owner), 0);
	assert_int_equal(l.type, CFS_LOCK_NONE);
	assert_int_equal(setlk(f, ino, 1, CFS_LOCK_NONE, 0, INT64_MAX), 0);
	assert_int_equal(setlk(f, ino, 2, CFS_LOCK_NONE, 0, INT64_MAX), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_plock"), 0);
}

static void test_flock(void **state)
{
	struct fixture *f = *state;
	cfs_ino_t ino = fixture_make(f, root, "file", CFS_TYPE_FILE);
	const struct {
		uint64_t sid, owner;
		enum cfs_lock_type type;
		int want;
	} steps[] = {
		{7, 1, CFS_LOCK_READ, 0},	 {8, 1, CFS_LOCK_READ, 0},
		{7, 1, CFS_LOCK_WRITE, -EAGAIN}, {8, 1, CFS_LOCK_NONE, 0},
		{7, 1, CFS_LOCK_WRITE, 0},	 {7, 2, CFS_LOCK_READ, -EAGAIN},
		{7, 1, CFS_LOCK_READ, 0},	 {7, 2, CFS_LOCK_READ, 0},
		{7, 2, CFS_LOCK_NONE, 0},	 {7, 2, CFS_LOCK_NONE, 0},
	};
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(steps); i++)
		assert_int_equal(f->e->ops->flock(f->e, &f->ctx, ino, steps[i].sid, steps[i].owner,
						  steps[i].type),
				 steps[i].want);
	assert_int_equal(fixture_number(f, "SELECT ltype FROM jfs_flock"), 'R');
	assert_int_equal(f->e->ops->flock(f->e, &f->ctx, 4711, 7, 1, CFS_LOCK_READ), -ENOENT);
}

/* ---- extended attributes, ACL, quotas ---- */

static void test_xattr(void **state)
{
	struct fixture *f = *state;
	const struct cfs_engine_ops *ops = f->e->ops;
	cfs_ino_t ino = fixture_make(f, root, "file", CFS_TYPE_FILE);
	struct cfs_removed removed;
	void *value;
	char *list;

	assert_int_equal(ops->getxattr(f->e, &f->ctx, ino, "user.a", &value), -ENODATA);
	assert_int_equal(ops->setxattr(f->e, &f->ctx, ino, "user.a", "x", 1, XATTR_REPLACE),
			 -ENODATA);
	assert_int_equal(ops->setxattr(f->e, &f->ctx, ino, "user.a", "\0y", 2, XATTR_CREATE), 0);
	assert_int_equal(ops->setxattr(f->e, &f->ctx, ino, "user.a", "z", 1, XATTR_CREATE),
			 -EEXIST);
	assert_int_equal(ops->getxattr(f->e, &f->ctx, ino, "user.a", &value), 2);
	assert_memory_equal(value, "\0y", 2);
	free(value);
	assert_int_equal(ops->setxattr(f->e, &f->ctx, ino, "user.b", NULL, 0, 0), 0);
	assert_int_equal(ops->getxattr(f->e, &f->ctx, ino, "user.b", &value), 0);
	free(value);
	assert_int_equal(ops->listxattr(f->e, &f->ctx, ino, &list), 14);
	assert_memory_equal(list, "user.a\0user.b\0", 14);
	free(list);
	assert_int_equal(ops->removexattr(f->e, &f->ctx, ino, "user.b"), 0);
	assert_int_equal(ops->removexattr(f->e, &f->ctx, ino, "user.b"), -ENODATA);
	assert_string_equal(fixture_hex(f, "SELECT typeof(name)||typeof(value) FROM jfs_xattr"),
			    "74657874626c6f62");
	assert_int_equal(unlink_at(f, root, "file", 0, &removed), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_xattr"), 0);
	assert_int_equal(ops->setxattr(f->e, &f->ctx, ino, "user.a", "x", 1, 0), -ENOENT);
}

static void test_acl(void **state)
{
	struct fixture *f = *state;
	const struct cfs_engine_ops *ops = f->e->ops;
	cfs_ino_t ino = fixture_make(f, root, "file", CFS_TYPE_FILE);
	struct cfs_acl_entry user = {0x3e9, 6}, group = {0x7d2, 4};
	struct cfs_acl got, rule = {
				    .owner = 6,
				    .group = 4,
				    .mask = 6,
				    .n_users = 1,
				    .users = &user,
				    .n_groups = 1,
				    .groups = &group,
			    };
	struct cfs_attr attr;
	uint32_t id, again;

	assert_int_equal(ops->put_acl(f->e, &f->ctx, &rule, &id), 0);
	assert_int_equal(ops->put_acl(f->e, &f->ctx, &rule, &again), 0);
	assert_int_equal(id, again);
	user.perm = 4;
	assert_int_equal(ops->put_acl(f->e, &f->ctx, &rule, &again), 0);
	assert_int_not_equal(id, again);
	assert_string_equal(fixture_hex(f, "SELECT named_users||named_groups FROM jfs_acl"),
			    "000003e90006000007d20004");
	assert_int_equal(ops->get_acl(f->e, &f->ctx, id, &got), 0);
	assert_int_equal(got.users[0].perm, 6);
	assert_int_equal(got.groups[0].id, 0x7d2);
	free(got.users);
	free(got.groups);
	assert_int_equal(ops->get_acl(f->e, &f->ctx, 4711, &got), -ENODATA);
	assert_int_equal(ops->set_acl_id(f->e, &f->ctx, ino, false, id, 0664, &attr), 0);
	attr = fixture_attr(f, ino);
	assert_int_equal(attr.access_acl, id);
	assert_int_equal(attr.mode, 0664);
}

static int sum_quota(void *arg, const struct cfs_quota *q)
{
	int64_t *sum = arg;

	sum[q->kind] += q->used_space;
	return 0;
}

static void test_quota(void **state)
{
	struct fixture *f = *state;
	const struct cfs_engine_ops *ops = f->e->ops;
	cfs_ino_t dir = fixture_make(f, root, "dir", CFS_TYPE_DIR);
	const struct cfs_quota dir_quota = {CFS_QUOTA_DIR, dir, 1 << 30, 100, 8192, 2};
	const struct cfs_quota deltas[] = {
		{CFS_QUOTA_DIR, dir, 0, 0, 4096, 1},	{CFS_QUOTA_DIR, 4711, 0, 0, 4096, 1},
		{CFS_QUOTA_USER, 1000, 0, 0, 4096, 1},	{CFS_QUOTA_USER, 1000, 0, 0, 4096, 1},
		{CFS_QUOTA_GROUP, 1000, 0, 0, 4096, 1},
	};
	struct cfs_removed removed;
	int64_t sum[3] = {0};

	assert_int_equal(ops->put_quota(f->e, &f->ctx, &dir_quota), 0);
	assert_int_equal(ops->add_quota_usage(f->e, &f->ctx, NULL, deltas, CFS_ARRAY_SIZE(deltas)),
			 0);
	assert_int_equal(ops->each_quota(f->e, &f->ctx, sum_quota, sum), 0);
	assert_int_equal(sum[CFS_QUOTA_DIR], 8192 + 4096);
	assert_int_equal(sum[CFS_QUOTA_USER], 8192);
	assert_int_equal(sum[CFS_QUOTA_GROUP], 4096);
	assert_int_equal(fixture_number(f, "SELECT max_space FROM jfs_user_group_quota"), -1);
	assert_int_equal(rmdir_at(f, root, "dir", 0, &removed), 0);
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_dir_quota"), 0);
}

/* ---- clone ---- */

static void test_clone_tree(void **state)
{
	struct fixture *f = *state;
	const struct cfs_engine_ops *ops = f->e->ops;
	cfs_ino_t dir = fixture_make(f, root, "dir", CFS_TYPE_DIR);
	cfs_ino_t sym = fixture_make(f, dir, "sym", CFS_TYPE_SYMLINK);
	struct cfs_entry top, child;
	struct cfs_usage usage;
	char target[CFS_SYMLINK_MAX + 1];

	assert_int_equal(ops->setxattr(f->e, &f->ctx, dir, "user.a", "x", 1, 0), 0);
	assert_int_equal(ops->clone_ino(f->e, &f->ctx, dir, 100, root, NULL, 0, true, &top, &usage),
			 0);
	assert_int_equal(fixture_number(f, "SELECT inode FROM jfs_detached_node"), 100);
	assert_int_equal(
		ops->clone_ino(f->e, &f->ctx, sym, 101, 100, "sym", 3, false, &child, &usage), 0);
	assert_int_equal(ops->attach(f->e, &f->ctx, 100, root, "dir", 3, &usage), -EEXIST);
	assert_int_equal(ops->attach(f->e, &f->ctx, 100, root, "copy", 4, &usage), 0);
	assert_int_equal(ops->attach(f->e, &f->ctx, 100, root, "more", 4, &usage), -ENOENT);
	assert_int_equal(lookup(f, lookup(f, root, "copy"), "sym"), 101);
	assert_int_equal(ops->readlink(f->e, &f->ctx, 101, target), 0);
	assert_string_equal(target, "target");
	assert_int_equal(fixture_number(f, "SELECT count(*) FROM jfs_xattr WHERE inode=100"), 1);
	assert_int_equal(fixture_attr(f, root).nlink, 4);
	check_tree(f);
}

/* ---- changelog: the lines of volume-format section 14 ---- */

static void test_changelog(void **state)
{
	static const char *const want[] = {
		"UNLINK(1,a%2Cb,0,false,false):2",
		"MOVE(1,c,1,d,0,0,0):3",
		"TRUNCATE(3,0,3000,0)",
		"SETXATTR(3,user.k,v%2C%00,0)",
		"FLOCK(3,5,W)",
		"SETLK(3,1,W,0,99,1302)",
	};
	struct fixture *f = *state;
	struct cfs_renamed renamed;
	struct cfs_removed removed;
	struct cfs_usage usage;
	struct cfs_attr attr;
	size_t i;

	fixture_make(f, root, "a,b", CFS_TYPE_FILE);
	fixture_make(f, root, "c", CFS_TYPE_FILE);
	f->host.changelog = true;
	assert_int_equal(unlink_at(f, root, "a,b", 0, &removed), 0);
	assert_int_equal(rename_at(f, root, "c", root, "d", 0, 0, &renamed), 0);
	assert_int_equal(f->e->ops->truncate(f->e, &f->ctx, 3, 3000, &attr, &usage), 0);
	assert_int_equal(f->e->ops->setxattr(f->e, &f->ctx, 3, "user.k", "v,\0", 3, 0), 0);
	assert_int_equal(f->e->ops->flock(f->e, &f->ctx, 3, FIXTURE_SID, 5, CFS_LOCK_WRITE), 0);
	assert_int_equal(setlk(f, 3, 1, CFS_LOCK_WRITE, 0, 99), 0);
	for (i = 0; i < CFS_ARRAY_SIZE(want); i++)
		assert_int_equal(fixture_number(f,
						"SELECT count(*) FROM jfs_change_log WHERE "
						"entry='1700000000.123456789|%s|(7,%d)' AND id=%d",
						want[i], (int)i + 1, (int)i + 1),
				 1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_trash),
		T(test_trash_of_hard_links),
		T(test_sustained),
		T(test_clean_session),
		T(test_removal_errors),
		T(test_dangling_name),
		T(test_rename_errors),
		T(test_rename_rules),
		T(test_random_names),
		T(test_plock),
		T(test_flock),
		T(test_xattr),
		T(test_acl),
		T(test_quota),
		T(test_clone_tree),
		T(test_changelog),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

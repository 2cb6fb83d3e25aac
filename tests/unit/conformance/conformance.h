/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine-conformance suite: every operation of the metadata layer, on a real database, through
 * the public interface where that can show it and through the engine's table where it cannot.
 *
 *	meta-conformance [META-URL]	an empty database; default: a fresh SQLite file
 *
 * One volume serves all tests: each works in a directory of its own, and after each the whole
 * volume is checked (volume_check). Two mounts of it are open.
 */
#ifndef CFS_TEST_CONFORMANCE_H
#define CFS_TEST_CONFORMANCE_H

#include <cachefs/meta.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "meta/api/core.h"

struct volume {
	char url[1024];
	struct cfs_meta *m;	/* the mount under test */
	struct cfs_meta *other; /* another mount of the same volume */
};
extern struct volume vol;

#define OK(call) assert_int_equal((call), 0)

struct cfs_ctx as_root(void);
struct cfs_ctx as_user(uint32_t uid, uint32_t gid); /* with permission checks */
struct cfs_ctx at_time(int64_t s, long ns);	    /* root, at that moment */

/* These succeed or end the test. */
cfs_ino_t test_dir(const char *name); /* in the root, 0777 */
cfs_ino_t make(cfs_ino_t parent, const char *name, uint8_t type);
cfs_ino_t make_file(cfs_ino_t parent, const char *name);
cfs_ino_t make_dir(cfs_ino_t parent, const char *name);
struct cfs_attr attr_of(cfs_ino_t ino);
cfs_ino_t find(cfs_ino_t parent, const char *name);
struct cfs_removed unlink_name(cfs_ino_t parent, const char *name);
struct cfs_removed rmdir_name(cfs_ino_t parent, const char *name);
void set_flags(cfs_ino_t ino, uint8_t flags);
/* One record of `len` bytes at `off` (within a chunk) from a slice of its own; its id. */
int commit_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx,
		 const struct cfs_slice *s, struct timespec mtime, struct cfs_attr *ret);
uint64_t write_at(cfs_ino_t ino, uint64_t off, uint32_t len);
/* The chunk's records as hex text, in a buffer that the next call reuses. */
const char *records_hex(cfs_ino_t ino, uint32_t indx);

/* These return what the call returned. */
int try_make(const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name, uint8_t type,
	     uint16_t mode, struct cfs_entry *ret);
int try_unlink(const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name);
int try_rmdir(const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name);
int try_link(const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent, const char *name);
int try_rename(const struct cfs_ctx *ctx, cfs_ino_t from, const char *old, cfs_ino_t to,
	       const char *name, unsigned flags, struct cfs_renamed *ret);
int try_lookup(cfs_ino_t parent, const char *name);
int try_getattr(cfs_ino_t ino);

/* Changes the volume's setting, for both mounts. */
void change_setting(void (*change)(struct cfs_setting *s));
void trash_on(struct cfs_setting *s);
void trash_off(struct cfs_setting *s);

/*
 * Replaces an operation of the engine under test; NULL: the engine's own. Its threads
 * go on meanwhile: the table is installed before there are any, and nothing in it changes but this.
 */
#define HOOK(name) _Atomic(__typeof__(((struct cfs_engine_ops *)0)->name)) name
extern struct engine_hooks {
	HOOK(each_quota);
	HOOK(add_quota_usage);
	HOOK(end_sustained);
	HOOK(flock);
	HOOK(setlk);
	HOOK(getlk);
} engine_hooks;
#undef HOOK
void hooks_install(struct cfs_meta *m);
const struct cfs_engine_ops *real_ops(void);

/* One more mount, loaded and not started; the caller stops and closes it. */
struct cfs_meta *open_third(const struct cfs_meta_conf *conf);

/* The inodes this mount claims to have open (cfs_meta_hooks.is_open). */
void set_open(cfs_ino_t ino, bool open);

/* Slices whose objects the core has had removed. */
bool slice_deleted(uint64_t id);
/* Waits until the background deletion has nothing left to do. */
void wait_deletions(void);

/*
 * Counts, parents, link counts, usage and statistics of the whole volume, from the tables: how many are
 * wrong. They are printed. volume_check() fails the test then.
 */
int volume_damage(struct cfs_meta *m);
void volume_check(struct cfs_meta *m);

/* Writes as a child that the parent kills: never returns. */
void crash_child(const char *url, unsigned seed) __attribute__((noreturn));

extern const struct CMUnitTest name_tests[], rename_tests[], attr_tests[], readdir_tests[],
	data_tests[], commit_tests[], compact_tests[], delete_tests[], xattr_tests[], lock_tests[],
	session_tests[], quota_tests[], record_tests[], lease_tests[], crash_tests[], admin_tests[],
	dirtimes_tests[], optimistic_tests[], permission_tests[], thread_tests[];
extern const size_t name_test_count, rename_test_count, attr_test_count, readdir_test_count,
	data_test_count, commit_test_count, compact_test_count, delete_test_count, xattr_test_count,
	lock_test_count, session_test_count, quota_test_count, record_test_count, lease_test_count,
	crash_test_count, admin_test_count, dirtimes_test_count, optimistic_test_count,
	permission_test_count, thread_test_count;

#define TEST_LIST(which, ...)                                                                      \
	const struct CMUnitTest which##_tests[] = {__VA_ARGS__};                                   \
	const size_t which##_test_count = sizeof(which##_tests) / sizeof(which##_tests[0])
#define T(fn) cmocka_unit_test_teardown(fn, after_each)
int after_each(void **state);

#endif

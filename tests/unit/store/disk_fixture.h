/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the disk cache: a scratch directory, and the cache in it as a tier of a store. */
#ifndef CFS_DISK_FIXTURE_H
#define CFS_DISK_FIXTURE_H

#include <cachefs/disk.h>

#include "store_fixture.h"

#define UUID "5ad22e7b-6d15-4b2b-8b6e-4c1ad4a9c0de"

extern char top[64];	/* the scratch directory */
extern char cache[128]; /* the cache directory in it */
extern struct cfs_disk *disk;
/* Taken by open_disk(); defaults are set before each test. */
extern struct cfs_disk_conf disk_conf;
extern bool plain_objects; /* as `plain` of struct setting; true before each test */

/* Of each test. */
int disk_set_up(void **state);
int disk_tear_down(void **state);
#define DISK_TEST(name) cmocka_unit_test_setup_teardown(name, disk_set_up, disk_tear_down)

/* A store with the cache as its tier. Objects and files stay when it is closed. */
void open_disk(void);
void close_disk(void);

/* Gives the cache a block; it is written some time. */
void offer(const struct cfs_block *b);
/* The same, and waits until it is written. */
void store_block(const struct cfs_block *b);
/* From the cache alone. -EILSEQ when the bytes are wrong. */
ssize_t get(const struct cfs_block *b, uint32_t off, uint32_t len);

/* Of a block in the cache directory: tree is "raw" or "rawstaging". */
void path_in(const char *tree, const struct cfs_block *b, char path[512]);
/* The same in "raw"; the next call overwrites it. */
char *path_of(const struct cfs_block *b);
bool in_tree(const char *tree, const struct cfs_block *b);
bool file_exists(const struct cfs_block *b); /* in "raw" */

/* A file of zeros of that age. */
void touch(const char *path, size_t len, time_t age_s);
void remove_tree(const char *path);
/* Until nobody puts anything in it any more. */
void remove_cache(void);
/* Makes the cache directory a file system of its own. Skips the test where that is not allowed. */
void mount_tmpfs(const char *options);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The targets of mdtest: a directory, or a volume's metadata without a mount. */
#ifndef CFS_CMD_MDTEST_H
#define CFS_CMD_MDTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The tree: directory 0 is the top, which is used by this run only; the parent of directory i > 0
 * is (i - 1) / width. File f is in directory f / files.
 */
struct mdtest_shape {
	uint64_t width, files, n_dirs, n_files;
	uint64_t write_bytes; /* bytes per file */
	unsigned threads;
};

struct mdtest_requests {
	uint64_t round_trips;
	uint64_t retries; /* transactions that conflicted with another one */
};

/*
 * Members may be called by many threads at once, except open and close. Each returns 0 or a
 * negative errno.
 */
struct mdtest_target;
struct mdtest_ops {
	int (*mkdir)(struct mdtest_target *t, uint64_t dir);
	int (*create)(struct mdtest_target *t, uint64_t file);
	int (*stat)(struct mdtest_target *t, uint64_t file);
	int (*list)(struct mdtest_target *t, uint64_t dir);
	int (*unlink)(struct mdtest_target *t, uint64_t file);
	int (*rmdir)(struct mdtest_target *t, uint64_t dir);
	/* Called when no more files will be created. NULL: nothing to do. */
	int (*created)(struct mdtest_target *t);
	/* Adds the number of requests that the metadata engine has received; false: unknown. */
	bool (*requests)(struct mdtest_target *t, struct mdtest_requests *ret);
	/* Called after clean-up. A failure is reported. */
	int (*close)(struct mdtest_target *t);
};
struct mdtest_target {
	const struct mdtest_ops *ops;
	struct mdtest_shape shape;
};

/* Both explain failures on stderr and return an exit status. */
int mdtest_open_path(const char *path, const struct mdtest_shape *s, struct mdtest_target **ret);
/* skip_dir_mtime_ms: as in struct cfs_meta_conf */
int mdtest_open_volume(const char *url, const struct mdtest_shape *s, uint64_t skip_dir_mtime_ms,
		       struct mdtest_target **ret);

#endif

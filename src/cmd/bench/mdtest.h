/* SPDX-License-Identifier: Apache-2.0 */
/* What mdtest works on: a directory, or a volume's metadata without a mount. */
#ifndef CFS_CMD_MDTEST_H
#define CFS_CMD_MDTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The tree: directory 0 is the top, which nobody else uses; the parent of directory i > 0 is
 * (i - 1) / width. File f is in directory f / files.
 */
struct mdtest_shape {
	uint64_t width, files, n_dirs, n_files;
	uint64_t write_bytes; /* into each file */
	unsigned threads;
};

struct mdtest_requests {
	uint64_t round_trips;
	uint64_t retries; /* of transactions that met another one */
};

/* Members are called by many threads, but for open and close; each returns 0 or negative errno. */
struct mdtest_target;
struct mdtest_ops {
	int (*mkdir)(struct mdtest_target *t, uint64_t dir);
	int (*create)(struct mdtest_target *t, uint64_t file);
	int (*stat)(struct mdtest_target *t, uint64_t file);
	int (*list)(struct mdtest_target *t, uint64_t dir);
	int (*unlink)(struct mdtest_target *t, uint64_t file);
	int (*rmdir)(struct mdtest_target *t, uint64_t dir);
	/* Files are not created any more from here on. NULL: nothing to do. */
	int (*created)(struct mdtest_target *t);
	/* Adds what the metadata engine was asked so far; false: not known. */
	bool (*requests)(struct mdtest_target *t, struct mdtest_requests *ret);
	/* Clean-up comes before it; a failure is reported. */
	int (*close)(struct mdtest_target *t);
};
struct mdtest_target {
	const struct mdtest_ops *ops;
	struct mdtest_shape shape;
};

/* Both say what is wrong on stderr and return an exit status. */
int mdtest_open_path(const char *path, const struct mdtest_shape *s, struct mdtest_target **ret);
/* skip_dir_mtime_ms: as in struct cfs_meta_conf */
int mdtest_open_volume(const char *url, const struct mdtest_shape *s, uint64_t skip_dir_mtime_ms,
		       struct mdtest_target **ret);

#endif

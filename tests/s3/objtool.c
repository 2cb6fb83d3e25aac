/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objtool DEADLINE-MS SILENCE-MS STORAGE BUCKET COMMAND...: one call to an object store, as a mount
 * makes it, for tests. Its result is one line of JSON; keys and bytes go to FILE.
 *
 *	create | put KEY FILE | new KEY FILE | get KEY OFF LEN FILE TIMES | head KEY | del KEY...
 *	list PREFIX AFTER FILE
 */
#include <cachefs/object.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#define PIECE 100000 /* memory comes and goes in pieces of this size */
#define IOV   1024

static struct cfs_object_store *store;
static cfs_deadline_t deadline;

static void fail(const char *what)
{
	fprintf(stderr, "objtool: %s\n", what);
	exit(2);
}

static int in_pieces(char *data, size_t len, struct iovec iov[IOV])
{
	int n = 0;

	while (len && n < IOV) {
		size_t part = len < PIECE ? len : PIECE;

		iov[n++] = (struct iovec){.iov_base = data, .iov_len = part};
		data += part;
		len -= part;
	}
	return n;
}

static long put(const char *key, const char *path, unsigned tier)
{
	struct iovec iov[IOV];
	char *data;
	off_t len;
	long r;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	len = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	data = len < 0 ? NULL : malloc((size_t)len + 1);
	if (!data || pread(fd, data, (size_t)len, 0) != len)
		fail(path);
	close(fd);
	r = store->ops->put(store, key, iov, in_pieces(data, (size_t)len, iov), tier, deadline);
	free(data);
	return r;
}

static long get(const char *key, uint64_t off, size_t len, const char *path, int times)
{
	struct iovec iov[IOV];
	char *data = malloc(len + 1);
	long n = 0;
	FILE *out;

	if (!data)
		fail("out of memory");
	while (times-- > 0 && n >= 0)
		n = cfs_object_get(store, key, off, iov, in_pieces(data, len, iov), deadline);
	out = fopen(path, "we");
	if (!out || (n > 0 && fwrite(data, 1, (size_t)n, out) != (size_t)n) || fclose(out) != 0)
		fail(path);
	free(data);
	return n;
}

static int print_info(void *arg, const struct cfs_object_info *info)
{
	fprintf(arg, "%s %" PRIu64 " %" PRId64 "\n", info->key, info->size, info->mtime_s);
	return 0;
}

static long list(const char *prefix, const char *after, const char *path)
{
	FILE *out = fopen(path, "we");
	long r;

	if (!out)
		fail(path);
	r = store->ops->list(store, prefix, after, print_info, out, deadline);
	fclose(out);
	return r;
}

static long run(int argc, char **argv)
{
	struct cfs_object_info info;
	long r;

	if (!strcmp(argv[0], "create"))
		return store->ops->create ? store->ops->create(store, deadline) : 0;
	if (!strcmp(argv[0], "put") && argc == 3)
		return put(argv[1], argv[2], 0);
	if (!strcmp(argv[0], "new") && argc == 3)
		return put(argv[1], argv[2], CFS_OBJECT_NEW);
	if (!strcmp(argv[0], "get") && argc == 6)
		return get(argv[1], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10),
			   argv[4], (int)strtol(argv[5], NULL, 10));
	if (!strcmp(argv[0], "head") && argc == 2) {
		r = store->ops->head(store, argv[1], &info, deadline);
		return r < 0 ? r : (long)info.size;
	}
	if (!strcmp(argv[0], "del") && argc >= 2)
		return cfs_object_del_many(store, (const char *const *)argv + 1, (size_t)argc - 1,
					   deadline);
	if (!strcmp(argv[0], "list") && argc == 4)
		return list(argv[1], argv[2], argv[3]);
	fail("unknown command");
	return 0;
}

int main(int argc, char **argv)
{
	struct cfs_object_conf conf = {0};
	char err[256];
	uint64_t start;
	long r;

	if (argc < 6)
		fail("usage: objtool DEADLINE-MS SILENCE-MS STORAGE BUCKET COMMAND...");
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_WARN);
	conf.silence_ms = strtoull(argv[2], NULL, 10);
	conf.storage = argv[3];
	conf.bucket = argv[4];
	if (cfs_object_open(&conf, &store, err) < 0)
		fail(err);
	start = cfs_now_ms();
	deadline = start + strtoull(argv[1], NULL, 10);
	r = run(argc - 5, argv + 5);
	printf("{\"result\": %ld, \"error\": \"%s\", \"ms\": %" PRIu64 ", \"retries\": %" PRIu64
	       ", \"damaged\": %" PRIu64 "}\n",
	       r, r < 0 ? cfs_errname((int)r) : "", cfs_now_ms() - start, cfs_object_retries(),
	       cfs_object_damaged());
	cfs_object_close(store);
	return r < 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data that the processes of a mount hand over. The first byte of an input says how the rest is
 * used:
 *
 *	0	the handoff state: bytes are put into its tables, and a VFS goes on from it
 *	1	the handoff state as a file of any bytes
 *	2	a message between supervisors and workers
 *	3	the memory with the requests of a process, 4 that with its log lines
 */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/log.h"
#include "base/logring.h"
#include "cmd/mountd/supervise/handover.h"
#include "fuzz.h"
#include "unit/vfs/vfs_fixture.h"

/* Where the tables are in the file; the header's fields say how many records they have. */
#define REQUESTS 4096u
#define HANDLES	 (REQUESTS + CFS_HANDOFF_REQUESTS * sizeof(struct cfs_handoff_request))
#define INODES	 (HANDLES + CFS_HANDOFF_HANDLES * sizeof(struct cfs_handoff_handle))
#define DIRS	 (INODES + CFS_HANDOFF_INODES * sizeof(struct cfs_handoff_inode))

/* Runs of: table, record, place in it, length, bytes. */
static void poke(int fd, struct fuzz_in *in)
{
	static const struct {
		size_t at, bytes;
	} tables[] = {
		{0, 0},
		{1024, 0},
		{REQUESTS, sizeof(struct cfs_handoff_request)},
		{HANDLES, sizeof(struct cfs_handoff_handle)},
		{INODES, sizeof(struct cfs_handoff_inode)},
		{DIRS, sizeof(struct cfs_handoff_dir)},
	};

	while (in->left > 4) {
		size_t table = fuzz_u8(in) % 6, record = fuzz_u8(in);
		size_t at = tables[table].at + record * tables[table].bytes + fuzz_u8(in) * 2;
		size_t len = fuzz_u8(in);

		len = len < in->left ? len : in->left;
		check(pwrite(fd, in->p, len, (off_t)at) == (ssize_t)len);
		in->p += len;
		in->left -= len;
	}
}

static int take_name(void *arg, const struct cfs_vfs_dirent *e)
{
	int *n = arg;

	return ++*n > 100;
}

/* Requests to handles that may be there. */
static void use_handles(struct cfs_handoff *k)
{
	struct cfs_ctx c = ctx();
	uint64_t fh;
	uint32_t i;
	int n;

	for (i = 0; i < 16; i++) {
		fh = atomic_load(&cfs_handoff_handle(k, i)->fh);
		if (!fh)
			continue;
		n = 0;
		cfs_vfs_readdir(vfs, &c, fh, i, false, take_name, &n);
		cfs_vfs_fsync(vfs, &c, fh);
		cfs_vfs_flush_file(vfs, &c, fh, 7);
		if (i % 2)
			cfs_vfs_release(vfs, &c, fh);
	}
	cfs_vfs_close_released(vfs);
	fh = open_file(1, 0);
	release(fh);
}

static void go_on(struct fuzz_in *in)
{
	struct cfs_vfs_restored restored = {0};
	struct cfs_handoff *first, *k;
	char err[256];
	bool again;
	int fd, r;

	check(cfs_handoff_create(&first) == 0);
	fd = dup(cfs_handoff_fd(first));
	poke(fd, in);
	cfs_handoff_close(first);
	r = cfs_handoff_attach(fd, &k, err);
	if (r < 0) {
		close(fd);
		return;
	}
	cfs_handoff_end_request(cfs_handoff_begin_request(k, 10, true, &again));
	cfs_handoff_begin_request(k, 12, false, &again);
	start_kept(k);
	if (cfs_vfs_restore(vfs, &restored) == 0)
		use_handles(k);
	free(restored.lost_inos);
	cfs_vfs_destroy(vfs);
	cfs_handoff_close(k);
}

static int memory_of(const struct fuzz_in *in)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	check(fd >= 0 && write(fd, in->p, in->left) == (ssize_t)in->left);
	return fd;
}

static void any_file(const struct fuzz_in *in)
{
	int fd = memory_of(in);
	struct cfs_handoff *k;
	char err[256] = "";

	/* None is as long as one that is right. */
	check(cfs_handoff_attach(fd, &k, err) < 0 && *err);
	close(fd);
}

static void message(const struct fuzz_in *in)
{
	struct handover m;
	int pair[2];

	check(handover_pair(pair) == 0);
	if (send(pair[0], in->p, in->left, MSG_DONTWAIT) == (ssize_t)in->left &&
	    handover_receive(pair[1], cfs_deadline_in(1000), &m) == 0) {
		check(strlen(m.text) < sizeof(m.text));
		handover_close_fds(&m);
	}
	close(pair[0]);
	close(pair[1]);
}

/* The memory of a process as it begins. */
struct memory {
	uint8_t *p;
	size_t size;
};

static struct memory activity, logring;

static void take_memory(const char *name, struct memory *ret)
{
	char path[64], what[128], want[64];
	ssize_t n;
	int fd;

	snprintf(want, sizeof(want), "/memfd:%s", name);
	for (fd = 0; fd < 64 && !ret->p; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, what, sizeof(what) - 1);
		what[n > 0 ? n : 0] = '\0';
		if (strncmp(what, want, strlen(want)) != 0)
			continue;
		ret->size = (size_t)lseek(fd, 0, SEEK_END);
		ret->p = malloc(ret->size);
		check(ret->p && pread(fd, ret->p, ret->size, 0) == (ssize_t)ret->size);
	}
	check(ret->p != NULL);
}

/* The same with the input over it. */
static int other_memory(const struct memory *m, struct fuzz_in *in)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	size_t at, len;

	check(fd >= 0 && pwrite(fd, m->p, m->size, 0) == (ssize_t)m->size);
	while (in->left > 3) {
		at = fuzz_uint(in, 2) * 8 % m->size;
		len = fuzz_u8(in);
		len = len < in->left ? len : in->left;
		len = len < m->size - at ? len : m->size - at;
		check(pwrite(fd, in->p, len, (off_t)at) == (ssize_t)len);
		in->p += len;
		in->left -= len;
	}
	return fd;
}

static void requests(struct fuzz_in *in)
{
	int fd = other_memory(&activity, in);
	struct cfs_activity *all;
	size_t i, n;
	char text[512];

	if (cfs_activity_read(fd, &all, &n) == 0) {
		for (i = 0; i < n; i++) {
			cfs_activity_describe(all, n, i, text, sizeof(text));
			check(strlen(text) < sizeof(text));
		}
		free(all);
	}
	close(fd);
}

static void log_lines(struct fuzz_in *in)
{
	int fd = other_memory(&logring, in);
	FILE *out = fopen("/dev/null", "we");

	check(out != NULL);
	cfs_logring_print(fd, out);
	fclose(out);
	close(fd);
}

static void set_up(void)
{
	static bool done;

	if (done)
		return;
	done = true;
	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
	make_pool(NULL);
	fill_engine(50);
	check(cfs_activity_init() == 0 && cfs_logring_create() == 0);
	take_memory(CFS_ACTIVITY_NAME, &activity);
	take_memory(CFS_LOGRING_NAME, &logring);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct fuzz_in in = {bytes, size};

	set_up();
	switch (fuzz_u8(&in) % 5) {
	case 0:
		go_on(&in);
		break;
	case 1:
		any_file(&in);
		break;
	case 2:
		message(&in);
		break;
	case 3:
		requests(&in);
		break;
	default:
		log_lines(&in);
	}
	return 0;
}

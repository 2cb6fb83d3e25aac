/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages that programs have changed through mappings, when the mount ends. Only the kernel knows
 * them, and syncfs(2) does not wait until they are written to a FUSE file system: some kernels
 * return when the requests are queued, others before that. Closing a file waits for its pages on
 * all kernels. So a child opens and closes each file that some program has open for writing.
 *
 * The child has no descriptor of the connection. A thread blocked in a FUSE request cannot be
 * killed: if its process held the descriptor, it would keep the connection and all callers of the
 * mount alive for ever. The child ends with the connection at the latest.
 *
 * The child has node ids and no paths. It looks up names of the mount's root that no directory
 * has, which stand for nodes, and it is allowed to open them all.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "fuse-internal.h"

#define NODE_NAME ".cachefs-node-"
#define GONE	  EIDRM /* answered for a file that has been removed and closed since */

/* The exit status is 0, or 1 if the pages of some file may be missing. Async-signal-safe. */
_Noreturn static void close_files(int root, const cfs_ino_t *node, size_t n)
{
	char name[sizeof(NODE_NAME) + 16];
	bool missing = false;
	size_t i;
	int fd;

	for (i = 0; i < n; i++) {
		snprintf(name, sizeof(name), NODE_NAME "%llx", (unsigned long long)node[i]);
		fd = openat(root, name, O_RDONLY | O_CLOEXEC);
		/* ENOENT: another file system is there, or nothing (umount -l). */
		if (fd < 0 ? errno != GONE : close(fd) < 0)
			missing = true;
	}
	_exit(missing);
}

static pid_t start_child(struct cfs_fuse *f, const cfs_ino_t *node, size_t n)
{
	int gate[2], root;
	char c;
	pid_t pid;

	if (pipe(gate) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		dup2(gate[0], STDIN_FILENO);
		close_range(STDIN_FILENO + 1, ~0U, 0);
		/* Until the session knows this process. */
		while (read(STDIN_FILENO, &c, 1) < 0 && errno == EINTR)
			;
		root = open(f->mount_point, O_PATH | O_DIRECTORY);
		if (root < 0)
			_exit(1);
		close_files(root, node, n);
	}
	if (pid < 0)
		pid = -errno;
	else
		atomic_store(&f->page_writer, pid);
	close(gate[0]);
	close(gate[1]);
	return pid;
}

void mapped_write_back(struct cfs_fuse *f)
{
	cfs_ino_t *node = NULL;
	ssize_t n = cfs_vfs_open_for_writing(f->vfs, &node);
	pid_t pid = (pid_t)n;
	int status = 0;

	if (n > 0)
		pid = start_child(f, node, (size_t)n);
	free(node);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	atomic_store(&f->page_writer, 0);
	if (pid < 0 || status)
		cfs_warn("what programs have changed through mappings may be lost, some of their "
			 "files cannot be opened or closed: mount=%s error=%s",
			 f->mount_point, cfs_errname(pid < 0 ? pid : -EIO));
}

bool mapped_is_writer(struct cfs_fuse *f, pid_t pid)
{
	return pid && pid == atomic_load_explicit(&f->page_writer, memory_order_relaxed);
}

bool mapped_lookup(struct call *c, const char *name)
{
	size_t len = strlen(NODE_NAME);
	struct cfs_vfs_entry e = {0};
	struct cfs_vfs_attr a;
	cfs_ino_t node;
	int r;

	if (strncmp(name, NODE_NAME, len))
		return false;
	node = strtoull(name + len, NULL, 16);
	e.ino = node & ~CFS_VFS_OTHER_NODE;
	r = cfs_vfs_getattr(c->vfs, &c->ctx, e.ino, &a);
	if (r == 0)
		e.attr = a.attr;
	reply_node(c, r == -ENOENT ? -GONE : r, &e, node);
	return true;
}

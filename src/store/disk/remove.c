/* SPDX-License-Identifier: Apache-2.0 */
/* Removing cached blocks, at once or by a thread that may wait for the disk. */
#include <errno.h>
#include <stdlib.h>

#include "base/task.h"
#include "disk-internal.h"

/* Limit of the wait for the removal of a file. */
#define REMOVE_MS 1000

void cfs_disk_forget(struct disk_dir *dir, const struct cfs_block *b)
{
	cfs_disk_fds_drop(&dir->disk->fds, b);
	cfs_cachedir_unlink(dir->cd, CFS_CACHEDIR_CACHED, b);
	/* Last, because a scan that still saw the file may have put it into the index. */
	cfs_disk_index_remove(&dir->index, b);
}

struct removal {
	struct cfs_task task; /* first */
	struct disk_dir *dir;
	struct cfs_block id;
	bool staged;
};

static ssize_t run_removal(struct cfs_task *task)
{
	const struct removal *rm = (struct removal *)task;

	atomic_store(&rm->dir->removing_since_ms, cfs_now_ms());
	if (rm->staged)
		cfs_cachedir_unlink(rm->dir->cd, CFS_CACHEDIR_STAGED, &rm->id);
	cfs_disk_forget(rm->dir, &rm->id);
	atomic_store(&rm->dir->removing_since_ms, 0);
	return 0;
}

/* For how long to wait for a removal: not at all behind one that hangs. */
static uint64_t removal_timeout_ms(struct disk_dir *dir)
{
	uint64_t since_ms = atomic_load(&dir->removing_since_ms);

	return since_ms && cfs_now_ms() - since_ms >= REMOVE_MS ? 0 : REMOVE_MS;
}

void cfs_disk_forget_soon(struct disk_dir *dir, const struct cfs_block *b, bool staged)
{
	struct removal *rm = cfs_task_new(sizeof(*rm), run_removal, NULL);
	ssize_t ignored;
	int r;

	cfs_disk_index_remove(&dir->index, b);
	cfs_disk_fds_drop(&dir->disk->fds, b);
	if (!rm)
		return;
	rm->task.stays = true;
	rm->dir = dir;
	rm->id = *b;
	rm->staged = staged;
	r = cfs_task_wait(&rm->task, dir->remover, cfs_deadline_in(removal_timeout_ms(dir)),
			  &ignored);
	if (r == -ETIMEDOUT)
		cfs_cachedir_fault(dir->cd, "remove", r, false);
	cfs_task_end(&rm->task);
}

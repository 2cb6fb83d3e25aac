/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in the background: deletion of files and slices, and the hourly sweeps. */
#ifndef CFS_META_JOBS_H
#define CFS_META_JOBS_H

#include "meta/api/core.h"

int cfs_jobs_create(struct cfs_jobs **ret);
void cfs_jobs_destroy(struct cfs_jobs *j);
int cfs_jobs_start(struct cfs_meta *m);
void cfs_jobs_stop(struct cfs_meta *m);
/*
 * Removes all files in the table of deleted files now, not within the hour.
 */
void cfs_jobs_sweep(struct cfs_meta *m);
/* Removes the objects of all slices without references. The next hourly run retries failures. */
int cfs_jobs_clean_slices(struct cfs_meta *m, cfs_deadline_t end);
/* Has a worker remove the data of a deleted file, or leaves it to the hourly job. */
void cfs_jobs_delete_file(struct cfs_meta *m, cfs_ino_t ino, uint64_t length);
/*
 * Has a worker release a slice without references, or leaves it to the hourly job. committed: a
 * record has named it.
 */
void cfs_jobs_delete_slice(struct cfs_meta *m, uint64_t id, uint32_t size, bool committed);
/* True when the mount ends and no time is left for deletions. */
bool cfs_jobs_cut_short(struct cfs_meta *m);
/* True at most once a minute: the log may have a deletion that failed. */
bool cfs_jobs_may_log(struct cfs_meta *m);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps into the volume's bucket. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cmd/access/admin.h"
#include "cmd/access/volume.h"
#include "cmd/dump/dump.h"
#include "cmd/sets/tempfile.h"

static int dump_into(struct dump_backup *job, int fd)
{
	struct dump d = {.meta = job->meta, .skip_trash = job->skip_trash};
	int r = dump_setting(&d, false);

	if (!r)
		r = stream_create_on(dup(fd), STREAM_GZIP, &d.out, d.err);
	if (r) {
		free(d.setting);
		snprintf(job->err, sizeof(job->err), "%s", d.err[0] ? d.err : strerror(-r));
		return r;
	}
	progress_begin(&d.p, "rows read");
	r = dump_json(&d);
	progress_end(&d.p);
	if (!r) {
		r = stream_close_out(d.out, true);
		if (r)
			temp_error(r);
	} else {
		stream_close_out(d.out, false);
	}
	if (r)
		snprintf(job->err, sizeof(job->err), "the metadata could not be dumped: %s",
			 d.err[0] ? d.err : strerror(-r));
	job->entries = d.entries;
	free(d.setting);
	return r;
}

int dump_backup(struct dump_backup *job)
{
	const char *volume = job->setting->name;
	cfs_deadline_t deadline = cfs_deadline_in(ADMIN_OBJECT_MS);
	cfs_auto_close int fd = -1, spare_fd = -1;
	struct stat st = {0};
	int r;

	backup_name(job->when_s, job->name);
	/* First, as it is quick: the bucket answers, and it is the volume's. */
	r = job->elsewhere
		    ? volume_check_id(job->setting, job->objects, deadline, job->err)
		    : volume_check_place(job->meta, job->setting, job->objects, deadline, job->err);
	if (r < 0)
		return r;
	fd = temp_open();
	if (fd < 0)
		return fd;
	spare_fd = temp_open();
	if (spare_fd < 0)
		return spare_fd;
	r = dump_into(job, fd);
	if (!r)
		r = backup_upload(job->objects, volume, job->name, fd, spare_fd, job->err);
	if (!r && fstat(fd, &st) == 0)
		job->size = (uint64_t)st.st_size;
	if (!r && job->rotate)
		backup_remove_old(job->objects, volume, job->when_s);
	return r;
}

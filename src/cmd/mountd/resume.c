/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a process resume the mount of an earlier one. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cmd/mountd/serve-internal.h"
#include "cmd/mountd/supervise/notify.h"

/* Pause between attempts to open the volume after a crash, and between log lines about it. */
#define AGAIN_MS 500
#define TELL_MS	 60000

/* Whether the error may be temporary, as the volume could be opened before. */
static bool is_outage(int r)
{
	switch (r) {
	case -EIO:
	case -EAGAIN:
	case -EBUSY:
	case -ETIMEDOUT:
	case -ENOTCONN:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
		return true;
	default:
		return false;
	}
}

bool resume_tries_again(struct serve *s, int r, char err[256])
{
	if (!s->standby || !is_outage(r) || cfs_fuse_standby_is_ended(s->standby))
		return false;
	if (cfs_deadline_passed(s->tell)) {
		cfs_err("the volume cannot be opened again, requests get EIO until it can: "
			"mount=%s reason=\"%s\"",
			s->dir, err);
		notify_send("STATUS=Waiting to go on at %s: %s", s->dir, err);
		s->tell = cfs_deadline_in(TELL_MS);
	}
	err[0] = '\0';
	poll(NULL, 0, AGAIN_MS);
	return true;
}

int resume_open(struct serve *s, char err[256])
{
	int r = cfs_fuse_standby_begin(s->worker->device, s->worker->handoff, s->o->io_timeout_ms,
				       s->worker->since_ms, &s->standby);

	if (r < 0)
		cfs_warn("requests wait without a deadline until the mount is served: error=%s",
			 cfs_errname(r));
	while ((r = layers_open_backends(s, err)) < 0) {
		if (!resume_tries_again(s, r, err))
			break;
		layers_close_backends(s);
	}
	return r;
}

void resume_end_standby(struct serve *s)
{
	uint64_t failed;

	/*
	 * Closing takes long when the metadata is away again, so the standby goes on meanwhile.
	 * Files that are closed until it ends are closed below.
	 */
	cfs_vfs_close_released(s->vfs);
	failed = cfs_fuse_standby_end(s->standby);
	s->standby = NULL;
	if (failed)
		cfs_warn("requests have failed while no process served the mount: mount=%s "
			 "requests=%llu",
			 s->dir, (unsigned long long)failed);
	cfs_vfs_close_released(s->vfs);
}

int resume_restore(struct serve *s, char err[256])
{
	struct cfs_vfs_restored *ret = &s->restored;
	int r;

	do {
		r = cfs_vfs_restore(s->vfs, ret);
		if (r < 0)
			snprintf(err, 256, "the open files cannot be restored: %s", strerror(-r));
	} while (r < 0 && resume_tries_again(s, r, err));
	if (r == 0)
		cfs_info("resumed the mount: volume=%s mount=%s sid=%llu handles=%llu",
			 s->setting->name, s->dir, (unsigned long long)cfs_meta_sid(s->meta),
			 (unsigned long long)ret->handles);
	if (r == 0 && ret->gone)
		cfs_warn("open files do not exist any more, their handles fail: mount=%s "
			 "handles=%llu",
			 s->dir, (unsigned long long)ret->gone);
	if (r == 0 && ret->lost)
		cfs_warn("data that was written and not yet stored is lost, fsync and close will "
			 "say so: mount=%s handles=%llu",
			 s->dir, (unsigned long long)ret->lost);
	if (r == 0 && ret->closed)
		cfs_warn("data of closed files that was not yet stored is lost, fsync of a "
			 "directory will say so: mount=%s files=%zu",
			 s->dir, ret->closed);
	return r;
}

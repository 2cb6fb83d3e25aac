/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/replicate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "cmd/access/replication.h"
#include "cmd/access/volume.h"

/* How long the end of a mount waits for the bucket. The next mount stores the rest. */
#define STOP_MS 30000

static int await_replica(void *arg, bool hurry, cfs_deadline_t deadline)
{
	int r = cfs_replica_wait(arg, hurry, deadline);

	/* -ETIMEDOUT would be logged as an outage of the engine; the replica logs the cause. */
	return r == -ETIMEDOUT ? -EIO : r;
}

static void fenced(void *arg, const char *why)
{
	struct serve *s = arg;

	cfs_meta_refuse_changes(s->meta);
	cfs_err("the replica of the metadata belongs to another database now, this mount is "
		"read-only from here on: volume=%s mount=%s cause=\"%s\"",
		s->setting->name, s->dir, why);
}

static void taken(void *arg)
{
	struct serve *s = arg;

	replication_note_taken(s->meta, s->setting->name);
}

int replicate_restore(struct serve *s, char err[256])
{
	const struct mount_opts *o = s->o;
	cfs_auto_free char *path = replication_path(s->url);
	struct cfs_replica_state state;
	struct cfs_setting *setting;
	int r;

	if (!o->restore && path && access(path, F_OK) && errno == ENOENT)
		return cfs_fail(err, -ENOENT,
				"%.100s: %s; if the volume was replicated, -o "
				"restore=NAME,storage=TYPE,bucket=PLACE restores it",
				path, strerror(ENOENT));
	if (!o->restore || (path && access(path, F_OK) == 0))
		return 0;
	if (!path || !o->storage || !o->bucket)
		return cfs_fail(err, -EINVAL,
				"restore needs a META-URL of SQLite, storage and bucket");
	cfs_info("the database does not exist, restoring it from its replica: volume=%s url=%s",
		 o->restore, path);
	r = volume_lost_setting(o->restore, o->storage, o->bucket, &setting);
	if (r)
		return r;
	r = replication_restore(setting, path, INT64_MAX, 0, &state, err);
	cfs_setting_free(setting);
	/* -EEXIST: another process has restored it meanwhile. */
	if (r == -EEXIST)
		r = 0;
	if (!r)
		cfs_info("the database is restored: volume=%s url=%s entry=%" PRIu64, o->restore,
			 path, state.place.number);
	return r;
}

/* REPLICATION_OFF for a read-only mount and for engines other than SQLite. */
static int read_mode(struct serve *s, struct replication *ret, char err[256])
{
	int r;

	*ret = (struct replication){.mode = REPLICATION_OFF};
	if (s->o->ro || replication_check_engine(s->meta, err)) {
		err[0] = '\0';
		return 0;
	}
	do {
		r = replication_read(s->meta, ret);
		if (r < 0)
			snprintf(err, 256, "how the metadata is replicated cannot be read: %s",
				 strerror(-r));
	} while (r < 0 && resume_tries_again(s, r, err));
	return r;
}

/*
 * With writeback fsync returns when the blocks are on this machine's disk, so the metadata in the
 * bucket may name blocks that are lost with the machine. A resumed mount is not refused.
 */
static int check_writeback(struct serve *s, enum replication_mode mode, char err[256])
{
	if (!s->o->writeback || mode == REPLICATION_OFF)
		return 0;
	if (mode == REPLICATION_SYNC && !worker_resumes(s->worker))
		return cfs_fail(
			err, -EINVAL,
			"with writeback fsync does not wait until the bucket has the data, as "
			"replicate=sync of the volume demands: mount without writeback, or "
			"`cachefs config --replicate async`");
	cfs_warn("writeback: blocks that are not uploaded are lost with this machine, although "
		 "the replica of the metadata names them: volume=%s mount=%s",
		 s->setting->name, s->dir);
	return 0;
}

int replicate_start(struct serve *s, const struct volume_objects *objects, char err[256])
{
	struct volume_objects own = *objects;
	struct replication how;
	struct cfs_replica_conf conf = {
		.volume = s->setting->name,
		.fenced = fenced,
		.taken = taken,
		.arg = s,
		.in_background = worker_resumes(s->worker),
	};
	char *path;
	int r = read_mode(s, &how, err);

	if (r == 0)
		r = check_writeback(s, how.mode, err);
	if (r < 0 || how.mode == REPLICATION_OFF)
		return r;
	path = replication_path(s->url);
	if (!path)
		return -ENOMEM;
	/* The replica has a store of its own, which does not count failures of the other one. */
	own.max_connections = 4;
	own.small_buffers = true;
	own.descs = NULL;
	r = volume_open_objects_with(s->setting, &own, &s->replica_objects, err);
	if (!r) {
		conf.objects = s->replica_objects;
		conf.path = path;
		conf.keep_s = how.keep_s;
		conf.conditional = how.conditional;
		conf.take_over = how.take_over;
		conf.from = how.from;
		do
			r = cfs_replica_start(&conf, &s->replica, err);
		while (r < 0 && resume_tries_again(s, r, err));
	}
	free(path);
	if (!r)
		cfs_meta_copy_to(s->meta, await_replica, s->replica, how.mode == REPLICATION_SYNC);
	return r;
}

void replicate_stop(struct serve *s)
{
	cfs_replica_stop(s->replica,
			 cfs_deadline_in(CFS_MIN((uint64_t)STOP_MS, s->o->stop_timeout_ms / 2)));
	cfs_object_close(s->replica_objects);
	s->replica = NULL;
	s->replica_objects = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/replication.h"

#include <cachefs/records.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text/url.h"
#include "cmd/access/progress.h"
#include "cmd/access/volume.h"

#define STEP_MS	 30000
#define PROBE_MS 30000
/* As load does: blocks of a lost part of the history keep their ids. */
#define SLICE_GAP (1LL << 32)

const char *const replication_modes[] = {"off", "async", "sync", NULL};

struct text {
	char s[256];
};

static int copy_text(void *arg, const char *key, const void *value, size_t len)
{
	struct text *t = arg;

	if (len >= sizeof(t->s))
		return -EBADMSG;
	memcpy(t->s, value, len);
	t->s[len] = '\0';
	return 0;
}

static int parse(const char *s, struct replication *ret)
{
	char mode[8], hash[2 * CFS_REPLICA_HASH + 1];
	struct replication r = {0};
	int conditional, take_over;
	unsigned byte;
	size_t i;

	if (sscanf(s, "%7s keep=%" SCNu64 " conditional=%d take=%d from=%" SCNu64 "/%64[0-9a-f]",
		   mode, &r.keep_s, &conditional, &take_over, &r.from.number, hash) != 6 ||
	    strlen(hash) != sizeof(hash) - 1)
		return -EBADMSG;
	for (i = 0; i < CFS_REPLICA_HASH; i++) {
		if (sscanf(hash + 2 * i, "%2x", &byte) != 1)
			return -EBADMSG;
		r.from.hash[i] = (uint8_t)byte;
	}
	for (i = 0; replication_modes[i] && strcmp(replication_modes[i], mode) != 0; i++)
		;
	if (!replication_modes[i] || i == REPLICATION_OFF)
		return -EBADMSG;
	r.mode = (enum replication_mode)i;
	r.conditional = conditional;
	r.take_over = take_over;
	*ret = r;
	return 0;
}

int replication_read(struct cfs_meta *m, struct replication *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	struct text t;
	int r = cfs_meta_get_record(m, &ctx, CFS_REPLICATION_RECORD, copy_text, &t);

	*ret = (struct replication){.keep_s = REPLICATION_KEEP_S};
	if (r)
		return r == -ENOENT ? 0 : r;
	return parse(t.s, ret);
}

static int write_record(struct cfs_meta *m, const struct replication *r)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	char hash[2 * CFS_REPLICA_HASH + 1], s[256];
	size_t i;

	if (r->mode == REPLICATION_OFF)
		return cfs_meta_drop_record(m, &ctx, CFS_REPLICATION_RECORD);
	for (i = 0; i < CFS_REPLICA_HASH; i++)
		snprintf(hash + 2 * i, 3, "%02x", r->from.hash[i]);
	snprintf(s, sizeof(s), "%s keep=%" PRIu64 " conditional=%d take=%d from=%" PRIu64 "/%s",
		 replication_modes[r->mode], r->keep_s, r->conditional, r->take_over,
		 r->from.number, hash);
	return cfs_meta_put_record(m, &ctx, CFS_REPLICATION_RECORD, s, strlen(s), false);
}

void replication_note_taken(struct cfs_meta *m, const char *volume)
{
	struct replication how;
	int r = replication_read(m, &how);

	if (!r && how.take_over) {
		how.take_over = false;
		r = write_record(m, &how);
	}
	if (r)
		cfs_warn("the record of replication could not be written, the next mount writes "
			 "it: volume=%s error=%s",
			 volume, cfs_errname(r));
}

int replication_check_engine(struct cfs_meta *m, char err[256])
{
	if (!strcmp(cfs_meta_engine_name(m), "sqlite3"))
		return 0;
	return cfs_fail(
		err, -EINVAL,
		"only metadata in SQLite is replicated: use the replication of the database "
		"server");
}

int replication_set(struct cfs_meta *m, struct cfs_object_store *objects, const char *volume,
		    enum replication_mode mode, uint64_t keep_s, char err[256])
{
	struct replication want = {.mode = mode, .keep_s = keep_s, .take_over = true};
	int r = mode == REPLICATION_OFF ? 0 : replication_check_engine(m, err);

	if (r)
		return r;
	if (mode != REPLICATION_OFF) {
		r = cfs_replica_probe(objects, volume, cfs_deadline_in(PROBE_MS));
		if (r < 0)
			return cfs_fail(err, r, "the bucket cannot be tried for replication: %s",
					strerror(-r));
		want.conditional = r;
		if (!r && mode == REPLICATION_SYNC)
			return cfs_fail(err, -EOPNOTSUPP,
					"the bucket does not refuse to create an object twice "
					"(If-None-Match), which replicate=sync needs");
		if (!r)
			fputs("The bucket does not refuse to create an object twice "
			      "(If-None-Match): two mounts of copies of this database would damage "
			      "the replica.\n",
			      stderr);
	}
	r = write_record(m, &want);
	if (r < 0)
		snprintf(err, 256, "replication cannot be set: %s", strerror(-r));
	return r;
}

static void note_pages(void *arg, uint64_t pages)
{
	progress_add(arg, pages);
}

/* A restored database knows from which entry it comes. */
static int note_origin(struct cfs_meta *m, const struct cfs_replica_state *state)
{
	struct cfs_ctx ctx = cfs_ctx_internal(STEP_MS);
	struct replication how;
	int r = cfs_meta_skip_slices(m, &ctx, SLICE_GAP);

	if (!r)
		r = replication_read(m, &how);
	if (r || how.mode == REPLICATION_OFF)
		return r;
	how.take_over = false;
	how.from = state->place;
	return write_record(m, &how);
}

static int prepare(const char *path, const struct cfs_replica_state *state, char err[256])
{
	struct cfs_meta_conf conf = {.no_bgjob = true, .timeout_ms = STEP_MS};
	struct cfs_setting *s = NULL;
	struct cfs_meta *m = NULL;
	char url[PATH_MAX + 16];
	int r;

	snprintf(url, sizeof(url), "sqlite3://%s", path);
	r = volume_open(url, &conf, &m, &s, err);
	if (!r) {
		r = note_origin(m, state);
		if (r)
			snprintf(err, 256, "the restored database cannot be written: %s",
				 strerror(-r));
	}
	if (m)
		cfs_meta_close(m);
	cfs_setting_free(s);
	if (!r) {
		r = cfs_replica_complete(path);
		if (r)
			snprintf(err, 256, "the restored database cannot be completed: %s",
				 strerror(-r));
	}
	return r;
}

static int fetch(const struct cfs_setting *s, int fd, int64_t until_ms, uint64_t until_entry,
		 struct cfs_replica_state *ret, char err[256])
{
	struct progress p = {0};
	struct cfs_replica_restore how = {
		.volume = s->name,
		.until_ms = until_ms,
		.until_entry = until_entry,
		.fd = fd,
		.progress = note_pages,
		.arg = &p,
	};
	struct volume_objects with = {.upload_limit_mbps = -1, .download_limit_mbps = -1};
	int r = volume_open_objects_with(s, &with, &how.objects, err);

	if (r)
		return r;
	progress_begin(&p, "pages written");
	r = cfs_replica_restore(&how, ret, err);
	progress_end(&p);
	cfs_object_close(how.objects);
	return r;
}

int replication_restore(const struct cfs_setting *s, const char *path, int64_t until_ms,
			uint64_t until_entry, struct cfs_replica_state *ret, char err[256])
{
	char part[PATH_MAX];
	int fd, r;

	if (access(path, F_OK) == 0)
		return cfs_fail(err, -EEXIST,
				"%.200s exists: a database is restored into a new file", path);
	if (snprintf(part, sizeof(part), "%s.restoring-XXXXXX", path) >= (int)sizeof(part))
		return -ENAMETOOLONG;
	fd = mkostemp(part, O_CLOEXEC);
	if (fd < 0) {
		r = -errno;
		return cfs_fail(err, r, "%.180s cannot be created: %s", part, strerror(-r));
	}
	r = fetch(s, fd, until_ms, until_entry, ret, err);
	close(fd);
	if (!r)
		r = prepare(part, ret, err);
	if (!r && link(part, path) < 0) {
		r = -errno;
		snprintf(err, 256, "%.180s cannot be made: %s", path, strerror(-r));
	}
	unlink(part);
	return r;
}

char *replication_path(const char *url)
{
	struct cfs_url u;
	char err[256], *path = NULL;

	if (cfs_url_parse(url, &u, err))
		return NULL;
	if (u.engine && u.path && !strcmp(u.engine, "sqlite3"))
		path = strdup(u.path);
	cfs_url_free(&u);
	return path;
}

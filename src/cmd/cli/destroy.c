/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/progress.h"
#include "cmd/access/volume.h"
#include "cmd/sets/tempfile.h"

struct destroy_opts {
	struct admin_opts common;
	bool yes, dry_run, force;
	int64_t threads;
};

/* A live mount sends a heartbeat within that time, by default every 12 s. */
enum { HEARTBEAT_MS = 15000 };

#define OPTIONS struct destroy_opts
static const struct cfs_opt destroy_table[] = {
	OPT_FLAG("yes", yes, "do not ask"),
	OPT_FLAG("dry-run", dry_run, "only report what would be removed"),
	OPT_FLAG("force", force,
		 "even when the volume is mounted somewhere, or its objects have no id"),
	OPT_THREADS(threads, "objects removed at the same time"),
	ADMIN_OBJECT_OPTIONS(common),
	{0},
};

struct destroy {
	struct admin a;
	const struct destroy_opts *o;
	struct progress p;
	FILE *keys;   /* keys, NUL after each: removal starts only when the listing is complete */
	char id[128]; /* key of the volume's id, which is removed after the metadata */
	bool has_id;
	uint64_t id_size, objects, bytes;
	struct removed removed;
	int64_t now_s;
	unsigned sessions, ended; /* number of active ones, and of those that seem to have ended */
	uint64_t heartbeats;	  /* changes when a session goes on, comes or ends */
	cfs_deadline_t beaten; /* live sessions that seem to have ended have changed it by then */
};

static int add_key(void *arg, const struct cfs_object_info *info)
{
	struct destroy *d = arg;

	progress_add(&d->p, 1);
	d->objects++;
	d->bytes += info->size;
	if (!strcmp(info->key, d->id)) {
		d->has_id = true;
		d->id_size = info->size;
		return 0;
	}
	if (fprintf(d->keys, "%" PRIu64 " %s%c", info->size, info->key, '\0') < 0)
		return temp_error(-errno);
	return 0;
}

static int list_objects(struct destroy *d)
{
	char prefix[128];
	int r = temp_stream(&d->keys);

	if (r < 0)
		return r;
	snprintf(prefix, sizeof(prefix), "%s/", d->a.setting->name);
	snprintf(d->id, sizeof(d->id), "%s/" VOLUME_ID_NAME, d->a.setting->name);
	progress_begin(&d->p, "objects listed");
	r = d->a.objects->ops->list(d->a.objects, prefix, "", add_key, d,
				    cfs_deadline_in(ADMIN_LIST_MS));
	progress_end(&d->p);
	if (r == 0 && fflush(d->keys))
		r = temp_error(-errno);
	return r;
}

static int count_live(void *arg, const struct cfs_session *s)
{
	struct destroy *d = arg;

	if (s->expire_s >= d->now_s)
		d->sessions++;
	else
		d->ended++;
	d->heartbeats += (uint64_t)s->expire_s;
	return 0;
}

/*
 * No mount may have the volume, nor appear during the listing or while the user is asked. Right
 * after clocks were set ahead, all sessions seem to have ended until their next heartbeats.
 */
static int check_sessions(struct destroy *d)
{
	bool again = d->keys, forced = d->o->force || d->o->dry_run;
	uint64_t before = d->heartbeats;
	struct cfs_ctx ctx;
	int r;

	if (again && d->ended && !forced) {
		if (!cfs_deadline_passed(d->beaten))
			fprintf(stderr,
				"waiting for heartbeats of %u sessions that seem to have "
				"ended\n",
				d->ended);
		cfs_sleep_until(d->beaten);
	}
	ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	d->sessions = d->ended = 0;
	d->heartbeats = 0;
	d->now_s = cfs_meta_clock_s(d->a.meta);
	d->beaten = cfs_deadline_in(HEARTBEAT_MS);
	r = cfs_meta_each_session(d->a.meta, &ctx, count_live, d);
	if (r < 0)
		return cmd_error("cannot read the sessions: %s", strerror(-r));
	if (forced)
		return CMD_OK;
	if (d->sessions)
		return cmd_error("%u sessions are active (see `cachefs status`): unmount first",
				 d->sessions);
	if (again && d->heartbeats != before)
		return cmd_error(
			"sessions are active that seemed to have ended: are the clocks right? See "
			"`cachefs status`, and unmount first");
	return CMD_OK;
}

static int remove_objects(struct destroy *d)
{
	cfs_auto_free char *line = NULL;
	struct remover *remover;
	uint64_t n = 0;
	size_t cap = 0;
	int r = remover_create(&d->a, (unsigned)d->o->threads, &remover);

	if (r < 0)
		return r;
	rewind(d->keys);
	progress_begin(&d->p, "objects removed");
	while (r == 0 && getdelim(&line, &cap, '\0', d->keys) > 0) {
		char *key;
		uint64_t size = strtoull(line, &key, 10);

		r = remover_add(remover, key + 1, size);
		progress_add(&d->p, 1);
		n++;
	}
	/* The metadata is removed only when the listing was read back completely. */
	if (r == 0 && n != d->objects - d->has_id)
		r = -EIO;
	progress_end(&d->p);
	d->removed = remover_finish(remover);
	return d->removed.failed ? d->removed.err : r;
}

static void say_what(const struct destroy *d)
{
	const struct cfs_setting *s = d->a.setting;
	char buf[32];

	fprintf(stderr,
		"volume %s (%s)\nremoves %" PRIu64 " objects (%s) below %s %s%s%s/\n"
		"and all its metadata\n",
		s->name, s->uuid, d->objects, progress_size(d->bytes, buf), s->storage, s->bucket,
		s->bucket[0] && s->bucket[strlen(s->bucket) - 1] == '/' ? "" : "/", s->name);
}

/* The UUID argument already names the volume; this asks for confirmation. */
static bool confirmed(const struct destroy *d)
{
	char answer[80] = "";

	if (d->o->yes)
		return true;
	if (!isatty(STDIN_FILENO)) {
		cmd_error("not a terminal: --yes is needed");
		return false;
	}
	fprintf(stderr, "This cannot be undone. Type the name of the volume to go on: ");
	if (!fgets(answer, sizeof(answer), stdin))
		return false;
	answer[strcspn(answer, "\n")] = '\0';
	if (!strcmp(answer, d->a.setting->name))
		return true;
	cmd_error("not confirmed, nothing is removed");
	return false;
}

/* Last: without it, a command that is repeated would take the bucket for another one. */
static int remove_id(struct destroy *d)
{
	struct cfs_object_store *o = d->a.objects;
	int r = d->has_id ? o->ops->del(o, d->id, cfs_deadline_in(ADMIN_OBJECT_MS)) : 0;

	if (r < 0)
		return cmd_error("the volume is removed, but its id %s is still there: %s", d->id,
				 strerror(-r));
	d->removed.objects += d->has_id;
	d->removed.bytes += d->id_size;
	return CMD_OK;
}

static int destroy(struct destroy *d)
{
	int r = check_sessions(d);
	struct cfs_ctx ctx;

	if (r != CMD_OK)
		return r;
	r = list_objects(d);
	if (r < 0)
		return cmd_error(
			"the objects could not be listed completely, nothing is removed: %s",
			strerror(-r));
	if (!d->o->common.json || !d->o->yes)
		say_what(d);
	if (d->o->dry_run)
		return CMD_OK;
	if (!confirmed(d))
		return CMD_USAGE;
	r = check_sessions(d);
	if (r != CMD_OK)
		return r;
	r = remove_objects(d);
	if (r < 0)
		return cmd_error("%" PRIu64 " of %" PRIu64
				 " objects are removed, the metadata is kept: "
				 "run the command again: %s",
				 d->removed.objects, d->objects, strerror(-r));
	ctx = cfs_ctx_internal(10 * ADMIN_STEP_MS);
	r = cfs_meta_destroy_volume(d->a.meta, &ctx);
	if (r < 0)
		return cmd_error("the metadata could not be removed: %s", strerror(-r));
	d->a.needs = 0; /* the counters are gone, so no usage is written at the end */
	return remove_id(d);
}

static void print_json(const struct destroy *d)
{
	admin_print_json(json_pack("{s:s, s:s, s:I, s:I, s:b, s:I, s:I}", "name",
				   d->a.setting->name, "uuid", d->a.setting->uuid, "objects",
				   (json_int_t)d->objects, "bytes", (json_int_t)d->bytes, "dry_run",
				   d->o->dry_run, "removed_objects", (json_int_t)d->removed.objects,
				   "removed_bytes", (json_int_t)d->removed.bytes));
}

static int destroy_run(void *options, const char **args)
{
	const struct destroy_opts *o = options;
	struct destroy d = {.o = o};
	int r;

	r = admin_open(args[0], &o->common,
		       ADMIN_OBJECTS | (o->dry_run ? 0 : ADMIN_WRITE) |
			       (o->dry_run || o->force ? 0 : ADMIN_ID),
		       &d.a);
	if (r != CMD_OK)
		goto out;
	if (strcmp(args[1], d.a.setting->uuid)) {
		r = cmd_usage("the volume there is %s with UUID %s", d.a.setting->name,
			      d.a.setting->uuid);
		goto out;
	}
	r = destroy(&d);
	if (r == CMD_OK && o->common.json)
		print_json(&d);
out:
	if (d.keys)
		fclose(d.keys);
	return admin_close(&d.a, r);
}

const struct cmd cmd_destroy = {
	.name = "destroy",
	.synopsis = "[--yes] [--dry-run] [OPTIONS] META-URL UUID",
	.summary = "Removes a volume with all its objects",
	CMD_OPTIONS(destroy_table),
	.min_args = 2,
	.max_args = 2,
	.run = destroy_run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier of a file or directory selects one of the volume's storage classes for its future
 * objects. New entries inherit the tier of their directory.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/workers.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/jsontext.h"
#include "cmd/access/live.h"
#include "cmd/access/progress.h"
#include "cmd/sets/dirwalk.h"

#define QUEUE 4000

struct tier_opts {
	struct admin_opts common;
	int64_t tier, threads;
	bool recursive;
};

#define OPTIONS struct tier_opts
static const struct cfs_opt tier_table[] = {
	OPT_INT("tier", tier, "N", "set: number of the tier; 0: the volume's own class",
		.def = "-1", .min = -1, .max = CFS_OBJECT_TIERS - 1),
	OPT_FLAG("recursive", recursive, "set: everything below a directory as well",
		 .letter = 'r'),
	OPT_THREADS(threads, "files changed at the same time"),
	ADMIN_OPTIONS(common),
	{0},
};

struct tier_cmd {
	struct admin a;
	const struct tier_opts *o;
	struct progress p;
	struct cfs_workers *workers;
	_Atomic int err; /* why a worker could not go on */
	_Atomic uint64_t changed, failed;
};

static const struct cfs_tier *find_tier(const struct cfs_setting *s, int64_t id)
{
	size_t i;

	for (i = 0; i < s->n_tiers; i++) {
		if (s->tiers[i].id == id)
			return &s->tiers[i];
	}
	return NULL;
}

static bool has_text(const char *text)
{
	return text && *text;
}

static bool is_defined(const struct cfs_tier *t)
{
	return t && (has_text(t->storage_class) || has_text(t->tag));
}

/* ---- list ---- */

static int run_list(struct tier_cmd *c)
{
	json_t *list = json_array(), *j;
	int64_t id;
	size_t i;

	for (id = 0; id < CFS_OBJECT_TIERS; id++) {
		const struct cfs_tier *t = find_tier(c->a.setting, id);

		if (id == 0 || is_defined(t))
			json_array_append_new(
				list,
				json_pack("{s:I, s:s, s:s}", "id", (json_int_t)id, "storage_class",
					  t && t->storage_class ? t->storage_class : "", "tag",
					  t && t->tag ? t->tag : ""));
	}
	if (c->o->common.json) {
		admin_print_json(list);
		return CMD_OK;
	}
	json_array_foreach (list, i, j) {
		const char *class = json_string_value(json_object_get(j, "storage_class"));
		const char *tag = json_string_value(json_object_get(j, "tag"));

		cmd_line("%lld  %s%s%s", json_get_int(j, "id"),
			 *class ? class : "the bucket's own class", *tag ? "  tag " : "", tag);
	}
	json_decref(list);
	return CMD_OK;
}

/* ---- set ---- */

static int stopped(struct tier_cmd *c)
{
	return live_stopped() ? -EINTR : atomic_load(&c->err);
}

/* 0, also for an inode that was removed meanwhile or may not be changed; else a backend failed. */
static int set_one(struct tier_cmd *c, cfs_ino_t ino)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_attr in = {.tier = (uint8_t)c->o->tier};
	int r = cfs_meta_setattr(c->a.meta, &ctx, ino, CFS_SET_TIER, &in, &in);
	char *path;

	progress_add(&c->p, 1);
	if (r == 0)
		atomic_fetch_add(&c->changed, 1);
	if (r == 0 || r == -ENOENT)
		return 0;
	atomic_fetch_add(&c->failed, 1);
	path = admin_path(&c->a, ino);
	progress_end(&c->p);
	cmd_error("%s: %s", path ? path : "?",
		  r == -EPERM ? "immutable, append-only or in the trash" : strerror(-r));
	free(path);
	return r == -EPERM ? 0 : r;
}

struct change {
	struct cfs_job job;
	struct tier_cmd *c;
	cfs_ino_t ino;
};

static void run_change(struct cfs_job *job)
{
	struct change *ch = (struct change *)job;
	int r = 0;

	if (!live_stopped() && !atomic_load(&ch->c->err))
		r = set_one(ch->c, ch->ino);
	if (r < 0)
		atomic_store(&ch->c->err, r);
	free(ch);
}

static int submit(struct tier_cmd *c, cfs_ino_t ino)
{
	struct change *ch = malloc(sizeof(*ch));
	int r;

	if (!ch)
		return -ENOMEM;
	*ch = (struct change){.job.run = run_change, .c = c, .ino = ino};
	r = cfs_workers_submit(c->workers, &ch->job, cfs_deadline_in(2 * ADMIN_STEP_MS));
	if (r < 0)
		free(ch);
	return r;
}

/* A directory is set before it is read, so that entries made meanwhile have inherited it. */
static int set_below(struct tier_cmd *c, cfs_ino_t root)
{
	struct dirwalk w =
		dirwalk_begin(c->a.meta, ADMIN_STEP_MS, root, DIRWALK_ATTRS | DIRWALK_BELOW);
	const struct cfs_dirent *e;
	int r = set_one(c, root);

	while (r >= 0 && (r = dirwalk_next(&w, &e)) > 0) {
		r = stopped(c);
		if (r == 0 && e->type == CFS_TYPE_DIR)
			r = set_one(c, e->entry.ino);
		else if (r == 0 && e->type == CFS_TYPE_FILE && e->entry.attr.tier != c->o->tier)
			r = submit(c, e->entry.ino);
	}
	dirwalk_end(&w);
	return r;
}

static int set_tree(struct tier_cmd *c, cfs_ino_t root)
{
	int r = cfs_workers_create("tier", (unsigned)c->o->threads, QUEUE, &c->workers);

	if (r < 0)
		return r;
	progress_begin(&c->p, "files and directories");
	r = set_below(c, root);
	cfs_workers_destroy(c->workers);
	r = r ? r : atomic_load(&c->err);
	progress_end(&c->p);
	/* The workers have left out the rest. */
	return live_stopped() ? -EINTR : r;
}

/* CMD_OK or an exit status after a message. */
static int check_request(struct tier_cmd *c, const char *path, struct cfs_entry *ret)
{
	const struct tier_opts *o = c->o;
	int r;

	if (!path || o->tier < 0)
		return cmd_usage(
			"set needs --tier N and a path, given from the root of the volume");
	if (o->tier > 0 && !is_defined(find_tier(c->a.setting, o->tier)))
		return cmd_usage("tier %" PRId64 " is not defined; `cachefs config --tier %" PRId64
				 " --storage-class CLASS` defines it",
				 o->tier, o->tier);
	r = admin_lookup(&c->a, path, ret);
	if (r == 0 && (cfs_ino_is_trash(ret->ino) ||
		       (ret->attr.type != CFS_TYPE_DIR && ret->attr.type != CFS_TYPE_FILE)))
		r = -EINVAL;
	if (r == -EINVAL)
		return cmd_usage("%s: only files and directories outside the trash have a tier",
				 path);
	if (r < 0)
		cmd_error("%s: %s", path, strerror(-r));
	return r < 0 ? CMD_SYSTEM : CMD_OK;
}

static int run_set(struct tier_cmd *c, const char *path)
{
	struct cfs_entry e;
	uint64_t changed;
	int r, rc = check_request(c, path, &e);

	if (rc != CMD_OK)
		return rc;
	live_begin();
	r = c->o->recursive && e.attr.type == CFS_TYPE_DIR ? set_tree(c, e.ino) : set_one(c, e.ino);
	if (r == -EINTR)
		cmd_error("interrupted; the remaining files keep their tier");
	changed = atomic_load(&c->changed);
	if (c->o->common.json)
		admin_print_json(json_pack("{s:I, s:I}", "changed", (json_int_t)changed, "failed",
					   (json_int_t)atomic_load(&c->failed)));
	else
		printf("tier %" PRId64 " set on %" PRIu64 " inode%s\n", c->o->tier, changed,
		       changed == 1 ? "" : "s");
	if (r == -EINTR)
		return CMD_INTERRUPTED;
	if (r < 0 && !atomic_load(&c->failed))
		cmd_error("%s: %s", path, strerror(-r));
	return r < 0 || atomic_load(&c->failed) ? CMD_SYSTEM : CMD_OK;
}

static int tier_run(void *options, const char **args)
{
	const struct tier_opts *o = options;
	struct tier_cmd c = {.o = o};
	bool set = !strcmp(args[0], "set");
	int r;

	if (!set && (strcmp(args[0], "list") || args[2]))
		return cmd_usage("usage: cachefs %s %s", cmd_tier.name, cmd_tier.synopsis);
	r = admin_open(args[1], &o->common, set ? ADMIN_WRITE : 0, &c.a);
	if (r == CMD_OK)
		r = set ? run_set(&c, args[2]) : run_list(&c);
	return admin_close(&c.a, r);
}

const struct cmd cmd_tier = {
	.name = "tier",
	.synopsis = "set|list [--tier N] [-r] [OPTIONS] META-URL [PATH]",
	.summary = "Sets the storage class of future objects of files and directories",
	CMD_OPTIONS(tier_table),
	.min_args = 2,
	.max_args = 3,
	.run = tier_run,
};

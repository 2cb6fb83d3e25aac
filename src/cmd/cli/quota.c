/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/usage/quota-usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/access/cmd.h"
#include "cmd/access/jsontext.h"
#include "cmd/access/progress.h"

/* Options that are not given keep the quota's values. */
#define NOT_GIVEN UINT64_MAX

struct quota_opts {
	struct admin_opts common;
	char *path;
	int64_t uid, gid;
	uint64_t capacity;
	int64_t inodes;
	bool repair;
};

#define OPTIONS struct quota_opts
static const struct cfs_opt quota_table[] = {
	OPT_STRING("path", path, "PATH", "a directory, given from the root of the volume"),
	OPT_INT("uid", uid, "UID",
		"a user; everything that the user owns is counted, the trash included", .def = "-1",
		.min = -1, .max = UINT32_MAX - 1),
	OPT_INT("gid", gid, "GID", "a group", .def = "-1", .min = -1, .max = UINT32_MAX - 1),
	OPT_SIZE("capacity", capacity, "SIZE",
		 "set: limit of space, a bare number is in GiB; 0: none", .flags = CFS_OPT_UNSET,
		 .unit = 1ULL << 30, .max = INT64_MAX),
	OPT_INT("inodes", inodes, "N", "set: limit of the number of inodes; 0: none", .def = "-1",
		.min = -1, .max = INT64_MAX),
	OPT_FLAG("repair", repair, "check: correct the recorded usage"),
	ADMIN_OPTIONS(common),
	{0},
};

static const char *const kinds[] = {"directory", "user", "group"};

struct quota_cmd {
	struct admin a;
	const struct quota_opts *o;
	json_t *list;
	uint64_t found;
};

/* ---- the quota that is meant ---- */

static bool given(const struct quota_opts *o)
{
	return o->path || o->uid >= 0 || o->gid >= 0;
}

/* CMD_OK or an exit status after a message. */
static int find_target(struct quota_cmd *c, struct cfs_quota *ret)
{
	const struct quota_opts *o = c->o;
	struct cfs_entry e;
	int r;

	*ret = (struct cfs_quota){.max_space = -1, .max_inodes = -1};
	if ((o->path != NULL) + (o->uid >= 0) + (o->gid >= 0) != 1)
		return cmd_usage("give one of --path, --uid and --gid");
	if (!o->path) {
		ret->kind = o->uid >= 0 ? CFS_QUOTA_USER : CFS_QUOTA_GROUP;
		ret->key = (uint64_t)(o->uid >= 0 ? o->uid : o->gid);
		return CMD_OK;
	}
	r = admin_lookup(&c->a, o->path, &e);
	if (r == 0 && e.attr.type != CFS_TYPE_DIR)
		r = -ENOTDIR;
	if (r == 0 && (e.ino == CFS_ROOT_INO || cfs_ino_is_trash(e.ino)))
		return cmd_usage("%s: use `cachefs config --capacity` to limit the whole volume",
				 o->path);
	if (r < 0)
		return cmd_error("%s: %s", o->path, strerror(-r));
	ret->kind = CFS_QUOTA_DIR;
	ret->key = e.ino;
	ret->max_space = ret->max_inodes = 0;
	return CMD_OK;
}

/* Returns 1 and the row, or 0 when there is none. */
static int load(struct quota_cmd *c, struct cfs_quota *q)
{
	const struct cfs_quota *row;
	struct quotas l;
	int r = quotas_read(&c->a, &l);

	if (r < 0)
		return r;
	row = quotas_find(&l, q->kind, q->key);
	if (row)
		*q = *row;
	free(l.v);
	return row != NULL;
}

/* ---- showing ---- */

/* The usage of an owner is still counted after its limits are removed. */
static bool is_set(const struct cfs_quota *q)
{
	return q->kind == CFS_QUOTA_DIR || q->max_space > 0 || q->max_inodes > 0;
}

static json_t *describe(struct quota_cmd *c, const struct cfs_quota *q)
{
	json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "kind", kinds[q->kind], "key",
			      (json_int_t)q->key, "max_bytes",
			      (json_int_t)(q->max_space > 0 ? q->max_space : 0), "max_inodes",
			      (json_int_t)(q->max_inodes > 0 ? q->max_inodes : 0), "used_bytes",
			      (json_int_t)q->used_space, "used_inodes", (json_int_t)q->used_inodes);
	char *path;

	if (j && q->kind == CFS_QUOTA_DIR) {
		path = admin_path(&c->a, q->key);
		if (path)
			json_object_set_new(j, "path", admin_text(path, strlen(path)));
		free(path);
	}
	return j;
}

static void print_row(json_t *q)
{
	const char *path = json_string_value(json_object_get(q, "path"));
	json_int_t max = json_get_int(q, "max_bytes");
	json_int_t used = json_get_int(q, "used_bytes");
	json_int_t max_inodes = json_get_int(q, "max_inodes");
	char limit[32] = "none", inodes[32] = "none", buf[32], who[64];

	if (max)
		progress_size((uint64_t)max, limit);
	if (max_inodes)
		snprintf(inodes, sizeof(inodes), "%lld", max_inodes);
	snprintf(who, sizeof(who), "%s %lld", json_string_value(json_object_get(q, "kind")),
		 json_get_int(q, "key"));
	cmd_line("%-28s space %10s of %-10s inodes %8lld of %s", path ? path : who,
		 used < 0 ? "?" : progress_size((uint64_t)used, buf), limit,
		 json_get_int(q, "used_inodes"), inodes);
}

static void show(struct quota_cmd *c, json_t *list)
{
	json_t *q;
	size_t i;

	if (c->o->common.json) {
		admin_print_json(list);
		return;
	}
	json_array_foreach (list, i, q)
		print_row(q);
	if (!json_array_size(list))
		printf("no quotas\n");
	json_decref(list);
}

static int run_list(struct quota_cmd *c)
{
	json_t *list = json_array();
	struct quotas all = {0};
	size_t i;
	int r = quotas_read(&c->a, &all);

	for (i = 0; i < all.n; i++)
		if (is_set(&all.v[i]))
			json_array_append_new(list, describe(c, &all.v[i]));
	free(all.v);
	if (r < 0) {
		json_decref(list);
		return cmd_error("cannot read the quotas: %s", strerror(-r));
	}
	show(c, list);
	return CMD_OK;
}

static int run_get(struct quota_cmd *c)
{
	json_t *list;
	struct cfs_quota q;
	int r;

	r = find_target(c, &q);
	if (r != CMD_OK)
		return r;
	r = load(c, &q);
	if (r <= 0 || !is_set(&q))
		return cmd_error("%s", r < 0 ? strerror(-r) : "there is no such quota");
	list = json_array();
	json_array_append_new(list, describe(c, &q));
	show(c, list);
	return CMD_OK;
}

/* ---- changing ---- */

/* Directory quotas need DirStats; quotas of owners have their own switch. */
static int switch_on(struct quota_cmd *c, enum cfs_quota_kind kind)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_setting *s;
	char err[256];
	int r = cfs_meta_setting(c->a.meta, &s);

	if (r < 0)
		return r;
	if (kind == CFS_QUOTA_DIR ? s->dir_stats : s->user_group_quota)
		goto out;
	if (kind == CFS_QUOTA_DIR) {
		r = cfs_meta_clear_dir_stats(c->a.meta, &ctx);
		s->dir_stats = true;
	} else {
		s->user_group_quota = true;
	}
	if (r == 0)
		r = cfs_meta_format(c->a.meta, s, false, err);
	if (r == 0 && kind != CFS_QUOTA_DIR)
		r = quota_count_owners(&c->a);
out:
	cfs_setting_free(s);
	return r;
}

static int set(struct quota_cmd *c, struct cfs_quota *q)
{
	const struct quota_opts *o = c->o;
	struct cfs_ctx ctx;
	int r = switch_on(c, q->kind), there;

	if (r < 0)
		return r;
	there = load(c, q);
	if (there < 0)
		return there;
	if (o->capacity != NOT_GIVEN)
		q->max_space = o->capacity || q->kind == CFS_QUOTA_DIR ? (int64_t)o->capacity : -1;
	if (o->inodes >= 0)
		q->max_inodes = o->inodes || q->kind == CFS_QUOTA_DIR ? o->inodes : -1;
	if (!there && q->kind == CFS_QUOTA_DIR) {
		r = quota_measure(&c->a, q->key, &q->used_space, &q->used_inodes);
		if (r < 0)
			return r;
	}
	ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	return cfs_meta_put_quota(c->a.meta, &ctx, q);
}

static int run_set(struct quota_cmd *c)
{
	const struct quota_opts *o = c->o;
	struct cfs_quota q;
	int r;

	if (o->capacity == NOT_GIVEN && o->inodes < 0)
		return cmd_usage("set needs --capacity or --inodes");
	r = find_target(c, &q);
	if (r != CMD_OK)
		return r;
	r = set(c, &q);
	if (r < 0)
		return cmd_error("the quota could not be set: %s", strerror(-r));
	admin_tell_uncounted(&c->a, "cachefs quota repair");
	return run_get(c);
}

static int run_delete(struct quota_cmd *c)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_quota q;
	int r;

	r = find_target(c, &q);
	if (r != CMD_OK)
		return r;
	r = load(c, &q);
	if (r > 0)
		r = cfs_meta_del_quota(c->a.meta, &ctx, q.kind, q.key);
	else if (r == 0)
		r = -ENOENT;
	if (r < 0)
		return cmd_error("%s", r == -ENOENT ? "there is no such quota" : strerror(-r));
	return CMD_OK;
}

static int found(void *arg, const struct gap *f)
{
	struct quota_cmd *c = arg;
	json_t *j = describe(c, &f->quota);
	const char *path = json_string_value(json_object_get(j, "path"));
	int r = 0;

	c->found += !f->repaired;
	if (c->o->common.json) {
		json_object_set_new(j, "real_bytes", json_integer(f->there.space));
		json_object_set_new(j, "real_inodes", json_integer(f->there.inodes));
		json_object_set_new(j, "repaired", json_boolean(f->repaired));
		r = json_array_append_new(c->list, j) < 0 ? -ENOMEM : 0;
		return r;
	}
	cmd_line("%s %" PRIu64 "%s%s: says %" PRId64 " bytes %" PRId64 " inodes, has %" PRId64
		 " and %" PRId64 "%s",
		 kinds[f->quota.kind], f->quota.key, path ? " " : "", path ? path : "",
		 f->counted.space, f->counted.inodes, f->there.space, f->there.inodes,
		 f->repaired ? " (repaired)" : "");
	json_decref(j);
	return 0;
}

static int check(struct quota_cmd *c, bool repair)
{
	size_t open = 0;
	int r;

	if (given(c->o))
		cmd_error("note: check looks at all quotas");
	if (repair && admin_begin_repair(&c->a, "cachefs quota repair") < 0)
		return CMD_SYSTEM;
	c->list = json_array();
	r = quota_check(&c->a, repair, found, c, &open);
	if (r < 0) {
		json_decref(c->list);
		return cmd_error("the quotas could not be checked: %s", strerror(-r));
	}
	gaps_note_open(open);
	if (c->o->common.json)
		admin_print_json(c->list);
	else
		json_decref(c->list);
	return c->found ? CMD_DAMAGED : CMD_OK;
}

static int run_check(struct quota_cmd *c)
{
	return check(c, c->o->repair);
}

static int run_repair(struct quota_cmd *c)
{
	return check(c, true);
}

static const struct sub {
	const char *name;
	int (*run)(struct quota_cmd *c);
	bool writes;
} subs[] = {
	{"set", run_set, true},	      {"get", run_get, false},	   {"list", run_list, false},
	{"delete", run_delete, true}, {"check", run_check, false}, {"repair", run_repair, true},
};

static int quota_run(void *options, const char **args)
{
	const struct quota_opts *o = options;
	struct quota_cmd c = {.o = o};
	const struct sub *sub = NULL;
	size_t i;
	int r;

	for (i = 0; i < sizeof(subs) / sizeof(subs[0]); i++) {
		if (!strcmp(subs[i].name, args[0]))
			sub = &subs[i];
	}
	if (!sub)
		return cmd_usage("'%s' is not one of set, get, list, delete, check, repair",
				 args[0]);
	r = admin_open(args[1], &o->common, sub->writes || o->repair ? ADMIN_WRITE : 0, &c.a);
	if (r == CMD_OK)
		r = sub->run(&c);
	return admin_close(&c.a, r);
}

const struct cmd cmd_quota = {
	.name = "quota",
	.synopsis = "set|get|list|delete|check|repair [OPTIONS] META-URL",
	.summary = "Manages limits of directories, users and groups",
	CMD_OPTIONS(quota_table),
	.min_args = 2,
	.max_args = 2,
	.run = quota_run,
};

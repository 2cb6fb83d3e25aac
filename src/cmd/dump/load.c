/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/load.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/slowstep.h"
#include "cmd/access/volume.h"
#include "cmd/access/waits.h"

struct load_opts {
	struct admin_opts common;
	bool restart;
	char *key;
};

#define OPTIONS struct load_opts
static const struct cfs_opt load_table[] = {
	OPT_FLAG("restart", restart, "remove what a load left that did not end, and begin again"),
	OPT_STRING("encrypt-key", key, "FILE",
		   "PEM file of the encryption key, which a dump lacks unless it was made with "
		   "--keep-secrets"),
	ADMIN_OPTIONS(common),
	{0},
};

static int open_all(struct load *l, const char *url, const char *path)
{
	struct cfs_meta_conf conf = {
		.create = true,
		.no_bgjob = true,
		.timeout_ms = ADMIN_STEP_MS,
	};
	struct slow_step *p;
	int r;

	r = stream_open(path, &l->in, l->err);
	if (r)
		return r;
	p = slow_step_begin(url, conf.timeout_ms);
	r = cfs_meta_open(url, &conf, &l->meta, l->err);
	slow_step_end(p);
	return r;
}

static int load_all(struct load *l)
{
	int c = stream_peek(l->in), r;

	progress_begin(&l->p, "rows written");
	r = c == '{' || c == ' ' || c == '\n' ? load_json(l) : load_binary(l);
	if (!r)
		r = load_finish(l);
	progress_end(&l->p);
	return r;
}

/* After a failure the rows are removed, so that the command can be repeated. */
static void give_up(struct load *l, int r)
{
	int gone;

	cmd_error("%s", l->err[0] ? l->err : strerror(-r));
	if (!l->begun)
		return;
	gone = cfs_meta_load_abort(l->meta);
	if (gone)
		cmd_error("what was written could not be removed, use --restart: %s",
			  strerror(-gone));
}

static void say_done(const struct load *l, const struct load_opts *o)
{
	if (o->common.json)
		admin_print_json(json_pack("{s:I, s:I, s:I, s:b}", "inodes", (json_int_t)l->inodes,
					   "entries", (json_int_t)l->entries, "slices",
					   (json_int_t)l->slices, "secrets_removed",
					   l->secrets_removed));
	else
		printf("%" PRIu64 " inodes and %" PRIu64 " names loaded\n", l->inodes, l->entries);
	if (l->secrets_removed)
		fputs("The dump has no secrets: set them with `cachefs config --keys`.\n", stderr);
}

static int load_run(void *options, const char **args)
{
	const struct load_opts *o = options;
	struct load l = {.restart = o->restart, .key_path = o->key};
	struct waits *waits;
	int r = volume_use_credentials(o->common.credentials);

	if (r != CMD_OK)
		return r;
	waits = waits_begin();
	r = open_all(&l, args[0], args[1]);
	if (!r)
		r = load_all(&l);
	if (r)
		give_up(&l, r);
	else
		say_done(&l, o);
	if (l.in)
		stream_close_in(l.in);
	if (l.meta)
		cfs_meta_close(l.meta);
	waits_end(waits);
	load_free(&l);
	return r ? CMD_SYSTEM : CMD_OK;
}

const struct cmd cmd_load = {
	.name = "load",
	.synopsis = "[--restart] [--encrypt-key=FILE] META-URL FILE",
	.summary = "Makes a volume of a dump, in an empty database",
	.options = load_table,
	.options_size = sizeof(struct load_opts),
	.min_args = 2,
	.max_args = 2,
	.run = load_run,
};

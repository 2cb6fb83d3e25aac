/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the JSON dump: one tree. Tables are read once, as for the binary dump, into files that
 * find rows by inode. The tree is assembled from those files, so no request is made per inode and
 * memory does not grow with the volume.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/text/json.h"
#include "cmd/dump/dump-json.h"

/* ---- the tree ---- */

static bool find_node(struct json *j, cfs_ino_t ino, struct cfs_attr *ret)
{
	const uint8_t *p;
	size_t len;

	if (!json_record(j, NODES, ino, heap_find(j->heaps[NODES], ino), &p, &len))
		return false;
	j->err = cfs_attr_decode(p, len, ret);
	return !j->err;
}

static void push(struct json *j, cfs_ino_t ino)
{
	int64_t at = heap_find(j->heaps[EDGES], ino);

	if (at < 0 || CFS_ARRAY_ROOM(j->stack, j->depth, j->cap) < 0)
		j->err = at < 0 ? (int)at : -ENOMEM;
	else
		j->stack[j->depth++] = (struct json_dir){.ino = ino, .at = (uint64_t)at};
}

/* Writes an entry from "{" on; the loop writes the members of a directory. */
static void begin_entry(struct json *j, cfs_ino_t ino, const struct cfs_attr *a, size_t depth)
{
	json_put(j, "{");
	json_new_line(j, depth);
	json_put_parts(j, ino, a, depth);
	if (a->type == CFS_TYPE_DIR) {
		json_put(j, ",");
		json_new_line(j, depth);
		json_put(j, "\"entries\": {");
		push(j, ino);
	} else {
		json_new_line(j, depth - 1);
		json_put(j, "}");
	}
}

static bool is_open_dir(const struct json *j, cfs_ino_t ino)
{
	size_t i;

	for (i = 0; i < j->depth; i++)
		if (j->stack[i].ino == ino)
			return true;
	return false;
}

/* Writes the next member of the innermost directory, or its end. */
static void step(struct json *j, size_t base)
{
	struct json_dir *dir = &j->stack[j->depth - 1];
	size_t len, depth = base + 2 * (j->depth - 1);
	struct cfs_attr attr;
	const uint8_t *p;
	cfs_ino_t ino;

	if (!json_record(j, EDGES, dir->ino, (int64_t)dir->at, &p, &len)) {
		j->depth--;
		json_new_line(j, depth);
		json_put(j, "}");
		json_new_line(j, depth - 1);
		json_put(j, "}");
		return;
	}
	dir->at++;
	ino = cfs_get_be64(p);
	if (!find_node(j, ino, &attr))
		return; /* removed since the table was read */
	if (attr.type == CFS_TYPE_DIR && is_open_dir(j, ino)) {
		snprintf(j->d->err, sizeof(j->d->err),
			 "directory %" PRIu64 " is below itself: run fsck", ino);
		j->err = -ELOOP;
		return;
	}
	json_put(j, dir->any ? "," : "");
	dir->any = true;
	j->d->entries++;
	progress_add(&j->d->p, 1);
	json_new_line(j, depth + 1);
	json_put_text(j, p + EDGE_HEAD, len - EDGE_HEAD);
	json_put(j, ": ");
	begin_entry(j, ino, &attr, depth + 2);
}

static void put_tree(struct json *j, const char *name, cfs_ino_t root)
{
	struct cfs_attr attr;

	if (!find_node(j, root, &attr)) {
		if (root == CFS_ROOT_INO && !j->err)
			j->err = -ENOENT;
		return;
	}
	stream_printf(j->out, ",\n  \"%s\": ", name);
	begin_entry(j, root, &attr, 2);
	while (j->depth && !j->err && !stream_error(j->out))
		step(j, 2);
}

/* ---- before the tree ---- */

static void put_setting(struct json *j)
{
	json_t *setting = cfs_json_load(j->d->setting, strlen(j->d->setting), NULL);
	cfs_auto_free char *text = setting ? cfs_json_dump(setting, JSON_INDENT(2)) : NULL;
	char *line, *rest = text;

	json_decref(setting);
	if (!text)
		j->err = -EINVAL;
	json_put(j, "{\n  \"Setting\": ");
	while ((line = strsep(&rest, "\n"))) {
		json_put(j, line);
		json_put(j, rest ? "\n  " : "");
	}
}

static void put_counters(struct json *j)
{
	size_t i;

	json_put(j, ",\n  \"Counters\": {");
	for (i = 0; i < COUNTER_COUNT; i++)
		stream_printf(j->out, "%s\n    \"%s\": %" PRId64, i ? "," : "",
			      dump_counter_json_names[i], j->counters[i]);
	json_put(j, "\n  }");
}

static int put_sustained(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;

	stream_printf(j->out, "%s\n    {\"sid\": %" PRIu64 ", \"inodes\": [%" PRIu64 "]}", j->comma,
		      row->sid, row->ino);
	j->comma = ",";
	return stream_error(j->out);
}

static int put_delfile(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;

	stream_printf(j->out,
		      "%s\n    {\"inode\": %" PRIu64 ", \"length\": %" PRIu64
		      ", \"expire\": %" PRId64 "}",
		      j->comma, row->ino, row->deleted.length, row->deleted.when_s);
	j->comma = ",";
	return stream_error(j->out);
}

static void put_rows(struct json *j, const char *name, enum cfs_meta_table table, cfs_row_fn fn)
{
	stream_printf(j->out, ",\n  \"%s\": [", name);
	j->comma = "";
	if (!j->err)
		j->err = cfs_meta_scan(j->d->meta, table, fn, j);
	json_put(j, *j->comma ? "\n  ]" : "]");
}

static int put_quota(void *arg, const struct cfs_quota *q)
{
	static const char *const names[] = {"Quotas", "UserQuotas", "GroupQuotas"};
	struct json *j = arg;

	if (q->kind != j->kind)
		return 0;
	if (!*j->comma)
		stream_printf(j->out, ",\n  \"%s\": {", names[q->kind]);
	stream_printf(j->out,
		      "%s\n    \"%" PRIu64 "\": {\n      \"maxSpace\": %" PRId64
		      ",\n      \"maxInodes\": %" PRId64 "\n    }",
		      j->comma, q->key, q->max_space, q->max_inodes);
	j->comma = ",";
	return stream_error(j->out);
}

static void put_quotas(struct json *j, enum cfs_quota_kind kind)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);

	j->comma = "";
	j->kind = kind;
	if (!j->err)
		j->err = cfs_meta_each_quota(j->d->meta, &ctx, put_quota, j);
	json_put(j, *j->comma ? "\n  }" : "");
}

static void put_all(struct json *j)
{
	int kind;

	put_setting(j);
	put_counters(j);
	put_rows(j, "Sustained", CFS_TABLE_SUSTAINED, put_sustained);
	put_rows(j, "DelFiles", CFS_TABLE_DELFILE, put_delfile);
	for (kind = CFS_QUOTA_DIR; kind <= CFS_QUOTA_GROUP; kind++)
		put_quotas(j, (enum cfs_quota_kind)kind);
	if (!j->err)
		put_tree(j, "FSTree", CFS_ROOT_INO);
	if (!j->err && !j->d->skip_trash)
		put_tree(j, "Trash", CFS_TRASH_INO);
	json_put(j, "\n}\n");
	if (!j->err)
		j->err = stream_error(j->out);
}

int dump_json(struct dump *d)
{
	struct json j = {.d = d, .out = d->out};
	size_t i;

	j.err = json_read_tables(&j);
	if (!j.err)
		put_all(&j);
	for (i = 0; i < HEAPS; i++)
		heap_destroy(j.heaps[i]);
	rulelist_free(&j.rules);
	free(j.stack);
	free(j.buf);
	return j.err;
}

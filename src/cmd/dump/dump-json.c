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

static int find_node(struct json *j, cfs_ino_t ino, struct cfs_attr *ret)
{
	struct heap_item item;
	const uint8_t *p;
	int64_t at = heap_find(j->heaps[NODES], ino);
	int r = at < 0 ? (int)at : heap_item(j->heaps[NODES], (uint64_t)at, &item);

	if (r < 0)
		return r;
	if (!r || item.key != ino)
		return -ENOENT;
	r = heap_data(j->heaps[NODES], &item, &p);
	return r ? r : cfs_attr_decode(p, item.len, ret);
}

static int push(struct json *j, cfs_ino_t ino)
{
	int64_t at = heap_find(j->heaps[EDGES], ino);

	if (at < 0)
		return (int)at;
	if (CFS_ARRAY_ROOM(j->stack, j->depth, j->cap) < 0)
		return -ENOMEM;
	j->stack[j->depth++] = (struct json_dir){.ino = ino, .at = (uint64_t)at};
	return 0;
}

/* Writes an entry from "{" on; the loop writes the members of a directory. */
static int begin_entry(struct json *j, cfs_ino_t ino, const struct cfs_attr *a, size_t depth)
{
	int r = json_put(j, "{");

	if (!r)
		r = json_new_line(j, depth);
	if (!r)
		r = json_put_parts(j, ino, a, depth);
	if (r || a->type != CFS_TYPE_DIR) {
		if (!r)
			r = json_new_line(j, depth - 1);
		return r ? r : json_put(j, "}");
	}
	r = json_put(j, ",");
	if (!r)
		r = json_new_line(j, depth);
	if (!r)
		r = json_put(j, "\"entries\": {");
	return r ? r : push(j, ino);
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
static int step(struct json *j, size_t base)
{
	struct json_dir *dir = &j->stack[j->depth - 1];
	size_t depth = base + 2 * (j->depth - 1);
	struct heap_item item;
	struct cfs_attr attr;
	cfs_ino_t ino;
	const uint8_t *p;
	int r = heap_item(j->heaps[EDGES], dir->at, &item);

	if (r < 0)
		return r;
	if (!r || item.key != dir->ino) {
		j->depth--;
		r = json_new_line(j, depth);
		if (!r)
			r = json_put(j, "}");
		if (!r)
			r = json_new_line(j, depth - 1);
		return r ? r : json_put(j, "}");
	}
	dir->at++;
	r = heap_data(j->heaps[EDGES], &item, &p);
	if (r)
		return r;
	ino = cfs_get_be64(p);
	r = find_node(j, ino, &attr);
	if (r == -ENOENT)
		return 0; /* removed since the table was read */
	if (!r && attr.type == CFS_TYPE_DIR && is_open_dir(j, ino)) {
		snprintf(j->d->err, sizeof(j->d->err),
			 "directory %" PRIu64 " is below itself: run fsck", ino);
		return -ELOOP;
	}
	if (!r && dir->any)
		r = json_put(j, ",");
	dir->any = true;
	j->d->entries++;
	progress_add(&j->d->p, 1);
	if (!r)
		r = json_new_line(j, depth + 1);
	if (!r)
		r = json_put_text(j, p + EDGE_HEAD, item.len - EDGE_HEAD);
	if (!r)
		r = json_put(j, ": ");
	return r ? r : begin_entry(j, ino, &attr, depth + 2);
}

static int put_tree(struct json *j, const char *name, cfs_ino_t root)
{
	struct cfs_attr attr;
	int r = find_node(j, root, &attr);

	if (r == -ENOENT && root != CFS_ROOT_INO)
		return 0;
	if (!r)
		r = stream_printf(j->out, ",\n  \"%s\": ", name);
	if (!r)
		r = begin_entry(j, root, &attr, 2);
	while (!r && j->depth)
		r = step(j, 2);
	return r;
}

/* ---- what comes before it ---- */

static int put_setting(struct json *j)
{
	json_t *setting = cfs_json_load(j->d->setting, strlen(j->d->setting), NULL);
	cfs_auto_free char *text = setting ? cfs_json_dump(setting, JSON_INDENT(2)) : NULL;
	const char *line = text;
	int r = text ? json_put(j, "{\n  \"Setting\": ") : -EINVAL;

	json_decref(setting);
	while (!r && *line) {
		size_t len = strcspn(line, "\n");

		r = stream_write(j->out, line, len);
		line += len;
		if (!r && *line) {
			r = json_put(j, "\n  ");
			line++;
		}
	}
	return r;
}

static int put_counters(struct json *j)
{
	size_t i;
	int r = json_put(j, ",\n  \"Counters\": {");

	for (i = 0; i < COUNTER_COUNT && !r; i++)
		r = stream_printf(j->out, "%s\n    \"%s\": %" PRId64, i ? "," : "",
				  dump_counter_json_names[i], j->counters[i]);
	return r ? r : json_put(j, "\n  }");
}

static int put_sustained(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	int r = stream_printf(j->out, "%s\n    {\"sid\": %" PRIu64 ", \"inodes\": [%" PRIu64 "]}",
			      j->comma, row->sid, row->ino);

	j->comma = ",";
	return r;
}

static int put_delfile(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	int r = stream_printf(j->out,
			      "%s\n    {\"inode\": %" PRIu64 ", \"length\": %" PRIu64
			      ", \"expire\": %" PRId64 "}",
			      j->comma, row->ino, row->deleted.length, row->deleted.when_s);

	j->comma = ",";
	return r;
}

static int put_rows(struct json *j, const char *name, enum cfs_meta_table table, cfs_row_fn fn)
{
	int r = stream_printf(j->out, ",\n  \"%s\": [", name);

	j->comma = "";
	if (!r)
		r = cfs_meta_scan(j->d->meta, table, fn, j);
	return r ? r : json_put(j, *j->comma ? "\n  ]" : "]");
}

static int put_quota(void *arg, const struct cfs_quota *q)
{
	static const char *const names[] = {"Quotas", "UserQuotas", "GroupQuotas"};
	struct json *j = arg;
	int r = 0;

	if (q->kind != j->kind)
		return 0;
	if (!*j->comma)
		r = stream_printf(j->out, ",\n  \"%s\": {", names[q->kind]);
	if (!r)
		r = stream_printf(j->out,
				  "%s\n    \"%" PRIu64 "\": {\n      \"maxSpace\": %" PRId64
				  ",\n      \"maxInodes\": %" PRId64 "\n    }",
				  j->comma, q->key, q->max_space, q->max_inodes);
	j->comma = ",";
	return r;
}

static int put_quotas(struct json *j, enum cfs_quota_kind kind)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);
	int r;

	j->comma = "";
	j->kind = kind;
	r = cfs_meta_each_quota(j->d->meta, &ctx, put_quota, j);
	return r || !*j->comma ? r : json_put(j, "\n  }");
}

int dump_json(struct dump *d)
{
	struct json j = {.d = d, .out = d->out};
	size_t i;
	int r = json_read_tables(&j);

	if (!r)
		r = put_setting(&j);
	if (!r)
		r = put_counters(&j);
	if (!r)
		r = put_rows(&j, "Sustained", CFS_TABLE_SUSTAINED, put_sustained);
	if (!r)
		r = put_rows(&j, "DelFiles", CFS_TABLE_DELFILE, put_delfile);
	for (i = CFS_QUOTA_DIR; i <= CFS_QUOTA_GROUP && !r; i++)
		r = put_quotas(&j, (enum cfs_quota_kind)i);
	if (!r)
		r = put_tree(&j, "FSTree", CFS_ROOT_INO);
	if (!r && !d->skip_trash)
		r = put_tree(&j, "Trash", CFS_TRASH_INO);
	if (!r)
		r = json_put(&j, "\n}\n");
	for (i = 0; i < HEAPS; i++)
		heap_destroy(j.heaps[i]);
	rulelist_free(&j.rules);
	free(j.stack);
	free(j.buf);
	return r;
}

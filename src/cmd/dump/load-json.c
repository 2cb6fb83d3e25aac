/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the JSON dump. The tree is walked once. Numbers that the dump lacks are counted on the way:
 * parents, links, references, usage of directories, quotas and the volume. Only inodes with several
 * names, ACL rules and quotas are remembered.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/dump/load-json.h"

enum { DEPTH_MAX = 10000 };

int json_each_item(struct json *j, json_item_fn fn, struct json_entry *e)
{
	bool first = true;
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		r = fn(j, e);
		if (r)
			return r;
	}
	return r;
}

/* ---- the tree ---- */

static void add_sum(struct sum *to, const struct sum *what)
{
	to->length += what->length;
	to->space += what->space;
	to->inodes += what->inodes;
}

static int finish_dir(struct json *j, struct json_entry *e)
{
	struct cfs_row row = {.ino = e->ino};
	size_t i;

	row.stat = (struct cfs_dir_stat){e->direct.length, e->direct.space, e->direct.inodes};
	for (i = 0; i < j->n_quotas; i++)
		if (j->quotas[i].key == e->ino) {
			j->quotas[i].used_space = e->below.space;
			j->quotas[i].used_inodes = e->below.inodes;
		}
	/* Directories that are moved into the trash do not change its link count. */
	if (!cfs_ino_is_trash(e->ino))
		e->attr.nlink = 2 + e->subdirs;
	return j->l->dir_stats ? load_row(j->l, CFS_TABLE_DIR_STAT, &row) : 0;
}

/* Reads everything of the entry except its name in the parent. */
static int finish_inode(struct json *j, struct json_entry *e, int64_t space)
{
	struct cfs_row row = {.ino = e->ino};
	bool linked = e->attr.type != CFS_TYPE_DIR && e->attr.nlink > 1;
	int r = e->attr.type == CFS_TYPE_DIR ? finish_dir(j, e) : 0;

	if (r || e->known)
		return r;
	if (e->ino != CFS_ROOT_INO && e->ino != CFS_TRASH_INO) {
		j->space += space;
		j->inodes++;
	}
	if (linked) {
		linked_set_attr(j, e->ino, &e->attr);
		return 0;
	}
	e->attr.parent = e->parent;
	if (e->attr.type != CFS_TYPE_DIR)
		e->attr.nlink = 1;
	row.attr = e->attr;
	return load_row(j->l, CFS_TABLE_NODE, &row);
}

static int read_entry(struct json *j, struct json_entry *e);

/* State of one directory that is being read. It is on the heap, because paths may be deep. */
struct json_member {
	struct json_entry e;
	char name[3 * CFS_NAME_MAX + 1];
	struct cfs_row row;
};

static int read_member(struct json *j, struct json_entry *dir, const char *key,
		       struct json_member *m)
{
	struct sum one;
	int r;

	m->e = (struct json_entry){.parent = dir->ino};
	m->row = (struct cfs_row){.edge = {.parent = dir->ino, .name = m->name}};
	m->row.edge.name_len = pull_unescape(key, m->name, sizeof(m->name));
	if (!m->row.edge.name_len || m->row.edge.name_len > CFS_NAME_MAX)
		return pull_fail(j->p, "a name that is not allowed");
	r = read_entry(j, &m->e);
	if (r)
		return r;
	m->row.ino = m->e.ino;
	m->row.edge.type = m->e.attr.type;
	one.length = m->e.attr.type == CFS_TYPE_FILE ? (int64_t)m->e.attr.length : 0;
	one.space = cfs_space_of((uint64_t)one.length);
	one.inodes = 1;
	dir->subdirs += m->e.attr.type == CFS_TYPE_DIR;
	add_sum(&dir->direct, &one);
	add_sum(&dir->below, &one);
	add_sum(&dir->below, &m->e.below);
	r = load_row(j->l, CFS_TABLE_EDGE, &m->row);
	if (!r && m->e.attr.type != CFS_TYPE_DIR && m->e.attr.nlink > 1)
		r = linked_note_name(j, m->e.ino, dir->ino);
	return r;
}

static int read_entries(struct json *j, struct json_entry *dir)
{
	struct json_member *m;
	bool first = true;
	const char *key;
	int r;

	if (!dir->has_attr || dir->attr.type != CFS_TYPE_DIR)
		return pull_fail(j->p,
				 "entries below a file, or before the attr of their directory");
	m = malloc(sizeof(*m));
	if (!m)
		return -ENOMEM;
	while ((r = pull_key(j->p, &first, &key)) > 0) {
		r = read_member(j, dir, key, m);
		if (r)
			break;
	}
	free(m);
	return r;
}

static int read_part(struct json *j, const char *key, struct json_entry *e)
{
	return strcmp(key, "entries") != 0 ? entry_read_part(j, key, e) : read_entries(j, e);
}

static int read_entry(struct json *j, struct json_entry *e)
{
	bool first = true;
	const char *key;
	int r;

	if (++j->depth > DEPTH_MAX)
		return pull_fail(j->p, "directories nested too deep");
	while ((r = pull_key(j->p, &first, &key)) > 0) {
		r = read_part(j, key, e);
		if (r)
			return r;
	}
	j->depth--;
	if (r < 0)
		return r;
	if (!e->has_attr)
		return pull_fail(j->p, "an entry without attr");
	return finish_inode(j, e,
			    e->attr.type == CFS_TYPE_FILE ? cfs_space_of(e->attr.length)
							  : cfs_space_of(0));
}

static int read_tree(struct json *j, cfs_ino_t root)
{
	struct json_entry e = {.parent = CFS_ROOT_INO};
	int r = read_entry(j, &e);

	return r || e.ino == root ? r
				  : pull_fail(j->p, "the tree begins with inode %llu",
					      (unsigned long long)e.ino);
}

/* ---- before the tree ---- */

static int read_setting(struct json *j)
{
	char *text;
	int r = pull_value(j->p, &text);

	return r ? r : load_setting(j->l, text);
}

static int read_counters(struct json *j)
{
	bool first = true;
	const char *key;
	int64_t v;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		enum dump_counter c = dump_counter_find(dump_counter_json_names, key, strlen(key));

		r = pull_int(j->p, &v);
		if (r)
			return r;
		if (c < COUNTER_COUNT)
			j->l->counters[c] = CFS_MAX(v, j->l->counters[c]);
	}
	return r;
}

static int read_delfile(struct json *j, struct json_entry *none)
{
	static const char *const names[] = {"inode", "length", "expire"};
	int64_t v[CFS_ARRAY_SIZE(names)];
	int r = pull_numbers(j->p, names, CFS_ARRAY_SIZE(names), v);
	const struct cfs_row row = {
		.ino = (cfs_ino_t)v[0],
		.deleted = {.length = (uint64_t)v[1], .when_s = v[2]},
	};

	return r ? r : load_row(j->l, CFS_TABLE_DELFILE, &row);
}

static int read_quota(struct json *j, struct cfs_quota *q)
{
	static const char *const names[] = {"maxSpace", "maxInodes"};
	int64_t v[CFS_ARRAY_SIZE(names)];
	int r = pull_numbers(j->p, names, CFS_ARRAY_SIZE(names), v);

	q->max_space = v[0];
	q->max_inodes = v[1];
	return r;
}

static int keep_dir_quota(struct json *j, const struct cfs_quota *q)
{
	return CFS_ARRAY_ADD(j->quotas, j->n_quotas, j->cap_quotas, *q);
}

static int read_quotas(struct json *j, enum cfs_quota_kind kind)
{
	bool first = true;
	const char *key;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		struct cfs_quota q = {.kind = kind, .key = strtoull(key, NULL, 10)};

		r = read_quota(j, &q);
		if (!r)
			r = kind == CFS_QUOTA_DIR ? keep_dir_quota(j, &q)
						  : load_owner_quota(j->l, &q);
		if (r)
			return r;
	}
	return r;
}

static int write_quotas(struct json *j)
{
	size_t i;
	int r = 0;

	for (i = 0; i < j->n_quotas && !r; i++) {
		struct cfs_ctx ctx = cfs_ctx_internal(60000);

		r = cfs_meta_put_quota(j->l->meta, &ctx, &j->quotas[i]);
	}
	return r;
}

static int read_top(struct json *j, const char *key)
{
	if (!strcmp(key, "Setting"))
		return read_setting(j);
	if (!j->l->begun)
		return pull_fail(j->p, "%.20s before Setting", key);
	if (!strcmp(key, "Counters"))
		return read_counters(j);
	if (!strcmp(key, "DelFiles"))
		return json_each_item(j, read_delfile, NULL);
	if (!strcmp(key, "Quotas"))
		return read_quotas(j, CFS_QUOTA_DIR);
	if (!strcmp(key, "UserQuotas"))
		return read_quotas(j, CFS_QUOTA_USER);
	if (!strcmp(key, "GroupQuotas"))
		return read_quotas(j, CFS_QUOTA_GROUP);
	if (!strcmp(key, "FSTree"))
		return read_tree(j, CFS_ROOT_INO);
	if (!strcmp(key, "Trash"))
		return read_tree(j, CFS_TRASH_INO);
	/* Skipped: a JSON dump has the list of sustained inodes, but not the inodes. */
	return pull_value(j->p, NULL);
}

static int read_all(struct json *j)
{
	bool first = true;
	const char *key;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		r = read_top(j, key);
		if (r)
			return r;
	}
	if (!r)
		r = pull_end(j->p);
	if (!r && !j->inodes && !j->l->inodes)
		r = pull_fail(j->p, "the tree is missing");
	if (!r)
		r = linked_write(j);
	if (!r)
		r = write_quotas(j);
	j->l->counters[COUNTER_SPACE] = j->space;
	j->l->counters[COUNTER_INODES] = j->inodes;
	return r;
}

int load_json(struct load *l)
{
	struct json j = {.l = l};
	int r = pull_create(l->in, &j.p);

	if (!r)
		r = read_all(&j);
	if (r == -EBADMSG && !l->err[0])
		snprintf(l->err, sizeof(l->err), "the dump is damaged: %s", pull_error(j.p));
	pull_destroy(j.p);
	rulelist_free(&j.rules);
	free(j.linked);
	free(j.names);
	free(j.quotas);
	free(j.packed);
	free(j.slices);
	return r;
}

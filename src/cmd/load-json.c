/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON dump: the tree is walked once, and what it does not say is counted on the way: parents,
 * links, references, usage of directories, quotas and the volume. Only inodes with several names,
 * ACL rules and quotas are remembered.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cmd/load.h"
#include "cmd/pull.h"

enum { DEPTH_MAX = 10000, RULE_MAX = 64 << 10 };

/* An inode with several names: written at the end, when they have been counted. */
struct linked {
	cfs_ino_t ino;
	uint32_t names;
	struct cfs_attr attr;
};

/* How many of its names are in one directory. */
struct names_in {
	cfs_ino_t ino, dir;
	uint32_t names;
};

struct rule {
	uint8_t *packed;
	size_t len;
};

struct sum {
	int64_t length, space, inodes;
};

struct json {
	struct load *l;
	struct pull *p;
	struct linked *linked; /* hash table, open addressing */
	size_t n_linked, cap_linked;
	struct names_in *names; /* the same */
	size_t n_names, cap_names;
	struct rule *rules; /* id - 1 */
	size_t n_rules, cap_rules;
	struct cfs_quota *quotas;
	size_t n_quotas;
	int64_t space, inodes; /* of the volume */
	unsigned depth;
	uint8_t *packed; /* a rule being read */
	struct cfs_slice *slices;
	size_t cap_slices;
};

/* What is known of the entry that is being read. */
struct entry {
	cfs_ino_t ino, parent;
	struct cfs_attr attr;
	bool known; /* another name of an inode that has been loaded */
	bool has_attr;
	uint32_t subdirs;
	struct sum direct, below;
};

/* ---- inodes with several names ---- */

static struct linked *slot(struct linked *v, size_t cap, cfs_ino_t ino)
{
	size_t i = (size_t)(ino * 0x9E3779B97F4A7C15ULL) & (cap - 1);

	while (v[i].ino && v[i].ino != ino)
		i = (i + 1) & (cap - 1);
	return &v[i];
}

static int grow_linked(struct json *j)
{
	size_t i, cap = j->cap_linked ? 2 * j->cap_linked : 256;
	struct linked *v = calloc(cap, sizeof(*v));

	if (!v)
		return -ENOMEM;
	for (i = 0; i < j->cap_linked; i++)
		if (j->linked[i].ino)
			*slot(v, cap, j->linked[i].ino) = j->linked[i];
	free(j->linked);
	j->linked = v;
	j->cap_linked = cap;
	return 0;
}

/* The entry's attributes have been read: is it one that has been met? */
static int note_linked(struct json *j, struct entry *e)
{
	struct linked *s;
	int r = 2 * j->n_linked >= j->cap_linked ? grow_linked(j) : 0;

	if (r)
		return r;
	s = slot(j->linked, j->cap_linked, e->ino);
	e->known = s->ino != 0;
	j->n_linked += !e->known;
	s->ino = e->ino;
	s->names++;
	if (e->known)
		e->attr = s->attr;
	return 0;
}

static struct names_in *names_slot(struct names_in *v, size_t cap, cfs_ino_t ino, cfs_ino_t dir)
{
	size_t i = (size_t)((ino ^ dir << 32) * 0x9E3779B97F4A7C15ULL >> 7) & (cap - 1);

	while (v[i].ino && (v[i].ino != ino || v[i].dir != dir))
		i = (i + 1) & (cap - 1);
	return &v[i];
}

static int note_name(struct json *j, cfs_ino_t ino, cfs_ino_t dir)
{
	struct names_in *s;
	size_t i;

	if (2 * j->n_names >= j->cap_names) {
		size_t cap = j->cap_names ? 2 * j->cap_names : 256;
		struct names_in *v = calloc(cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		for (i = 0; i < j->cap_names; i++)
			if (j->names[i].ino)
				*names_slot(v, cap, j->names[i].ino, j->names[i].dir) = j->names[i];
		free(j->names);
		j->names = v;
		j->cap_names = cap;
	}
	s = names_slot(j->names, j->cap_names, ino, dir);
	j->n_names += !s->ino;
	s->ino = ino;
	s->dir = dir;
	s->names++;
	return 0;
}

static int write_linked(struct json *j)
{
	size_t i;
	int r = 0;

	for (i = 0; i < j->cap_names && !r; i++) {
		const struct names_in *s = &j->names[i];
		const struct cfs_row row = {.ino = s->ino, .parent = {s->dir, s->names}};

		if (s->ino)
			r = load_row(j->l, CFS_TABLE_PARENT, &row);
	}

	for (i = 0; i < j->cap_linked && !r; i++) {
		struct cfs_row row = {.ino = j->linked[i].ino, .attr = j->linked[i].attr};

		if (!row.ino)
			continue;
		row.attr.nlink = j->linked[i].names;
		row.attr.parent = 0;
		r = load_row(j->l, CFS_TABLE_NODE, &row);
	}
	return r;
}

/* ---- parts of an entry ---- */

static const char *const types[] = {
	"", "regular", "directory", "symlink", "fifo", "blockdev", "chardev", "socket",
};

static int read_type(struct json *j, uint8_t *ret)
{
	const char *text;
	size_t len;
	uint8_t i;
	int r = pull_text(j->p, false, &text, &len);

	for (i = 1; i < CFS_ARRAY_SIZE(types) && !r; i++)
		if (!strcmp(types[i], text)) {
			*ret = i;
			return 0;
		}
	return r ? r : pull_fail(j->p, "unknown type %.20s", text);
}

static int read_attr(struct json *j, struct entry *e)
{
	struct cfs_attr *a = &e->attr;
	bool first = true;
	const char *key;
	int64_t v = 0;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		char name[16];

		snprintf(name, sizeof(name), "%s", key);
		r = !strcmp(name, "type") ? read_type(j, &a->type) : pull_int(j->p, &v);
		if (r)
			return r;
		if (!strcmp(name, "inode"))
			e->ino = (cfs_ino_t)v;
		else if (!strcmp(name, "flags"))
			a->flags = (uint8_t)v;
		else if (!strcmp(name, "mode"))
			a->mode = (uint16_t)v & 07777;
		else if (!strcmp(name, "uid"))
			a->uid = (uint32_t)v;
		else if (!strcmp(name, "gid"))
			a->gid = (uint32_t)v;
		else if (!strcmp(name, "atime"))
			a->atime.tv_sec = (time_t)v;
		else if (!strcmp(name, "mtime"))
			a->mtime.tv_sec = (time_t)v;
		else if (!strcmp(name, "ctime"))
			a->ctime.tv_sec = (time_t)v;
		else if (!strcmp(name, "atimensec"))
			a->atime.tv_nsec = (long)v;
		else if (!strcmp(name, "mtimensec"))
			a->mtime.tv_nsec = (long)v;
		else if (!strcmp(name, "ctimensec"))
			a->ctime.tv_nsec = (long)v;
		else if (!strcmp(name, "nlink"))
			a->nlink = (uint32_t)v;
		else if (!strcmp(name, "length"))
			a->length = (uint64_t)v;
		else if (!strcmp(name, "rdev"))
			a->rdev = (uint32_t)v;
		else if (!strcmp(name, "tier"))
			a->tier = (uint8_t)v;
	}
	if (r < 0)
		return r;
	if (!e->ino || !a->type)
		return pull_fail(j->p, "an entry without inode or type");
	e->has_attr = true;
	if (a->type == CFS_TYPE_DIR)
		a->length = CFS_DIR_LENGTH;
	return a->type != CFS_TYPE_DIR && a->nlink > 1 ? note_linked(j, e) : 0;
}

static int read_symlink(struct json *j, struct entry *e)
{
	struct cfs_row row = {.ino = e->ino};
	int r = pull_text(j->p, true, &row.symlink.target, &row.symlink.len);

	if (r || e->known)
		return r;
	if (e->attr.type != CFS_TYPE_SYMLINK)
		return pull_fail(j->p, "a target of what is no symbolic link");
	e->attr.length = row.symlink.len;
	return load_row(j->l, CFS_TABLE_SYMLINK, &row);
}

static int read_xattr(struct json *j, struct entry *e)
{
	struct cfs_row row = {.ino = e->ino};
	char name[256] = "";
	bool first = true;
	const char *key, *text;
	size_t len;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		bool is_name = !strcmp(key, "name"), is_value = !strcmp(key, "value");

		r = pull_text(j->p, true, &text, &len);
		if (r)
			return r;
		if (is_name && len < sizeof(name)) {
			memcpy(name, text, len);
			row.xattr.name_len = len;
		} else if (is_value) {
			row.xattr.value = text; /* the other client writes it last */
			row.xattr.value_len = len;
		}
	}
	row.xattr.name = name;
	if (r < 0 || e->known)
		return r;
	if (!row.xattr.name_len || !row.xattr.value)
		return pull_fail(j->p, "an extended attribute without name or value");
	return load_row(j->l, CFS_TABLE_XATTR, &row);
}

static int read_xattrs(struct json *j, struct entry *e)
{
	bool first = true;
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		r = read_xattr(j, e);
		if (r)
			return r;
	}
	return r;
}

/* ---- ACL rules ---- */

static int read_named(struct json *j, uint8_t *out, size_t room, size_t *ret_len)
{
	bool first = true, inner;
	size_t len = 0;
	const char *key;
	int64_t v;
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		if (len + 6 > room)
			return pull_fail(j->p, "an ACL is too long");
		inner = true;
		memset(out + len, 0, 6);
		while ((r = pull_key(j->p, &inner, &key)) > 0) {
			bool is_id = !strcmp(key, "id"), is_perm = !strcmp(key, "perm");

			r = pull_int(j->p, &v);
			if (r)
				return r;
			if (is_id)
				cfs_put_be32(out + len, (uint32_t)v);
			else if (is_perm)
				cfs_put_be16(out + len + 4, (uint16_t)v);
		}
		if (r < 0)
			return r;
		len += 6;
	}
	*ret_len = len;
	return r;
}

static int rule_id(struct json *j, size_t len, uint32_t *ret)
{
	struct cfs_row row = {.acl = {.rule = j->packed, .len = len}};
	size_t i;

	for (i = 0; i < j->n_rules; i++)
		if (j->rules[i].len == len && !memcmp(j->rules[i].packed, j->packed, len)) {
			*ret = (uint32_t)i + 1;
			return 0;
		}
	if (j->n_rules == j->cap_rules) {
		size_t cap = j->cap_rules ? 2 * j->cap_rules : 64;
		struct rule *v = reallocarray(j->rules, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		j->rules = v;
		j->cap_rules = cap;
	}
	j->rules[i] = (struct rule){.packed = malloc(len), .len = len};
	if (!j->rules[i].packed)
		return -ENOMEM;
	memcpy(j->rules[i].packed, j->packed, len);
	j->n_rules++;
	row.acl.id = *ret = (uint32_t)i + 1;
	return load_row(j->l, CFS_TABLE_ACL, &row);
}

static int read_acl(struct json *j, uint32_t *ret_id)
{
	static const char *const parts[] = {"owner", "group", "mask", "other"};
	static uint8_t groups[RULE_MAX]; /* commands have one thread */
	size_t users_len = 0, groups_len = 0, i;
	bool first = true;
	const char *key;
	uint8_t *p;
	int64_t v;
	int r;

	if (!j->packed)
		j->packed = malloc(2 * RULE_MAX + 16);
	if (!j->packed)
		return -ENOMEM;
	p = j->packed;
	memset(p, 0xff, 8);
	while ((r = pull_key(j->p, &first, &key)) > 0) {
		for (i = 0; i < CFS_ARRAY_SIZE(parts) && strcmp(key, parts[i]); i++)
			;
		if (i < CFS_ARRAY_SIZE(parts)) {
			r = pull_int(j->p, &v);
			cfs_put_be16(p + 2 * i, (uint16_t)v);
		} else if (!strcmp(key, "users")) {
			r = read_named(j, p + 12, RULE_MAX, &users_len);
		} else if (!strcmp(key, "groups")) {
			r = read_named(j, groups, RULE_MAX, &groups_len);
		} else {
			r = pull_value(j->p, NULL);
		}
		if (r)
			return r;
	}
	if (r < 0)
		return r;
	cfs_put_be32(p + 8, (uint32_t)(users_len / 6));
	cfs_put_be32(p + 12 + users_len, (uint32_t)(groups_len / 6));
	memcpy(p + 16 + users_len, groups, groups_len);
	return rule_id(j, 16 + users_len + groups_len, ret_id);
}

/* ---- chunks ---- */

static int read_slice(struct json *j, struct cfs_slice *ret)
{
	bool first = true;
	const char *key;
	int64_t v;
	int r;

	*ret = (struct cfs_slice){0};
	while ((r = pull_key(j->p, &first, &key)) > 0) {
		char name[16];

		snprintf(name, sizeof(name), "%s", key);
		r = pull_int(j->p, &v);
		if (r)
			return r;
		if (!strcmp(name, "id") || !strcmp(name, "chunkid"))
			ret->id = (uint64_t)v;
		else if (!strcmp(name, "pos"))
			ret->pos = (uint32_t)v;
		else if (!strcmp(name, "size"))
			ret->size = (uint32_t)v;
		else if (!strcmp(name, "off"))
			ret->off = (uint32_t)v;
		else if (!strcmp(name, "len"))
			ret->len = (uint32_t)v;
	}
	return r;
}

static int read_slices(struct json *j, size_t *ret_n)
{
	bool first = true;
	size_t n = 0;
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		if (n == j->cap_slices) {
			size_t cap = n ? 2 * n : 64;
			struct cfs_slice *v = reallocarray(j->slices, cap, sizeof(*v));

			if (!v)
				return -ENOMEM;
			j->slices = v;
			j->cap_slices = cap;
		}
		r = read_slice(j, &j->slices[n++]);
		if (r)
			return r;
	}
	*ret_n = n;
	return r;
}

static int read_chunk(struct json *j, struct entry *e)
{
	struct cfs_row row = {.ino = e->ino};
	bool first = true;
	const char *key;
	int64_t v;
	size_t n = 0;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		if (!strcmp(key, "index")) {
			r = pull_int(j->p, &v);
			row.list.indx = (uint32_t)v;
		} else if (!strcmp(key, "slices")) {
			r = read_slices(j, &n);
		} else {
			r = pull_value(j->p, NULL);
		}
		if (r)
			return r;
	}
	if (r < 0 || e->known || !n)
		return r;
	row.list.slices = j->slices;
	row.list.n = n;
	j->l->slices += n;
	return load_row(j->l, CFS_TABLE_CHUNK, &row);
}

static int read_chunks(struct json *j, struct entry *e)
{
	bool first = true;
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		r = read_chunk(j, e);
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

static int finish_dir(struct json *j, struct entry *e)
{
	struct cfs_row row = {.ino = e->ino};
	size_t i;

	row.stat = (struct cfs_dir_stat){e->direct.length, e->direct.space, e->direct.inodes};
	for (i = 0; i < j->n_quotas; i++)
		if (j->quotas[i].kind == CFS_QUOTA_DIR && j->quotas[i].key == e->ino) {
			j->quotas[i].used_space = e->below.space;
			j->quotas[i].used_inodes = e->below.inodes;
		}
	/* Link counts of the trash do not follow what is moved into it. */
	if (!cfs_ino_is_trash(e->ino))
		e->attr.nlink = 2 + e->subdirs;
	return j->l->dir_stats ? load_row(j->l, CFS_TABLE_DIR_STAT, &row) : 0;
}

static void charge_owners(struct json *j, const struct cfs_attr *a, int64_t space)
{
	size_t i;

	for (i = 0; i < j->n_quotas; i++) {
		struct cfs_quota *q = &j->quotas[i];

		if ((q->kind == CFS_QUOTA_USER && q->key == a->uid) ||
		    (q->kind == CFS_QUOTA_GROUP && q->key == a->gid)) {
			q->used_space += space;
			q->used_inodes++;
		}
	}
}

/* Everything of the entry but its name in the parent. */
static int finish_inode(struct json *j, struct entry *e, int64_t space)
{
	struct cfs_row row = {.ino = e->ino};
	bool linked = e->attr.type != CFS_TYPE_DIR && e->attr.nlink > 1;
	int r = e->attr.type == CFS_TYPE_DIR ? finish_dir(j, e) : 0;

	if (r || e->known)
		return r;
	if (e->ino != CFS_ROOT_INO && e->ino != CFS_TRASH_INO) {
		j->space += space;
		j->inodes++;
		charge_owners(j, &e->attr, space);
	}
	if (linked) {
		slot(j->linked, j->cap_linked, e->ino)->attr = e->attr;
		return 0;
	}
	e->attr.parent = e->parent;
	if (e->attr.type != CFS_TYPE_DIR)
		e->attr.nlink = 1;
	row.attr = e->attr;
	return load_row(j->l, CFS_TABLE_NODE, &row);
}

static int read_entry(struct json *j, struct entry *e);

static int read_entries(struct json *j, struct entry *dir)
{
	bool first = true;
	const char *key;
	int r;

	if (!dir->has_attr || dir->attr.type != CFS_TYPE_DIR)
		return pull_fail(j->p, "entries of what is no directory, or before its attr");
	while ((r = pull_key(j->p, &first, &key)) > 0) {
		struct entry e = {.parent = dir->ino};
		char name[3 * CFS_NAME_MAX + 1];
		struct cfs_row row = {.edge = {.parent = dir->ino, .name = name}};
		struct sum one;

		row.edge.name_len = pull_unescape(key, name, sizeof(name));
		if (!row.edge.name_len || row.edge.name_len > CFS_NAME_MAX)
			return pull_fail(j->p, "a name that cannot be");
		r = read_entry(j, &e);
		if (r)
			return r;
		row.ino = e.ino;
		row.edge.type = e.attr.type;
		one.length = e.attr.type == CFS_TYPE_FILE ? (int64_t)e.attr.length : 0;
		one.space = cfs_space_of((uint64_t)one.length);
		one.inodes = 1;
		dir->subdirs += e.attr.type == CFS_TYPE_DIR;
		add_sum(&dir->direct, &one);
		add_sum(&dir->below, &one);
		add_sum(&dir->below, &e.below);
		r = load_row(j->l, CFS_TABLE_EDGE, &row);
		if (!r && e.attr.type != CFS_TYPE_DIR && e.attr.nlink > 1)
			r = note_name(j, e.ino, dir->ino);
		if (r)
			return r;
	}
	return r;
}

static int read_part(struct json *j, const char *key, struct entry *e)
{
	if (!strcmp(key, "attr"))
		return read_attr(j, e);
	if (!e->has_attr)
		return pull_fail(j->p, "%.20s before attr", key);
	if (!strcmp(key, "symlink"))
		return read_symlink(j, e);
	if (!strcmp(key, "xattrs"))
		return read_xattrs(j, e);
	if (!strcmp(key, "posix_acl_access"))
		return read_acl(j, &e->attr.access_acl);
	if (!strcmp(key, "posix_acl_default"))
		return read_acl(j, &e->attr.default_acl);
	if (!strcmp(key, "chunks"))
		return read_chunks(j, e);
	if (!strcmp(key, "entries"))
		return read_entries(j, e);
	return pull_value(j->p, NULL);
}

static int read_entry(struct json *j, struct entry *e)
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
	struct entry e = {.parent = CFS_ROOT_INO};
	int r = read_entry(j, &e);

	return r || e.ino == root ? r
				  : pull_fail(j->p, "the tree begins with inode %llu",
					      (unsigned long long)e.ino);
}

/* ---- what comes before it ---- */

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

static int read_delfile(struct json *j)
{
	struct cfs_row row = {0};
	bool first = true;
	const char *key;
	int64_t v;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		char name[16];

		snprintf(name, sizeof(name), "%s", key);
		r = pull_int(j->p, &v);
		if (r)
			return r;
		if (!strcmp(name, "inode"))
			row.ino = (cfs_ino_t)v;
		else if (!strcmp(name, "length"))
			row.deleted.length = (uint64_t)v;
		else if (!strcmp(name, "expire"))
			row.deleted.when_s = v;
	}
	return r < 0 ? r : load_row(j->l, CFS_TABLE_DELFILE, &row);
}

static int read_delfiles(struct json *j)
{
	bool first = true;
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		r = read_delfile(j);
		if (r)
			return r;
	}
	return r;
}

static int read_quota(struct json *j, struct cfs_quota *q)
{
	bool first = true;
	const char *key;
	int64_t v;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		bool space = !strcmp(key, "maxSpace"), inodes = !strcmp(key, "maxInodes");

		r = pull_int(j->p, &v);
		if (r)
			return r;
		if (space)
			q->max_space = v;
		else if (inodes)
			q->max_inodes = v;
	}
	return r;
}

static int read_quotas(struct json *j, enum cfs_quota_kind kind)
{
	bool first = true;
	const char *key;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		struct cfs_quota *v = reallocarray(j->quotas, j->n_quotas + 1, sizeof(*v));

		if (!v)
			return -ENOMEM;
		j->quotas = v;
		v += j->n_quotas++;
		*v = (struct cfs_quota){.kind = kind, .key = strtoull(key, NULL, 10)};
		r = read_quota(j, v);
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
		return read_delfiles(j);
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
	/* Sustained: the inodes themselves are not in this form. */
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
		r = pull_fail(j->p, "there is no tree in it");
	if (!r)
		r = write_linked(j);
	if (!r)
		r = write_quotas(j);
	j->l->counters[COUNTER_SPACE] = j->space;
	j->l->counters[COUNTER_INODES] = j->inodes;
	return r;
}

int load_json(struct load *l)
{
	struct json j = {.l = l};
	size_t i;
	int r = pull_create(l->in, &j.p);

	if (!r)
		r = read_all(&j);
	if (r == -EBADMSG && !l->err[0])
		snprintf(l->err, sizeof(l->err), "the dump is not right: %s", pull_error(j.p));
	pull_destroy(j.p);
	for (i = 0; i < j.n_rules; i++)
		free(j.rules[i].packed);
	free(j.rules);
	free(j.linked);
	free(j.names);
	free(j.quotas);
	free(j.packed);
	free(j.slices);
	return r;
}

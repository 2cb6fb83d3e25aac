/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON dump: one tree. Tables are read once, as for the binary dump, into files that find rows
 * by inode; the tree is put together from those, so no request is made per inode and memory does
 * not grow with the volume.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "cmd/dump.h"
#include "cmd/heap.h"

enum { EDGES, NODES, CHUNKS, SYMLINKS, XATTRS, HEAPS, EDGE_HEAD = 9, CHUNK_HEAD = 4 };

/* Rules are few: they are kept. */
struct rule {
	uint32_t id;
	uint8_t *packed;
	size_t len;
};

struct dir {	     /* one being written */
	uint64_t at; /* its next entry */
	cfs_ino_t ino;
	bool any;
};

struct json {
	struct dump *d;
	struct stream_out *out;
	struct heap *heaps[HEAPS];
	struct rule *rules;
	size_t n_rules, cap_rules;
	int64_t counters[COUNTER_COUNT];
	struct dir *stack;
	size_t depth, cap;
	uint8_t *buf; /* of one row, and of one text */
	size_t buf_cap;
	const char *comma; /* before the next item of a list */
	enum cfs_quota_kind kind;
};

static int room(struct json *j, size_t n)
{
	uint8_t *p;

	if (n <= j->buf_cap)
		return 0;
	p = realloc(j->buf, n);
	if (!p)
		return -ENOMEM;
	j->buf = p;
	j->buf_cap = n;
	return 0;
}

/* ---- tables into files ---- */

static int add_node(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	uint8_t attr[CFS_ATTR_BYTES_MAX];

	progress_add(&j->d->p, 1);
	j->d->inodes++;
	return heap_add(j->heaps[NODES], row->ino, 0, attr, cfs_attr_encode(&row->attr, attr));
}

static int add_edge(void *arg, const struct cfs_row *row)
{
	uint8_t rec[EDGE_HEAD + CFS_NAME_MAX] = {0};
	struct json *j = arg;
	size_t len = CFS_MIN(row->edge.name_len, (size_t)CFS_NAME_MAX);

	progress_add(&j->d->p, 1);
	cfs_put_be64(rec, row->ino);
	rec[8] = row->edge.type;
	memcpy(rec + EDGE_HEAD, row->edge.name, len);
	/* Roughly in the order of names; the rest is as they come. */
	return heap_add(j->heaps[EDGES], row->edge.parent, cfs_get_be32(rec + EDGE_HEAD), rec,
			EDGE_HEAD + len);
}

static int add_chunk(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	size_t i, len = row->list.n * CFS_SLICE_BYTES;
	int r = row->list.damaged ? -EBADMSG : room(j, CHUNK_HEAD + len);

	if (r)
		return r;
	progress_add(&j->d->p, 1);
	cfs_put_be32(j->buf, row->list.indx);
	for (i = 0; i < row->list.n; i++)
		cfs_slice_encode(&row->list.slices[i], j->buf + CHUNK_HEAD + i * CFS_SLICE_BYTES);
	return heap_add(j->heaps[CHUNKS], row->ino, row->list.indx, j->buf, CHUNK_HEAD + len);
}

static int add_symlink(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;

	return heap_add(j->heaps[SYMLINKS], row->ino, 0, row->symlink.target, row->symlink.len);
}

static int add_xattr(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	size_t name_len = row->xattr.name_len, value_len = row->xattr.value_len;
	int r = room(j, 2 + name_len + value_len);

	if (r)
		return r;
	cfs_put_be16(j->buf, (uint16_t)name_len);
	memcpy(j->buf + 2, row->xattr.name, name_len);
	if (value_len)
		memcpy(j->buf + 2 + name_len, row->xattr.value, value_len);
	return heap_add(j->heaps[XATTRS], row->ino, 0, j->buf, 2 + name_len + value_len);
}

static int add_rule(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	struct rule *rule;

	if (j->n_rules == j->cap_rules) {
		size_t cap = j->cap_rules ? 2 * j->cap_rules : 64;
		struct rule *v = reallocarray(j->rules, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		j->rules = v;
		j->cap_rules = cap;
	}
	rule = &j->rules[j->n_rules];
	*rule = (struct rule){.id = row->acl.id, .len = row->acl.len};
	rule->packed = malloc(rule->len + 1);
	if (!rule->packed)
		return -ENOMEM;
	memcpy(rule->packed, row->acl.rule, rule->len);
	j->n_rules++;
	return 0;
}

static int add_counter(void *arg, const struct cfs_row *row)
{
	struct json *j = arg;
	const char *name = row->counter.name;
	enum dump_counter c = dump_counter_find(dump_counter_names, name, strlen(name));

	if (c < COUNTER_COUNT)
		j->counters[c] = row->counter.value;
	return 0;
}

static int compare_rules(const void *a, const void *b)
{
	const struct rule *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static int read_tables(struct json *j)
{
	static const struct {
		enum cfs_meta_table table;
		cfs_row_fn fn;
	} tables[] = {
		/* Names first: an inode that a name gives is newer than the name. */
		{CFS_TABLE_COUNTER, add_counter}, {CFS_TABLE_EDGE, add_edge},
		{CFS_TABLE_NODE, add_node},	  {CFS_TABLE_CHUNK, add_chunk},
		{CFS_TABLE_SYMLINK, add_symlink}, {CFS_TABLE_XATTR, add_xattr},
		{CFS_TABLE_ACL, add_rule},
	};
	size_t i;
	int r = 0;

	for (i = 0; i < HEAPS && !r; i++)
		r = heap_create(&j->heaps[i]);
	for (i = 0; i < CFS_ARRAY_SIZE(tables) && !r; i++)
		r = cfs_meta_scan(j->d->meta, tables[i].table, tables[i].fn, j);
	for (i = 0; i < HEAPS && !r; i++)
		r = heap_seal(j->heaps[i]);
	if (!r && j->n_rules)
		qsort(j->rules, j->n_rules, sizeof(*j->rules), compare_rules);
	return r;
}

/* ---- text ---- */

static int put(struct json *j, const char *text)
{
	return stream_write(j->out, text, strlen(text));
}

static int new_line(struct json *j, size_t depth)
{
	static const char blanks[] =
		"                                                              ";
	size_t n = 2 * depth;
	int r = put(j, "\n");

	for (; n && !r; n -= CFS_MIN(n, sizeof(blanks) - 1))
		r = stream_write(j->out, blanks, CFS_MIN(n, sizeof(blanks) - 1));
	return r;
}

/* Bytes of the UTF-8 character that begins here; 0: none does. */
static size_t utf8_len(const uint8_t *p, size_t len)
{
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	size_t i;

	if (n > len || p[0] > 0xf4)
		return 0;
	for (i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
	    (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0; /* too long a form, a surrogate, too large */
	return n;
}

/* "text", with everything that is not plain as %XX. */
static int put_text(struct json *j, const uint8_t *p, size_t len)
{
	char out[512];
	size_t n = 0, i, k;
	int r = 0;

	out[n++] = '"';
	for (i = 0; i < len && !r; i += k) {
		size_t size = utf8_len(p + i, len - i);

		k = size ? size : 1;
		if (!size || p[i] <= ' ' || strchr("%\"\\", p[i])) {
			snprintf(out + n, 4, "%%%02X", p[i]);
			n += 3;
		} else {
			memcpy(out + n, p + i, k);
			n += k;
		}
		if (n > sizeof(out) - 8) {
			r = stream_write(j->out, out, n);
			n = 0;
		}
	}
	out[n++] = '"';
	return r ? r : stream_write(j->out, out, n);
}

/* ---- what an entry consists of ---- */

static int put_attr(struct json *j, cfs_ino_t ino, const struct cfs_attr *a)
{
	const struct {
		const char *name;
		uint64_t v;
	} rest[] = {
		{"atimensec", (uint64_t)a->atime.tv_nsec},
		{"mtimensec", (uint64_t)a->mtime.tv_nsec},
		{"ctimensec", (uint64_t)a->ctime.tv_nsec},
	};
	size_t i;
	int r = stream_printf(j->out, "\"attr\": {\"inode\":%" PRIu64, ino);

	if (!r && a->flags)
		r = stream_printf(j->out, ",\"flags\":%u", a->flags);
	if (!r)
		r = stream_printf(j->out,
				  ",\"type\":\"%s\",\"mode\":%u,\"uid\":%u,\"gid\":%u,"
				  "\"atime\":%lld,\"mtime\":%lld,\"ctime\":%lld",
				  dump_type_names[a->type <= CFS_TYPE_SOCKET ? a->type : 0],
				  a->mode, a->uid, a->gid, (long long)a->atime.tv_sec,
				  (long long)a->mtime.tv_sec, (long long)a->ctime.tv_sec);
	for (i = 0; i < CFS_ARRAY_SIZE(rest) && !r; i++)
		if (rest[i].v)
			r = stream_printf(j->out, ",\"%s\":%" PRIu64, rest[i].name, rest[i].v);
	if (!r)
		r = stream_printf(j->out, ",\"nlink\":%u,\"length\":%" PRIu64, a->nlink,
				  a->type == CFS_TYPE_FILE ? a->length : 0);
	if (!r && a->rdev)
		r = stream_printf(j->out, ",\"rdev\":%u", a->rdev);
	if (!r && a->tier)
		r = stream_printf(j->out, ",\"tier\":%u", a->tier);
	return r ? r : put(j, "}");
}

static int put_symlink(struct json *j, cfs_ino_t ino, size_t depth)
{
	struct heap_item item;
	const uint8_t *p;
	int64_t at = heap_find(j->heaps[SYMLINKS], ino);
	int r = at < 0 ? (int)at : heap_item(j->heaps[SYMLINKS], (uint64_t)at, &item);

	if (r <= 0 || item.key != ino)
		return r < 0 ? r : 0;
	r = heap_data(j->heaps[SYMLINKS], &item, &p);
	if (!r)
		r = put(j, ",");
	if (!r)
		r = new_line(j, depth);
	if (!r)
		r = put(j, "\"symlink\": ");
	return r ? r : put_text(j, p, item.len);
}

/* Calls fn with every record of the inode; around them begin and end, when there are any. */
static int put_list(struct json *j, int which, cfs_ino_t ino, size_t depth, const char *begin,
		    int (*fn)(struct json *j, const uint8_t *p, size_t len, size_t depth))
{
	struct heap_item item;
	const uint8_t *p;
	int64_t at = heap_find(j->heaps[which], ino);
	bool any = false;
	int r = at < 0 ? (int)at : 0;

	for (; r >= 0; at++) {
		r = heap_item(j->heaps[which], (uint64_t)at, &item);
		if (r <= 0 || item.key != ino)
			break;
		r = heap_data(j->heaps[which], &item, &p);
		if (!r)
			r = put(j, ",");
		if (!r && !any)
			r = new_line(j, depth);
		if (!r && !any)
			r = put(j, begin);
		if (!r && any)
			r = new_line(j, depth + 1);
		any = true;
		if (!r)
			r = fn(j, p, item.len, depth);
	}
	if (r < 0)
		return r;
	return any ? put(j, "]") : 0;
}

static int put_xattr(struct json *j, const uint8_t *p, size_t len, size_t depth)
{
	size_t name_len = cfs_get_be16(p);
	int r = put(j, "{\"name\":");

	if (!r)
		r = put_text(j, p + 2, name_len);
	if (!r)
		r = put(j, ",\"value\":");
	if (!r)
		r = put_text(j, p + 2 + name_len, len - 2 - name_len);
	return r ? r : put(j, "}");
}

static int put_chunk(struct json *j, const uint8_t *p, size_t len, size_t depth)
{
	const uint8_t *end = p + len;
	struct cfs_slice s;
	int r = stream_printf(j->out, "{\"index\":%u,\"slices\":[", cfs_get_be32(p));

	for (p += CHUNK_HEAD; p < end && !r; p += CFS_SLICE_BYTES) {
		cfs_slice_decode(p, &s);
		r = stream_printf(j->out, "{\"id\":%" PRIu64, s.id);
		if (!r && s.pos)
			r = stream_printf(j->out, ",\"pos\":%u", s.pos);
		if (!r)
			r = stream_printf(j->out, ",\"size\":%u", s.size);
		if (!r && s.off)
			r = stream_printf(j->out, ",\"off\":%u", s.off);
		if (!r)
			r = stream_printf(j->out, ",\"len\":%u}%s", s.len,
					  p + CFS_SLICE_BYTES < end ? "," : "");
	}
	return r ? r : put(j, "]}");
}

static int put_named(struct json *j, const char *name, const uint8_t **p, const uint8_t *end)
{
	const char *comma = "";
	uint32_t n;
	int r;

	if (end - *p < 4)
		return -EBADMSG;
	n = cfs_get_be32(*p);
	*p += 4;
	if (n > (size_t)(end - *p) / 6)
		return -EBADMSG;
	if (!n)
		return stream_printf(j->out, ",\"%s\":null", name);
	r = stream_printf(j->out, ",\"%s\":[", name);
	for (; n && !r; n--, *p += 6, comma = ",")
		r = stream_printf(j->out, "%s{\"id\":%u,\"perm\":%u}", comma, cfs_get_be32(*p),
				  cfs_get_be16(*p + 4));
	return r ? r : put(j, "]");
}

static int put_acl(struct json *j, const char *name, uint32_t id, size_t depth)
{
	const struct rule key = {.id = id}, *rule = NULL;
	const uint8_t *p, *end;
	int r;

	if (id && j->n_rules)
		rule = bsearch(&key, j->rules, j->n_rules, sizeof(key), compare_rules);
	if (!rule || rule->len < 8)
		return 0;
	p = rule->packed;
	end = p + rule->len;
	r = put(j, ",");
	if (!r)
		r = new_line(j, depth);
	if (!r)
		r = stream_printf(j->out,
				  "\"%s\": {\"owner\":%u,\"group\":%u,\"other\":%u,\"mask\":%u",
				  name, cfs_get_be16(p), cfs_get_be16(p + 2), cfs_get_be16(p + 6),
				  cfs_get_be16(p + 4));
	p += 8;
	if (!r)
		r = put_named(j, "users", &p, end);
	if (!r)
		r = put_named(j, "groups", &p, end);
	return r ? r : put(j, "}");
}

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
	if (j->depth == j->cap) {
		size_t cap = j->cap ? 2 * j->cap : 64;
		struct dir *v = reallocarray(j->stack, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		j->stack = v;
		j->cap = cap;
	}
	j->stack[j->depth++] = (struct dir){.ino = ino, .at = (uint64_t)at};
	return 0;
}

/* From "{" on; the members of a directory are left to the loop. */
static int begin_entry(struct json *j, cfs_ino_t ino, const struct cfs_attr *a, size_t depth)
{
	int r = put(j, "{");

	if (!r)
		r = new_line(j, depth);
	if (!r)
		r = put_attr(j, ino, a);
	if (!r && a->type == CFS_TYPE_SYMLINK)
		r = put_symlink(j, ino, depth);
	if (!r)
		r = put_list(j, XATTRS, ino, depth, "\"xattrs\": [", put_xattr);
	if (!r)
		r = put_acl(j, "posix_acl_access", a->access_acl, depth);
	if (!r)
		r = put_acl(j, "posix_acl_default", a->default_acl, depth);
	/* The other client leaves out what an empty file may have been. */
	if (!r && a->type == CFS_TYPE_FILE && a->length)
		r = put_list(j, CHUNKS, ino, depth, "\"chunks\": [", put_chunk);
	if (r || a->type != CFS_TYPE_DIR) {
		if (!r)
			r = new_line(j, depth - 1);
		return r ? r : put(j, "}");
	}
	r = put(j, ",");
	if (!r)
		r = new_line(j, depth);
	if (!r)
		r = put(j, "\"entries\": {");
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

/* The next member of the innermost directory, or its end. */
static int step(struct json *j, size_t base)
{
	struct dir *dir = &j->stack[j->depth - 1];
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
		r = new_line(j, depth);
		if (!r)
			r = put(j, "}");
		if (!r)
			r = new_line(j, depth - 1);
		return r ? r : put(j, "}");
	}
	dir->at++;
	r = heap_data(j->heaps[EDGES], &item, &p);
	if (r)
		return r;
	ino = cfs_get_be64(p);
	r = find_node(j, ino, &attr);
	if (r == -ENOENT)
		return 0; /* removed meanwhile */
	if (!r && attr.type == CFS_TYPE_DIR && is_open_dir(j, ino))
		return -ELOOP;
	if (!r && dir->any)
		r = put(j, ",");
	dir->any = true;
	j->d->entries++;
	progress_add(&j->d->p, 1);
	if (!r)
		r = new_line(j, depth + 1);
	if (!r)
		r = put_text(j, p + EDGE_HEAD, item.len - EDGE_HEAD);
	if (!r)
		r = put(j, ": ");
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
	json_t *setting = json_loads(j->d->setting, 0, NULL);
	cfs_auto_free char *text = setting ? json_dumps(setting, JSON_INDENT(2)) : NULL;
	const char *line = text;
	int r = text ? put(j, "{\n  \"Setting\": ") : -EINVAL;

	json_decref(setting);
	while (!r && *line) {
		size_t len = strcspn(line, "\n");

		r = stream_write(j->out, line, len);
		line += len;
		if (!r && *line) {
			r = put(j, "\n  ");
			line++;
		}
	}
	return r;
}

static int put_counters(struct json *j)
{
	size_t i;
	int r = put(j, ",\n  \"Counters\": {");

	for (i = 0; i < COUNTER_COUNT && !r; i++)
		r = stream_printf(j->out, "%s\n    \"%s\": %" PRId64, i ? "," : "",
				  dump_counter_json_names[i], j->counters[i]);
	return r ? r : put(j, "\n  }");
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
	return r ? r : put(j, *j->comma ? "\n  ]" : "]");
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
	return r || !*j->comma ? r : put(j, "\n  }");
}

int dump_json(struct dump *d)
{
	struct json j = {.d = d, .out = d->out};
	size_t i;
	int r = read_tables(&j);

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
	if (!r)
		r = put_tree(&j, "Trash", CFS_TRASH_INO);
	if (!r)
		r = put(&j, "\n}\n");
	for (i = 0; i < HEAPS; i++)
		heap_destroy(j.heaps[i]);
	for (i = 0; i < j.n_rules; i++)
		free(j.rules[i].packed);
	free(j.rules);
	free(j.stack);
	free(j.buf);
	return r;
}

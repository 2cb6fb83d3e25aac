/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one inode of the JSON dump. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/utf8.h"
#include "cmd/dump/dump-json.h"

/* ---- text ---- */

void json_put(struct json *j, const char *text)
{
	stream_write(j->out, text, strlen(text));
}

void json_new_line(struct json *j, size_t depth)
{
	static const char blanks[] =
		"                                                              ";
	size_t n;

	json_put(j, "\n");
	for (n = 2 * depth; n; n -= CFS_MIN(n, sizeof(blanks) - 1))
		stream_write(j->out, blanks, CFS_MIN(n, sizeof(blanks) - 1));
}

/*
 * JuiceFS 1.4.1 reads a dump in pieces and replaces a character of several bytes that lies across
 * two of them. All bytes beyond ASCII are escaped, which it reads as well.
 */
void json_put_text(struct json *j, const uint8_t *p, size_t len)
{
	char out[512];
	size_t n = 0, i;

	out[n++] = '"';
	for (i = 0; i < len; i++) {
		if (p[i] <= ' ' || p[i] > '~' || strchr("%\"\\", p[i])) {
			snprintf(out + n, 4, "%%%02X", p[i]);
			n += 3;
		} else {
			out[n++] = (char)p[i];
		}
		if (n > sizeof(out) - 8) {
			stream_write(j->out, out, n);
			n = 0;
		}
	}
	out[n++] = '"';
	stream_write(j->out, out, n);
}

static uint32_t code_point(const uint8_t *p, size_t len)
{
	uint32_t c = len == 1 ? p[0] : p[0] & (0xffu >> (len + 1));

	while (--len)
		c = c << 6 | (*++p & 0x3f);
	return c;
}

/* A string of JSON without %XX, which JuiceFS keeps in names of extended attributes. In UTF-8. */
static void put_string(struct json *j, const uint8_t *p, size_t len)
{
	uint32_t c;
	size_t n;

	json_put(j, "\"");
	for (; len; p += n, len -= n) {
		n = cfs_utf8_len(p, len);
		c = code_point(p, n);
		if (c >= ' ' && c <= '~' && c != '"' && c != '\\')
			stream_write(j->out, p, 1);
		else if (c < 0x10000)
			stream_printf(j->out, "\\u%04x", c);
		else
			stream_printf(j->out, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10),
				      0xdc00 | (c & 0x3ff));
	}
	json_put(j, "\"");
}

/* ---- the parts of an entry ---- */

bool json_record(struct json *j, int heap, cfs_ino_t ino, int64_t at, const uint8_t **ret,
		 size_t *ret_len)
{
	int r = at < 0 ? (int)at : heap_get(j->heaps[heap], (uint64_t)at, ino, ret, ret_len);

	if (r < 0)
		j->err = r;
	return r > 0;
}

static void put_attr(struct json *j, cfs_ino_t ino, const struct cfs_attr *a)
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

	stream_printf(j->out, "\"attr\": {\"inode\":%" PRIu64, ino);
	if (a->flags)
		stream_printf(j->out, ",\"flags\":%u", a->flags);
	stream_printf(j->out,
		      ",\"type\":\"%s\",\"mode\":%u,\"uid\":%u,\"gid\":%u,"
		      "\"atime\":%lld,\"mtime\":%lld,\"ctime\":%lld",
		      dump_type_names[a->type <= CFS_TYPE_SOCKET ? a->type : 0], a->mode, a->uid,
		      a->gid, (long long)a->atime.tv_sec, (long long)a->mtime.tv_sec,
		      (long long)a->ctime.tv_sec);
	for (i = 0; i < CFS_ARRAY_SIZE(rest); i++)
		if (rest[i].v)
			stream_printf(j->out, ",\"%s\":%" PRIu64, rest[i].name, rest[i].v);
	stream_printf(j->out, ",\"nlink\":%u,\"length\":%" PRIu64, a->nlink,
		      a->type == CFS_TYPE_FILE ? a->length : 0);
	if (a->rdev)
		stream_printf(j->out, ",\"rdev\":%u", a->rdev);
	if (a->tier)
		stream_printf(j->out, ",\"tier\":%u", a->tier);
	json_put(j, "}");
}

static void put_symlink(struct json *j, cfs_ino_t ino, size_t depth)
{
	const uint8_t *p;
	size_t len;

	if (!json_record(j, SYMLINKS, ino, heap_find(j->heaps[SYMLINKS], ino), &p, &len))
		return;
	json_put(j, ",");
	json_new_line(j, depth);
	json_put(j, "\"symlink\": ");
	json_put_text(j, p, len);
}

/* Calls fn with every record of the inode, between begin and end. An empty list writes neither. */
static void put_list(struct json *j, int heap, cfs_ino_t ino, size_t depth, const char *begin,
		     void (*fn)(struct json *j, const uint8_t *p, size_t len))
{
	int64_t at = heap_find(j->heaps[heap], ino);
	bool any = false;
	const uint8_t *p;
	size_t len;

	for (; json_record(j, heap, ino, at, &p, &len); at++, any = true) {
		json_put(j, ",");
		json_new_line(j, depth + any);
		json_put(j, any ? "" : begin);
		fn(j, p, len);
	}
	if (any)
		json_put(j, "]");
}

static void put_xattr(struct json *j, const uint8_t *p, size_t len)
{
	size_t name_len = cfs_get_be16(p);

	json_put(j, "{\"name\":");
	put_string(j, p + 2, name_len);
	json_put(j, ",\"value\":");
	json_put_text(j, p + 2 + name_len, len - 2 - name_len);
	json_put(j, "}");
}

static void put_chunk(struct json *j, const uint8_t *p, size_t len)
{
	const uint8_t *end = p + len;
	struct cfs_slice s;

	stream_printf(j->out, "{\"index\":%u,\"slices\":[", cfs_get_be32(p));
	for (p += CHUNK_HEAD; p < end; p += CFS_SLICE_BYTES) {
		cfs_slice_decode(p, &s);
		stream_printf(j->out, "{\"id\":%" PRIu64, s.id);
		if (s.pos)
			stream_printf(j->out, ",\"pos\":%u", s.pos);
		stream_printf(j->out, ",\"size\":%u", s.size);
		if (s.off)
			stream_printf(j->out, ",\"off\":%u", s.off);
		stream_printf(j->out, ",\"len\":%u}%s", s.len,
			      p + CFS_SLICE_BYTES < end ? "," : "");
	}
	json_put(j, "]}");
}

static void put_named(struct json *j, const char *name, const uint8_t **p, const uint8_t *end)
{
	uint32_t i, n = end - *p < 4 ? UINT32_MAX : cfs_get_be32(*p);

	if (n == UINT32_MAX || n > (size_t)(end - *p - 4) / 6) {
		j->err = -EBADMSG;
		return;
	}
	*p += 4;
	stream_printf(j->out, ",\"%s\":%s", name, n ? "[" : "null");
	for (i = 0; i < n; i++, *p += 6)
		stream_printf(j->out, "%s{\"id\":%u,\"perm\":%u}", i ? "," : "", cfs_get_be32(*p),
			      cfs_get_be16(*p + 4));
	json_put(j, n ? "]" : "");
}

static void put_acl(struct json *j, const char *name, uint32_t id, size_t depth)
{
	const struct rule *rule = id ? rulelist_find(&j->rules, id) : NULL;
	const uint8_t *p;

	if (!rule || rule->len < 8)
		return;
	p = rule->packed;
	json_put(j, ",");
	json_new_line(j, depth);
	stream_printf(j->out, "\"%s\": {\"owner\":%u,\"group\":%u,\"other\":%u,\"mask\":%u", name,
		      cfs_get_be16(p), cfs_get_be16(p + 2), cfs_get_be16(p + 6),
		      cfs_get_be16(p + 4));
	p += 8;
	put_named(j, "users", &p, rule->packed + rule->len);
	put_named(j, "groups", &p, rule->packed + rule->len);
	json_put(j, "}");
}

void json_put_parts(struct json *j, cfs_ino_t ino, const struct cfs_attr *a, size_t depth)
{
	put_attr(j, ino, a);
	if (a->type == CFS_TYPE_SYMLINK)
		put_symlink(j, ino, depth);
	put_list(j, XATTRS, ino, depth, "\"xattrs\": [", put_xattr);
	put_acl(j, "posix_acl_access", a->access_acl, depth);
	put_acl(j, "posix_acl_default", a->default_acl, depth);
	/* JuiceFS leaves out the chunks of an empty file. */
	if (a->type == CFS_TYPE_FILE && a->length)
		put_list(j, CHUNKS, ino, depth, "\"chunks\": [", put_chunk);
}

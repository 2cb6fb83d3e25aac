/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one inode of the JSON dump. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/utf8.h"
#include "cmd/dump/dump-json.h"

/* ---- text ---- */

int json_put(struct json *j, const char *text)
{
	return stream_write(j->out, text, strlen(text));
}

int json_new_line(struct json *j, size_t depth)
{
	static const char blanks[] =
		"                                                              ";
	size_t n = 2 * depth;
	int r = json_put(j, "\n");

	for (; n && !r; n -= CFS_MIN(n, sizeof(blanks) - 1))
		r = stream_write(j->out, blanks, CFS_MIN(n, sizeof(blanks) - 1));
	return r;
}

int json_put_text(struct json *j, const uint8_t *p, size_t len)
{
	char out[512];
	size_t n = 0, i, k;
	int r = 0;

	out[n++] = '"';
	for (i = 0; i < len && !r; i += k) {
		size_t size = cfs_utf8_len(p + i, len - i);

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

/* ---- the parts of an entry ---- */

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
	return r ? r : json_put(j, "}");
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
		r = json_put(j, ",");
	if (!r)
		r = json_new_line(j, depth);
	if (!r)
		r = json_put(j, "\"symlink\": ");
	return r ? r : json_put_text(j, p, item.len);
}

/* Calls fn with every record of the inode, between begin and end. An empty list writes neither. */
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
			r = json_put(j, ",");
		if (!r && !any)
			r = json_new_line(j, depth);
		if (!r && !any)
			r = json_put(j, begin);
		if (!r && any)
			r = json_new_line(j, depth + 1);
		any = true;
		if (!r)
			r = fn(j, p, item.len, depth);
	}
	if (r < 0)
		return r;
	return any ? json_put(j, "]") : 0;
}

static int put_xattr(struct json *j, const uint8_t *p, size_t len, size_t depth)
{
	size_t name_len = cfs_get_be16(p);
	int r = json_put(j, "{\"name\":");

	if (!r)
		r = json_put_text(j, p + 2, name_len);
	if (!r)
		r = json_put(j, ",\"value\":");
	if (!r)
		r = json_put_text(j, p + 2 + name_len, len - 2 - name_len);
	return r ? r : json_put(j, "}");
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
	return r ? r : json_put(j, "]}");
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
	return r ? r : json_put(j, "]");
}

static int put_acl(struct json *j, const char *name, uint32_t id, size_t depth)
{
	const struct rule *rule = id ? rulelist_find(&j->rules, id) : NULL;
	const uint8_t *p, *end;
	int r;

	if (!rule || rule->len < 8)
		return 0;
	p = rule->packed;
	end = p + rule->len;
	r = json_put(j, ",");
	if (!r)
		r = json_new_line(j, depth);
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
	return r ? r : json_put(j, "}");
}

int json_put_parts(struct json *j, cfs_ino_t ino, const struct cfs_attr *a, size_t depth)
{
	int r = put_attr(j, ino, a);

	if (!r && a->type == CFS_TYPE_SYMLINK)
		r = put_symlink(j, ino, depth);
	if (!r)
		r = put_list(j, XATTRS, ino, depth, "\"xattrs\": [", put_xattr);
	if (!r)
		r = put_acl(j, "posix_acl_access", a->access_acl, depth);
	if (!r)
		r = put_acl(j, "posix_acl_default", a->default_acl, depth);
	/* JuiceFS leaves out the chunks of an empty file. */
	if (!r && a->type == CFS_TYPE_FILE && a->length)
		r = put_list(j, CHUNKS, ino, depth, "\"chunks\": [", put_chunk);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the members of an entry of the tree, except the entries below it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/dump/load-json.h"

static int read_type(struct json *j, uint8_t *ret)
{
	const char *text;
	size_t len;
	uint8_t i;
	int r = pull_text(j->p, false, &text, &len);

	for (i = CFS_TYPE_FILE; i <= CFS_TYPE_SOCKET && !r; i++)
		if (!strcmp(dump_type_names[i], text)) {
			*ret = i;
			return 0;
		}
	return r ? r : pull_fail(j->p, "unknown type %.20s", text);
}

static int read_attr(struct json *j, struct json_entry *e)
{
	static const char *const names[] = {
		"inode",     "flags",	  "mode",      "uid",	"gid",	  "atime", "mtime", "ctime",
		"atimensec", "mtimensec", "ctimensec", "nlink", "length", "rdev",  "tier",
	};
	struct cfs_attr *a = &e->attr;
	int64_t v[CFS_ARRAY_SIZE(names)] = {0};
	bool first = true;
	uint8_t type = 0;
	const char *key;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		r = !strcmp(key, "type") ? read_type(j, &type)
					 : pull_number(j->p, key, names, CFS_ARRAY_SIZE(names), v);
		if (r)
			return r;
	}
	if (r < 0)
		return r;
	e->ino = (cfs_ino_t)v[0];
	*a = (struct cfs_attr){
		.flags = (uint8_t)v[1],
		.mode = (uint16_t)v[2] & 07777,
		.uid = (uint32_t)v[3],
		.gid = (uint32_t)v[4],
		.atime = {(time_t)v[5], (long)v[8]},
		.mtime = {(time_t)v[6], (long)v[9]},
		.ctime = {(time_t)v[7], (long)v[10]},
		.nlink = (uint32_t)v[11],
		.length = (uint64_t)v[12],
		.rdev = (uint32_t)v[13],
		.tier = (uint8_t)v[14],
		.type = type,
	};
	if (!e->ino || !a->type)
		return pull_fail(j->p, "an entry without inode or type");
	e->has_attr = true;
	if (a->type == CFS_TYPE_DIR)
		a->length = CFS_DIR_LENGTH;
	return a->type != CFS_TYPE_DIR && a->nlink > 1 ? linked_note(j, e) : 0;
}

static int read_symlink(struct json *j, struct json_entry *e)
{
	struct cfs_row row = {.ino = e->ino};
	int r = pull_text(j->p, true, &row.symlink.target, &row.symlink.len);

	if (r || e->known)
		return r;
	if (e->attr.type != CFS_TYPE_SYMLINK)
		return pull_fail(j->p, "a target, but the entry is not a symbolic link");
	e->attr.length = row.symlink.len;
	return load_row(j->l, CFS_TABLE_SYMLINK, &row);
}

static int read_xattr(struct json *j, struct json_entry *e)
{
	char name[256] = "";
	struct cfs_row row = {.ino = e->ino, .xattr.name = name};
	bool first = true, has_value = false;
	const char *key, *text;
	size_t len;
	int r;

	while ((r = pull_key(j->p, &first, &key)) > 0) {
		bool is_name = !strcmp(key, "name"), is_value = !strcmp(key, "value");

		r = is_name || is_value ? pull_text(j->p, is_value, &text, &len)
					: pull_value(j->p, NULL);
		if (!r && is_name && len < sizeof(name)) {
			memcpy(name, text, len);
			row.xattr.name_len = len;
		} else if (!r && is_value && row.xattr.name_len) {
			/* Used at once: the text is valid until the next one is read. */
			row.xattr.value = text;
			row.xattr.value_len = len;
			r = e->known ? 0 : load_row(j->l, CFS_TABLE_XATTR, &row);
			has_value = true;
		}
		if (r)
			return r;
	}
	if (r || has_value)
		return r;
	return pull_fail(j->p, "an extended attribute without a name and then a value");
}

static int read_slice(struct json *j, struct cfs_slice *ret)
{
	/* JuiceFS before 1.0 called the id chunkid. */
	static const char *const names[] = {"id", "chunkid", "pos", "size", "off", "len"};
	int64_t v[CFS_ARRAY_SIZE(names)];
	int r = pull_numbers(j->p, names, CFS_ARRAY_SIZE(names), v);

	*ret = (struct cfs_slice){
		.id = (uint64_t)(v[0] ? v[0] : v[1]),
		.pos = (uint32_t)v[2],
		.size = (uint32_t)v[3],
		.off = (uint32_t)v[4],
		.len = (uint32_t)v[5],
	};
	return r;
}

static int read_slices(struct json *j, size_t *ret_n)
{
	bool first = true;
	size_t n = 0;
	int r;

	while ((r = pull_item(j->p, &first)) > 0) {
		if (CFS_ARRAY_ROOM(j->slices, n, j->cap_slices) < 0)
			return -ENOMEM;
		r = read_slice(j, &j->slices[n++]);
		if (r)
			return r;
	}
	*ret_n = n;
	return r;
}

static int read_chunk(struct json *j, struct json_entry *e)
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

int entry_read_part(struct json *j, const char *key, struct json_entry *e)
{
	if (!strcmp(key, "attr"))
		return read_attr(j, e);
	if (!e->has_attr)
		return pull_fail(j->p, "%.20s before attr", key);
	if (!strcmp(key, "symlink"))
		return read_symlink(j, e);
	if (!strcmp(key, "xattrs"))
		return json_each_item(j, read_xattr, e);
	if (!strcmp(key, "posix_acl_access"))
		return acl_read(j, &e->attr.access_acl);
	if (!strcmp(key, "posix_acl_default"))
		return acl_read(j, &e->attr.default_acl);
	if (!strcmp(key, "chunks"))
		return json_each_item(j, read_chunk, e);
	return pull_value(j->p, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the binary dump, segment by segment. Fields that a later version added are ignored. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/dump/load.h"
#include "cmd/dump/protobuf.h"

enum { MAX_FIELD = 6 };

struct reader {
	struct load *l;
	uint8_t *segment;
	size_t cap;
	struct cfs_slice *slices;
	size_t slices_cap;
};

/*
 * A message by its field numbers; the last field of each kind counts. One that is absent is empty.
 */
struct message {
	struct pb_field f[MAX_FIELD + 1];
};

static int parse(const struct pb_field *in, struct message *ret)
{
	const uint8_t *p = in->p, *end = in->p + in->len;
	struct pb_field f;
	size_t i;
	int r;

	*ret = (struct message){0};
	for (i = 0; i <= MAX_FIELD; i++)
		ret->f[i].p = (const uint8_t *)"";
	while ((r = pb_next(&p, end, &f)) > 0)
		if (f.field <= MAX_FIELD)
			ret->f[f.field] = f;
	return r;
}

static int bad(struct load *l, const char *what)
{
	snprintf(l->err, sizeof(l->err), "the dump is damaged: %s", what);
	return -EBADMSG;
}

/* ---- rows ---- */

static int node(struct reader *rd, const struct message *m)
{
	struct cfs_row row = {.ino = m->f[1].number};

	if (cfs_attr_decode(m->f[2].p, m->f[2].len, &row.attr))
		return bad(rd->l, "attributes");
	return load_row(rd->l, CFS_TABLE_NODE, &row);
}

static int edge(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.ino = m->f[2].number,
		.edge = {.parent = m->f[1].number,
			 .name = (const char *)m->f[3].p,
			 .name_len = m->f[3].len,
			 .type = (uint8_t)m->f[4].number},
	};

	if (!m->f[3].len || m->f[3].len > CFS_NAME_MAX)
		return bad(rd->l, "a name");
	return load_row(rd->l, CFS_TABLE_EDGE, &row);
}

static int chunk(struct reader *rd, const struct message *m)
{
	struct cfs_row row = {.ino = m->f[1].number, .list = {.indx = (uint32_t)m->f[2].number}};
	size_t i, n = m->f[3].len / CFS_SLICE_BYTES;

	if (m->f[3].len % CFS_SLICE_BYTES)
		return bad(rd->l, "a list of slices");
	if (CFS_ARRAY_RESERVE(rd->slices, n, rd->slices_cap) < 0)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		cfs_slice_decode(m->f[3].p + i * CFS_SLICE_BYTES, &rd->slices[i]);
	row.list.slices = rd->slices;
	row.list.n = n;
	rd->l->slices += n;
	return load_row(rd->l, CFS_TABLE_CHUNK, &row);
}

/*
 * References are counted from the chunks, because a dump lacks replaced slices that wait for the
 * end of their trash time. This table only adds the slices without references.
 */
static int ref(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.ref = {.id = m->f[1].number, .size = (uint32_t)m->f[2].number, .refs = 0},
	};

	return (int64_t)m->f[3].number > 0 ? 0 : load_row(rd->l, CFS_TABLE_REF, &row);
}

static int symlink_row(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.ino = m->f[1].number,
		.symlink = {.target = (const char *)m->f[2].p, .len = m->f[2].len},
	};

	return load_row(rd->l, CFS_TABLE_SYMLINK, &row);
}

static int sustained(struct reader *rd, const struct message *m)
{
	const uint8_t *p = m->f[2].p, *end = p + m->f[2].len;
	struct cfs_row row = {.sid = m->f[1].number};
	int r = 0;

	if (m->f[2].field && !m->f[2].is_bytes) {
		row.ino = m->f[2].number;
		return load_row(rd->l, CFS_TABLE_SUSTAINED, &row);
	}
	while (p < end && !r) {
		if (pb_get_varint(&p, end, &row.ino))
			return bad(rd->l, "a sustained inode");
		r = load_row(rd->l, CFS_TABLE_SUSTAINED, &row);
	}
	return r;
}

static int delfile(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.ino = m->f[1].number,
		.deleted = {.length = m->f[2].number, .when_s = (int64_t)m->f[3].number},
	};

	return load_row(rd->l, CFS_TABLE_DELFILE, &row);
}

static int xattr(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.ino = m->f[1].number,
		.xattr = {.name = (const char *)m->f[2].p,
			  .name_len = m->f[2].len,
			  .value = m->f[3].p,
			  .value_len = m->f[3].len},
	};

	return m->f[2].len ? load_row(rd->l, CFS_TABLE_XATTR, &row)
			   : bad(rd->l, "an extended attribute");
}

static int parent(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.ino = m->f[1].number,
		.parent = {.dir = m->f[2].number, .names = (uint32_t)m->f[3].number},
	};

	/* Counts that are not positive are ignored. */
	return (int64_t)m->f[3].number > 0 ? load_row(rd->l, CFS_TABLE_PARENT, &row) : 0;
}

static int acl(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.acl = {.id = (uint32_t)m->f[1].number, .rule = m->f[2].p, .len = m->f[2].len},
	};

	return load_row(rd->l, CFS_TABLE_ACL, &row);
}

static int dir_stat(struct reader *rd, const struct message *m)
{
	const struct cfs_row row = {
		.ino = m->f[1].number,
		.stat = {.length = (int64_t)m->f[2].number,
			 .space = (int64_t)m->f[3].number,
			 .inodes = (int64_t)m->f[4].number},
	};

	return load_row(rd->l, CFS_TABLE_DIR_STAT, &row);
}

static int counter(struct reader *rd, const struct message *m)
{
	enum dump_counter c = m->f[1].len ? dump_counter_find(dump_counter_names,
							      (const char *)m->f[1].p, m->f[1].len)
					  : COUNTER_COUNT;
	int64_t v = (int64_t)m->f[2].number;

	if (c < COUNTER_COUNT)
		rd->l->counters[c] = CFS_MAX(rd->l->counters[c], v);
	return 0;
}

static int quota(struct reader *rd, const struct message *m, enum cfs_quota_kind kind)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);
	const struct cfs_quota q = {
		.kind = kind,
		.key = m->f[1].number,
		.max_space = (int64_t)m->f[2].number,
		.max_inodes = (int64_t)m->f[3].number,
		.used_space = (int64_t)m->f[4].number,
		.used_inodes = (int64_t)m->f[5].number,
	};

	return kind == CFS_QUOTA_DIR ? cfs_meta_put_quota(rd->l->meta, &ctx, &q)
				     : load_owner_quota(rd->l, &q);
}

static int dir_quota(struct reader *rd, const struct message *m)
{
	return quota(rd, m, CFS_QUOTA_DIR);
}

static int user_quota(struct reader *rd, const struct message *m)
{
	return quota(rd, m, CFS_QUOTA_USER);
}

static int group_quota(struct reader *rd, const struct message *m)
{
	return quota(rd, m, CFS_QUOTA_GROUP);
}

typedef int (*row_fn)(struct reader *rd, const struct message *m);
static const row_fn rows[] = {
	[BATCH_NODES] = node,
	[BATCH_EDGES] = edge,
	[BATCH_CHUNKS] = chunk,
	[BATCH_REFS] = ref,
	[BATCH_XATTRS] = xattr,
	[BATCH_PARENTS] = parent,
	[BATCH_SYMLINKS] = symlink_row,
	[BATCH_SUSTAINED] = sustained,
	[BATCH_DELFILES] = delfile,
	[BATCH_STATS] = dir_stat,
	[BATCH_QUOTAS] = dir_quota,
	[BATCH_ACLS] = acl,
	[BATCH_COUNTERS] = counter,
	[BATCH_USER_QUOTAS] = user_quota,
	[BATCH_GROUP_QUOTAS] = group_quota,
};

/* ---- segments ---- */

static int load_batch(struct reader *rd, size_t len)
{
	const uint8_t *p = rd->segment, *end = p + len;
	struct pb_field f;
	struct message m;
	int r;

	while ((r = pb_next(&p, end, &f)) > 0) {
		if (f.field >= CFS_ARRAY_SIZE(rows) || !rows[f.field] || !f.is_bytes)
			continue;
		r = parse(&f, &m);
		if (!r)
			r = rows[f.field](rd, &m);
		if (r)
			break;
	}
	return r == -EBADMSG && !rd->l->err[0] ? bad(rd->l, "a row") : r;
}

static int load_format(struct reader *rd, size_t len)
{
	const uint8_t *p = rd->segment;
	struct pb_field f;
	char *text;

	if (rd->l->begun)
		return bad(rd->l, "a second setting");
	if (pb_next(&p, p + len, &f) <= 0 || f.field != 1 || !f.is_bytes)
		return bad(rd->l, "the setting");
	text = strndup((const char *)f.p, f.len);
	return text ? load_setting(rd->l, text) : -ENOMEM;
}

static int read_segment(struct reader *rd, uint64_t len)
{
	int r;

	if (len > PB_SEGMENT_MAX)
		return bad(rd->l, "the length of a segment");
	if (CFS_ARRAY_RESERVE(rd->segment, (size_t)len + 1, rd->cap) < 0)
		return -ENOMEM;
	r = len ? stream_read_full(rd->l->in, rd->segment, (size_t)len) : 1;
	return r > 0 ? 0 : bad(rd->l, "it ends too early");
}

/* Returns 1 for a segment, 0 when the footer follows. */
static int next_segment(struct reader *rd, uint32_t *ret_type, uint64_t *ret_len)
{
	uint8_t head[8];

	if (stream_read_full(rd->l->in, head, 4) <= 0)
		return bad(rd->l, "it ends too early");
	*ret_type = cfs_get_be32(head);
	if (*ret_type == PB_MAGIC)
		return 0;
	if (stream_read_full(rd->l->in, head, 8) <= 0)
		return bad(rd->l, "it ends too early");
	*ret_len = cfs_get_be64(head);
	return 1;
}

/* The footer serves readers that seek; its presence proves that the dump is complete. */
static int read_footer(struct reader *rd)
{
	uint8_t last[8] = {0}, byte;
	uint64_t len = 0;
	int r;

	while ((r = stream_read_full(rd->l->in, &byte, 1)) > 0) {
		memmove(last, last + 1, 7);
		last[7] = byte;
		len++;
	}
	if (r < 0 || len < 8 || cfs_get_be64(last) != len - 8)
		return bad(rd->l, "its footer is not whole");
	return 0;
}

int load_binary(struct load *l)
{
	struct reader rd = {.l = l};
	uint32_t type = 0;
	uint64_t len = 0;
	int r;

	while ((r = next_segment(&rd, &type, &len)) > 0) {
		r = read_segment(&rd, len);
		if (r)
			break;
		if (type == PB_FORMAT)
			r = load_format(&rd, (size_t)len);
		else if (!l->begun)
			r = bad(l, "it does not begin with the setting");
		else
			r = load_batch(&rd, (size_t)len);
		if (r)
			break;
	}
	if (!r)
		r = read_footer(&rd);
	if (!r && !l->begun)
		r = bad(l, "there is no setting in it");
	free(rd.segment);
	free(rd.slices);
	return r;
}

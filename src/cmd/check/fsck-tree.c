/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks names and inodes. Whole tables are read once and joined by sorting: first by inode, which
 * gives the size of each name; then by directory. The join only finds suspects, because a volume in
 * use changes while it is read. Each suspect is then judged by itself (cfs_meta_check_inode).
 *
 * Memory: sorter.h, 32 bytes per inode and name, 40 per name and directory, in turn.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "cmd/access/cmd.h"
#include "cmd/check/fsck.h"
#include "cmd/sets/sorter.h"

/* A repair may reveal more: removing an entry changes its directory. */
#define ROUNDS 4

enum row_kind { ROW_NODE, ROW_OPEN, ROW_DETACHED, ROW_DELETED, ROW_CHUNK, ROW_XATTR, ROW_NAME };

struct by_inode {
	cfs_ino_t ino, parent;
	uint64_t length;
	uint32_t nlink;
	uint8_t kind, type;
};

enum entry_kind { IS_DIR, HAS_STAT, HAS_ENTRY };

struct by_dir {
	cfs_ino_t dir;
	struct cfs_dir_stat st; /* HAS_ENTRY: of one entry */
	uint32_t nlink;
	uint8_t kind;
	bool subdir;
};

struct tree {
	struct fsck *f;
	struct sorter *inodes, *dirs, *suspects;
	enum row_kind mark; /* what the table that is read says of its inodes (add_mark) */
	cfs_ino_t last_marked;
};

static int compare_inodes(const void *a, const void *b)
{
	const struct by_inode *x = a, *y = b;

	return CFS_COMPARE(x->ino, y->ino) ?: CFS_COMPARE(x->kind, y->kind);
}

static int compare_dirs(const void *a, const void *b)
{
	const struct by_dir *x = a, *y = b;

	return CFS_COMPARE(x->dir, y->dir);
}

/* ---- reading ---- */

static int add_node(void *arg, const struct cfs_row *row)
{
	struct tree *t = arg;
	struct by_inode rec = {
		.ino = row->ino,
		.parent = row->attr.parent,
		.length = row->attr.length,
		.nlink = row->attr.nlink,
		.kind = ROW_NODE,
		.type = row->attr.type,
	};

	progress_add(&t->f->p, 1);
	return sorter_add(t->inodes, &rec);
}

static int add_name(void *arg, const struct cfs_row *row)
{
	struct tree *t = arg;
	struct by_inode rec = {
		.ino = row->ino,
		.parent = row->edge.parent,
		.kind = ROW_NAME,
		.type = row->edge.type,
	};

	progress_add(&t->f->p, 1);
	return sorter_add(t->inodes, &rec);
}

static int add_mark(void *arg, const struct cfs_row *row)
{
	struct tree *t = arg;
	struct by_inode rec = {.ino = row->ino, .kind = (uint8_t)t->mark};

	/* One chunk per file is enough to know that it has data; so it is with attributes. */
	if (row->ino == t->last_marked)
		return 0;
	t->last_marked = row->ino;
	return sorter_add(t->inodes, &rec);
}

static int add_stat(void *arg, const struct cfs_row *row)
{
	struct tree *t = arg;
	struct by_dir rec = {.dir = row->ino, .kind = HAS_STAT, .st = row->stat};

	return sorter_add(t->dirs, &rec);
}

static int read_tables(struct tree *t)
{
	static const struct {
		enum cfs_meta_table table;
		cfs_row_fn fn;
		enum row_kind mark;
	} steps[] = {
		{CFS_TABLE_NODE, add_node},
		{CFS_TABLE_EDGE, add_name},
		{CFS_TABLE_SUSTAINED, add_mark, ROW_OPEN},
		{CFS_TABLE_DETACHED, add_mark, ROW_DETACHED},
		{CFS_TABLE_DELFILE, add_mark, ROW_DELETED},
		{CFS_TABLE_CHUNK, add_mark, ROW_CHUNK},
		{CFS_TABLE_XATTR, add_mark, ROW_XATTR},
		{CFS_TABLE_DIR_STAT, add_stat},
	};
	size_t i;
	int r = 0;

	progress_begin(&t->f->p, "inodes and names read");
	for (i = 0; i < CFS_ARRAY_SIZE(steps) && r == 0; i++) {
		t->mark = steps[i].mark;
		t->last_marked = 0;
		r = cfs_meta_scan(t->f->a->meta, steps[i].table, steps[i].fn, t);
	}
	progress_end(&t->f->p);
	return r;
}

/* ---- by inode ---- */

struct inode {
	struct by_inode node; /* type 0: there is none */
	unsigned marks;	      /* 1 << enum row_kind */
	uint32_t names;
	cfs_ino_t parent; /* of the first name */
	bool differs;	  /* a name's type */
};

static bool is_suspect(const struct inode *i)
{
	bool dir = i->node.type == CFS_TYPE_DIR;
	cfs_ino_t ino = i->node.ino;

	if (!i->node.type)
		return i->names || i->marks & (1 << ROW_XATTR) ||
		       (i->marks & (1 << ROW_CHUNK) && !(i->marks & (1 << ROW_DELETED)));
	if (ino == CFS_ROOT_INO || ino == CFS_TRASH_INO)
		return i->node.parent != CFS_ROOT_INO;
	if (!i->names)
		return !(i->marks & (1 << ROW_OPEN | 1 << ROW_DETACHED));
	if (i->differs || (dir ? i->names > 1 : i->names != i->node.nlink))
		return true;
	if (i->names > 1)
		return i->node.parent != 0;
	return i->node.parent != i->parent && (dir || i->node.parent != 0);
}

/* The inode's usage counts for the directory that names it. */
static int add_entry(struct tree *t, const struct inode *i, const struct by_inode *name)
{
	bool file = i->node.type == CFS_TYPE_FILE;
	struct by_dir rec = {
		.dir = name->parent,
		.kind = HAS_ENTRY,
		.subdir = name->type == CFS_TYPE_DIR,
	};

	if (i->node.type)
		rec.st = (struct cfs_dir_stat){
			.length = file ? (int64_t)i->node.length : 0,
			.space = cfs_space_of(file ? i->node.length : 0),
			.inodes = 1,
		};
	return sorter_add(t->dirs, &rec);
}

static int end_inode(struct tree *t, const struct inode *i)
{
	struct by_dir rec = {.dir = i->node.ino, .kind = IS_DIR, .nlink = i->node.nlink};
	int r = 0;

	if (!i->node.ino)
		return 0;
	t->f->inodes += i->node.type != 0;
	if (i->node.type == CFS_TYPE_DIR)
		r = sorter_add(t->dirs, &rec);
	return r == 0 && is_suspect(i) ? sorter_add(t->suspects, &i->node.ino) : r;
}

static int join_inodes(struct tree *t)
{
	struct inode i = {0};
	struct by_inode rec;
	int r = sorter_sort(t->inodes);

	while (r >= 0 && (r = sorter_next(t->inodes, &rec)) > 0) {
		if (rec.ino != i.node.ino) {
			r = end_inode(t, &i);
			i = (struct inode){.node.ino = rec.ino};
		}
		i.marks |= 1u << rec.kind;
		if (rec.kind == ROW_NODE) {
			i.node = rec;
		} else if (rec.kind == ROW_NAME && r >= 0) {
			if (i.names++ == 0)
				i.parent = rec.parent;
			i.differs |= i.node.type && rec.type != i.node.type;
			t->f->names++;
			r = add_entry(t, &i, &rec);
		}
	}
	return r < 0 ? r : end_inode(t, &i);
}

/* ---- by directory ---- */

struct dir {
	cfs_ino_t ino;
	bool exists, has_stat;
	uint32_t nlink, subdirs;
	struct cfs_dir_stat stat, sum;
	uint64_t entries;
};

static int end_dir(struct tree *t, const struct dir *d)
{
	bool bad = false;

	if (!d->ino)
		return 0;
	if (!d->exists)
		bad = d->entries;
	else if (!cfs_ino_is_trash(d->ino))
		bad = d->nlink != 2 + d->subdirs;
	if (d->exists && d->has_stat && t->f->a->setting->dir_stats)
		bad |= d->stat.space != d->sum.space || d->stat.inodes != d->sum.inodes ||
		       (t->f->sync_dir_stat && d->stat.length != d->sum.length);
	return bad ? sorter_add(t->suspects, &d->ino) : 0;
}

static void add_to_dir(struct dir *d, const struct by_dir *rec)
{
	switch (rec->kind) {
	case IS_DIR:
		d->exists = true;
		d->nlink = rec->nlink;
		break;
	case HAS_STAT:
		d->has_stat = true;
		d->stat = rec->st;
		break;
	case HAS_ENTRY:
		d->entries++;
		d->subdirs += rec->subdir;
		/* Wraps when a directory has many names of huge files: it has no statistics then. */
		d->sum.length = (int64_t)((uint64_t)d->sum.length + (uint64_t)rec->st.length);
		d->sum.space = (int64_t)((uint64_t)d->sum.space + (uint64_t)rec->st.space);
		d->sum.inodes += rec->st.inodes;
		break;
	}
}

static int join_dirs(struct tree *t)
{
	struct dir d = {0};
	struct by_dir rec;
	int r = sorter_sort(t->dirs);

	while (r >= 0 && (r = sorter_next(t->dirs, &rec)) > 0) {
		if (rec.dir != d.ino) {
			r = end_dir(t, &d);
			d = (struct dir){.ino = rec.dir};
		}
		add_to_dir(&d, &rec);
	}
	return r < 0 ? r : end_dir(t, &d);
}

/* ---- judging ---- */

static int report_damage(struct fsck *f, cfs_ino_t ino, const struct cfs_check *c)
{
	unsigned bit, fixed;
	int r = 0;

	for (bit = 1; bit <= CFS_DAMAGE_XATTR && r == 0; bit <<= 1) {
		fixed = c->repaired & bit;
		switch (c->damage & bit) {
		case CFS_DAMAGE_NLINK:
			r = fsck_report(f, "nlink", ino, fixed, "has %u links, should have %u",
					c->attr.nlink, c->nlink);
			break;
		case CFS_DAMAGE_PARENT:
			r = fsck_report(f, "parent", ino, fixed,
					"says it is in %" PRIu64 ", should say %" PRIu64,
					c->attr.parent, c->parent);
			break;
		case CFS_DAMAGE_TYPE:
			r = fsck_report(f, "type", ino, fixed, "an entry has another type");
			break;
		case CFS_DAMAGE_NAME:
			r = fsck_report(f, "name", ino, fixed,
					"%u names, but inode %" PRIu64 " does not exist", c->names,
					ino);
			break;
		case CFS_DAMAGE_ORPHAN:
			r = fsck_report(f, "orphan", ino, fixed,
					"no name, nlink %u, %" PRIu64 " bytes", c->attr.nlink,
					c->attr.length);
			break;
		case CFS_DAMAGE_LOST:
			r = fsck_report(f, "lost", ino, fixed,
					"has entries, but neither name nor inode");
			break;
		case CFS_DAMAGE_DATA:
			r = fsck_report(f, "data", ino, fixed,
					"data of an inode that does not exist");
			break;
		case CFS_DAMAGE_XATTR:
			r = fsck_report(f, "xattr", ino, fixed,
					"extended attributes of an inode that does not exist");
			break;
		}
	}
	return r;
}

int fsck_inode(struct fsck *f, cfs_ino_t ino)
{
	const int tries = 3;
	const unsigned stats = CFS_DAMAGE_STAT | (f->sync_dir_stat ? CFS_DAMAGE_LENGTH : 0);
	const unsigned usage = CFS_DAMAGE_STAT | CFS_DAMAGE_LENGTH | CFS_CHECK_NO_STAT;
	struct cfs_check c = {0};
	bool suspect = false;
	int i, r = f->repair ? admin_may_repair(f->a) : 0;

	/*
	 * A check outside a transaction may be disturbed by a change; damage is still there next
	 * time.
	 */
	for (i = 0; i < tries && r == 0; i++) {
		struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

		r = cfs_meta_check_inode(f->a->meta, &ctx, ino, f->repair ? ~usage : 0, &c);
		suspect = c.damage & stats;
		c.damage &= f->again ? c.repaired : ~usage;
		if (f->repair || !c.damage)
			break;
	}
	if (r == 0 && suspect)
		r = inostack_push(&f->stats, ino);
	return r < 0 ? r : report_damage(f, ino, &c);
}

static int judge(struct tree *t)
{
	cfs_ino_t ino, last = 0;
	int r = sorter_sort(t->suspects);

	while (r >= 0 && (r = sorter_next(t->suspects, &ino)) > 0) {
		if (ino != last)
			r = fsck_inode(t->f, ino);
		last = ino;
	}
	return r;
}

static int run_round(struct fsck *f)
{
	struct tree t = {.f = f};
	int r = sorter_create(sizeof(struct by_inode), compare_inodes, 0, &t.inodes);

	f->inodes = f->names = 0;
	if (r == 0)
		r = sorter_create(sizeof(struct by_dir), compare_dirs, 0, &t.dirs);
	if (r == 0)
		r = sorter_create(sizeof(cfs_ino_t), sorter_compare_u64, 0, &t.suspects);
	if (r == 0)
		r = read_tables(&t);
	if (r == 0)
		r = join_inodes(&t);
	sorter_destroy(t.inodes);
	if (r == 0)
		r = join_dirs(&t);
	sorter_destroy(t.dirs);
	if (r == 0)
		r = judge(&t);
	sorter_destroy(t.suspects);
	return r;
}

int fsck_tree(struct fsck *f)
{
	uint64_t repaired;
	int i, r = 0;

	for (i = 0; i < ROUNDS && r == 0; i++) {
		repaired = f->repaired;
		f->again = i > 0;
		r = run_round(f);
		if (f->repaired == repaired)
			break;
	}
	f->again = false;
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The damage that fsck finds, by the same rules on every engine. */
#include "meta/engine/rules.h"

bool cfs_check_note(struct cfs_check *c, unsigned repair, enum cfs_damage damage)
{
	c->damage |= damage;
	c->repaired |= repair & damage;
	return repair & damage;
}

void cfs_check_names(struct cfs_check *c, unsigned repair, cfs_ino_t ino, uint32_t subdirs,
		     cfs_ino_t parent, bool types_differ)
{
	const struct cfs_attr *attr = &c->attr;
	bool is_dir = attr->type == CFS_TYPE_DIR;

	c->nlink = is_dir ? 2 + subdirs : c->names;
	c->parent = is_dir || c->names == 1 ? parent : 0;
	if (ino == CFS_ROOT_INO)
		c->parent = CFS_ROOT_INO;
	/* In the trash, link counts do not depend on entries. */
	if (c->nlink != attr->nlink && !cfs_ino_is_trash(ino))
		cfs_check_note(c, repair, CFS_DAMAGE_NLINK);
	if (c->parent != attr->parent && ino != CFS_TRASH_INO && (is_dir || attr->parent != 0))
		cfs_check_note(c, repair, CFS_DAMAGE_PARENT);
	if (types_differ)
		cfs_check_note(c, repair, CFS_DAMAGE_TYPE);
}

struct cfs_attr cfs_check_repaired(const struct cfs_check *c)
{
	struct cfs_attr attr = c->attr;

	if (c->repaired & CFS_DAMAGE_NLINK)
		attr.nlink = c->nlink;
	if (c->repaired & CFS_DAMAGE_PARENT)
		attr.parent = c->parent;
	return attr;
}

bool cfs_check_stat(struct cfs_check *c, unsigned repair)
{
	const struct cfs_dir_stat *have = &c->stat, *want = &c->want;

	if (have->space != want->space || have->inodes != want->inodes)
		return cfs_check_note(c, repair, CFS_DAMAGE_STAT);
	return have->length != want->length && cfs_check_note(c, repair, CFS_DAMAGE_LENGTH);
}

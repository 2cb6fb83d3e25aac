/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers inodes with several names: by inode, and by inode and directory. */
#include <errno.h>
#include <stdlib.h>

#include "cmd/dump/load-json.h"

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

int linked_note(struct json *j, struct json_entry *e)
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

int linked_note_name(struct json *j, cfs_ino_t ino, cfs_ino_t dir)
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

void linked_set_attr(struct json *j, cfs_ino_t ino, const struct cfs_attr *attr)
{
	slot(j->linked, j->cap_linked, ino)->attr = *attr;
}

int linked_write(struct json *j)
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/inoset.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/sets/dirwalk.h"

int inoset_add(struct inoset *s, cfs_ino_t ino, uint32_t names)
{
	return CFS_ARRAY_ADD(s->v, s->n, s->cap,
			     (struct inoset_item){.ino = ino, .names = names, .added = 1});
}

static int compare(const void *a, const void *b)
{
	const struct inoset_item *x = a, *y = b;

	return CFS_COMPARE(x->ino, y->ino);
}

void inoset_sort(struct inoset *s)
{
	size_t i, n = 0;

	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), compare);
	for (i = 0; i < s->n; i++) {
		if (n && s->v[n - 1].ino == s->v[i].ino)
			s->v[n - 1].added += s->v[i].added;
		else
			s->v[n++] = s->v[i];
	}
	s->n = n;
}

bool inoset_has(const struct inoset *s, cfs_ino_t ino)
{
	struct inoset_item key = {.ino = ino}, *found;

	found = s->n ? bsearch(&key, s->v, s->n, sizeof(*s->v), compare) : NULL;
	return found && found->added >= found->names;
}

void inoset_free(struct inoset *s)
{
	free(s->v);
	*s = (struct inoset){0};
}

int inoset_add_trash(struct inoset *s, struct admin *a)
{
	struct dirwalk w =
		dirwalk_begin(a->meta, ADMIN_STEP_MS, CFS_TRASH_INO, DIRWALK_ATTRS | DIRWALK_BELOW);
	const struct cfs_dirent *e;
	int r = 0;

	while (r >= 0 && (r = dirwalk_next(&w, &e)) > 0) {
		if (e->type != CFS_TYPE_DIR)
			r = inoset_add(s, e->entry.ino, e->entry.attr.nlink);
	}
	dirwalk_end(&w);
	return r;
}

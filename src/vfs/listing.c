/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "walk.h"

struct file {
	cfs_ino_t ino;
	uint32_t name_off;
	uint8_t name_len;
	uint32_t place[ORDERS];
};

struct listing {
	struct file *files; /* by inode number, once sorted */
	uint32_t n;
	size_t cap;
	uint32_t *order[ORDERS]; /* places -> index in files */
	char *names;
	uint32_t names_len;
	size_t names_cap;
};

struct listing *listing_new(void)
{
	return calloc(1, sizeof(struct listing));
}

void listing_free(struct listing *l)
{
	unsigned i;

	if (!l)
		return;
	for (i = 0; i < ORDERS; i++)
		free(l->order[i]);
	free(l->names);
	free(l->files);
	free(l);
}

bool listing_add(struct listing *l, const char *name, size_t len, cfs_ino_t ino)
{
	size_t names_len = l->names_len + len;
	struct file *f;

	if (l->n == LISTING_FILES_MAX || names_len > LISTING_NAMES_MAX ||
	    CFS_ARRAY_ROOM(l->files, l->n, l->cap) < 0)
		return false;
	if (names_len > l->names_cap &&
	    CFS_ARRAY_RESERVE(l->names, CFS_MAX(names_len, 2 * l->names_cap), l->names_cap) < 0)
		return false;
	f = &l->files[l->n];
	*f = (struct file){.ino = ino, .name_off = l->names_len, .name_len = (uint8_t)len};
	f->place[ORDER_LISTED] = l->n++;
	memcpy(l->names + l->names_len, name, len);
	l->names_len = (uint32_t)names_len;
	return true;
}

static int by_ino(const void *a, const void *b)
{
	const struct file *x = a, *y = b;

	return CFS_COMPARE(x->ino, y->ino);
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct listing *l = arg;
	const struct file *x = &l->files[*(const uint32_t *)a],
			  *y = &l->files[*(const uint32_t *)b];
	int r = memcmp(l->names + x->name_off, l->names + y->name_off,
		       CFS_MIN(x->name_len, y->name_len));

	return r ? r : (int)x->name_len - (int)y->name_len;
}

bool listing_sort(struct listing *l)
{
	unsigned o;
	uint32_t i;

	if (!l->n)
		return true;
	for (o = 0; o < ORDERS; o++) {
		l->order[o] = calloc(l->n, sizeof(*l->order[o]));
		if (!l->order[o])
			return false;
	}
	qsort(l->files, l->n, sizeof(*l->files), by_ino);
	for (i = 0; i < l->n; i++) {
		l->order[ORDER_LISTED][l->files[i].place[ORDER_LISTED]] = i;
		l->order[ORDER_NAME][i] = l->order[ORDER_INO][i] = i;
		l->files[i].place[ORDER_INO] = i;
	}
	qsort_r(l->order[ORDER_NAME], l->n, sizeof(uint32_t), by_name, l);
	for (i = 0; i < l->n; i++)
		l->files[l->order[ORDER_NAME][i]].place[ORDER_NAME] = i;
	return true;
}

uint32_t listing_size(const struct listing *l)
{
	return l->n;
}

bool listing_find(const struct listing *l, cfs_ino_t ino, uint32_t ret[ORDERS])
{
	const struct file key = {.ino = ino};
	const struct file *f = l->n ? bsearch(&key, l->files, l->n, sizeof(key), by_ino) : NULL;

	if (f)
		memcpy(ret, f->place, sizeof(f->place));
	return f;
}

struct listed listing_get(const struct listing *l, enum order order, uint32_t place)
{
	const struct file *f = &l->files[l->order[order][place]];

	return (struct listed){.ino = f->ino, .name = l->names + f->name_off, .len = f->name_len};
}

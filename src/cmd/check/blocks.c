/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/check/blocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

struct listing {
	const struct admin *a;
	struct progress *p;
	struct sorter *out;
	struct blocks_listed n;
};

void blocks_key(const struct admin *a, uint64_t slice, uint32_t indx, uint32_t len,
		char key[CFS_BLOCK_KEY_MAX])
{
	struct cfs_block b = {.slice = slice, .index = indx, .len = len};

	cfs_store_block_key(a->store, &b, key);
}

/* An object is a block only if its key is exactly the one that cachefs gives that block. */
static bool parse(const struct admin *a, const char *key, struct block_object *ret)
{
	const char *base = strrchr(key, '/');
	char again[CFS_BLOCK_KEY_MAX];

	if (!base || sscanf(base + 1, "%" SCNu64 "_%" SCNu32 "_%" SCNu32, &ret->id, &ret->indx,
			    &ret->len) != 3)
		return false;
	blocks_key(a, ret->id, ret->indx, ret->len, again);
	return !strcmp(again, key);
}

static int add_object(void *arg, const struct cfs_object_info *info)
{
	struct listing *l = arg;
	struct block_object b = {.size = info->size, .mtime_s = info->mtime_s};

	progress_add(l->p, 1);
	if (!parse(l->a, info->key, &b)) {
		l->n.foreign++;
		return 0;
	}
	l->n.objects++;
	l->n.bytes += info->size;
	return sorter_add(l->out, &b);
}

static int compare_objects(const void *a, const void *b)
{
	const struct block_object *x = a, *y = b;

	return CFS_COMPARE(x->id, y->id)
		?: CFS_COMPARE(x->indx, y->indx)
		?: CFS_COMPARE(x->len, y->len);
}

int slice_use_compare(const void *a, const void *b)
{
	const struct slice_use *x = a, *y = b;

	return CFS_COMPARE(x->id, y->id);
}

int slice_use_add_list(struct sorter *uses, struct progress *p, const struct cfs_row *row,
		       cfs_ino_t ino, uint32_t kind)
{
	size_t i;
	int r = 0;

	for (i = 0; i < row->list.n && r == 0; i++) {
		const struct cfs_slice *s = &row->list.slices[i];
		const struct slice_use u = {
			.id = s->id,
			.ino = ino,
			.size = s->size,
			.indx = row->list.indx,
			.kind = kind,
		};

		progress_add(p, 1);
		r = s->id ? sorter_add(uses, &u) : 0;
	}
	return r;
}

int blocks_list(struct admin *a, struct progress *p, struct sorter **ret_sorted,
		struct blocks_listed *ret)
{
	struct listing l = {.a = a, .p = p};
	char prefix[128];
	int r;

	snprintf(prefix, sizeof(prefix), "%s/chunks/", a->setting->name);
	r = sorter_create(sizeof(struct block_object), compare_objects, 0, &l.out);
	if (r < 0)
		return r;
	progress_begin(p, "objects listed");
	r = a->objects->ops->list(a->objects, prefix, "", add_object, &l,
				  cfs_deadline_in(ADMIN_LIST_MS));
	if (r == 0)
		r = sorter_sort(l.out);
	progress_end(p);
	if (r != 0) {
		sorter_destroy(l.out);
		return r;
	}
	*ret_sorted = l.out;
	*ret = l.n;
	return 0;
}

uint32_t blocks_count(const struct admin *a, uint32_t slice_size)
{
	return (uint32_t)CFS_DIV_UP((uint64_t)slice_size, a->block_size);
}

uint32_t blocks_length(const struct admin *a, uint32_t slice_size, uint32_t indx)
{
	return CFS_MIN(a->block_size, slice_size - indx * a->block_size);
}

bool blocks_belongs(const struct admin *a, const struct block_object *b, uint32_t slice_size)
{
	return b->indx < blocks_count(a, slice_size) &&
	       b->len == blocks_length(a, slice_size, b->indx);
}

int blocks_look(struct admin *a, uint64_t slice, uint32_t slice_size, uint32_t indx,
		char key[CFS_BLOCK_KEY_MAX], uint64_t *ret_size)
{
	uint32_t len = blocks_length(a, slice_size, indx);
	struct cfs_object_info info;
	int r;

	blocks_key(a, slice, indx, len, key);
	r = a->objects->ops->head(a->objects, key, &info, cfs_deadline_in(ADMIN_OBJECT_MS));
	if (r < 0 && r != -ENOENT)
		return r;
	*ret_size = r < 0 ? BLOCK_MISSING : info.size;
	return r < 0 || !blocks_fit(a, len, info.size);
}

bool blocks_fit(const struct admin *a, uint32_t len, uint64_t size)
{
	const char *c = a->setting->compression;
	bool plain = (!c || !*c || !strcmp(c, "none")) &&
		     !(a->setting->encrypt_key && *a->setting->encrypt_key);

	return plain ? size == len : size > 0;
}

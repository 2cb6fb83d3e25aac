/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/protobuf.h"
#include "base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_VARINT = 0, TYPE_64 = 1, TYPE_BYTES = 2, TYPE_32 = 5, VARINT_MAX = 10 };

static bool room(struct pb *w, size_t more)
{
	size_t cap = w->cap ? w->cap : 256;

	while (cap < w->n + more)
		cap *= 2;
	if (!w->failed)
		w->failed = CFS_ARRAY_RESERVE(w->v, cap, w->cap) < 0;
	return !w->failed;
}

void pb_varint(struct pb *w, uint64_t v)
{
	if (!room(w, VARINT_MAX))
		return;
	for (; v >= 0x80; v >>= 7)
		w->v[w->n++] = (uint8_t)(v | 0x80);
	w->v[w->n++] = (uint8_t)v;
}

void pb_number(struct pb *w, unsigned field, uint64_t v)
{
	if (!v)
		return;
	pb_varint(w, (uint64_t)field << 3 | TYPE_VARINT);
	pb_varint(w, v);
}

static void put_bytes(struct pb *w, unsigned field, const void *p, size_t len)
{
	pb_varint(w, (uint64_t)field << 3 | TYPE_BYTES);
	pb_varint(w, len);
	if (!room(w, len) || !len)
		return;
	memcpy(w->v + w->n, p, len);
	w->n += len;
}

void pb_bytes(struct pb *w, unsigned field, const void *p, size_t len)
{
	if (len)
		put_bytes(w, field, p, len);
}

void pb_message(struct pb *w, unsigned field, const struct pb *m)
{
	w->failed |= m->failed;
	put_bytes(w, field, m->v, m->n);
}

void pb_free(struct pb *w)
{
	free(w->v);
	*w = (struct pb){0};
}

int pb_get_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
	uint64_t v = 0;
	unsigned shift;

	for (shift = 0; shift < 7 * VARINT_MAX && *p < end; shift += 7) {
		uint8_t byte = *(*p)++;

		v |= (uint64_t)(byte & 0x7f) << shift;
		if (byte < 0x80) {
			*ret = v;
			return 0;
		}
	}
	return -EBADMSG;
}

int pb_next(const uint8_t **p, const uint8_t *end, struct pb_field *ret)
{
	struct pb_field f = {.p = *p};
	uint64_t key, len;

	if (*p == end)
		return 0;
	if (pb_get_varint(p, end, &key))
		return -EBADMSG;
	f.field = (unsigned)(key >> 3);
	switch (key & 7) {
	case TYPE_VARINT:
		if (pb_get_varint(p, end, &f.number))
			return -EBADMSG;
		break;
	case TYPE_BYTES:
		if (pb_get_varint(p, end, &len) || len > (size_t)(end - *p))
			return -EBADMSG;
		f.is_bytes = true;
		f.p = *p;
		f.len = (size_t)len;
		*p += len;
		break;
	case TYPE_64:
	case TYPE_32: /* of a later version */
		len = (key & 7) == TYPE_64 ? 8 : 4;
		if (len > (size_t)(end - *p))
			return -EBADMSG;
		*p += len;
		break;
	default:
		return -EBADMSG;
	}
	*ret = f;
	return 1;
}

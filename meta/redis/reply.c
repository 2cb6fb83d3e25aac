/* SPDX-License-Identifier: Apache-2.0 */
/* Replies that are safe to read, whatever the server has sent. */
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "meta/redis/redis-internal.h"

static char no_text[] = "";
static redisReply *no_elements[RDS_ELEMENTS];
static redisReply nil = {.type = REDIS_REPLY_NIL, .str = no_text, .element = no_elements};

static __attribute__((constructor)) void make_nil(void)
{
	size_t i;

	for (i = 0; i < RDS_ELEMENTS; i++)
		no_elements[i] = &nil;
}

const redisReply *rds_element(const redisReply *r, size_t i)
{
	return i < r->elements ? r->element[i] : &nil;
}

/* freeReplyObject() frees the array, and elements[0] to elements[r->elements - 1]. */
static int fill_array(redisReply *r)
{
	redisReply **v = r->element;
	size_t i;
	int rc = 0;

	for (i = 0; i < r->elements && !rc; i++)
		rc = rds_reply_fill(v[i]);
	if (rc || r->elements >= RDS_ELEMENTS)
		return rc;
	v = realloc(v, RDS_ELEMENTS * sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (i = r->elements; i < RDS_ELEMENTS; i++)
		v[i] = &nil;
	r->element = v;
	return 0;
}

int rds_reply_fill(redisReply *r)
{
	switch (r->type) {
	case REDIS_REPLY_ARRAY:
		r->str = no_text;
		return fill_array(r);
	case REDIS_REPLY_STRING:
	case REDIS_REPLY_STATUS:
	case REDIS_REPLY_ERROR:
		r->element = no_elements;
		return 0;
	case REDIS_REPLY_INTEGER:
	case REDIS_REPLY_NIL:
		r->str = no_text;
		r->element = no_elements;
		return 0;
	default:
		/* Other types belong to RESP 3, which no connection asks for. */
		return -EPROTO;
	}
}

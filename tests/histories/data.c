/* SPDX-License-Identifier: Apache-2.0 */
#include "judge.h"

#include <stdlib.h>
#include <string.h>

/* A record that was put into an inode, from the open to the close. */
struct put {
	const struct op *op;
	uint64_t begin;
	uint64_t end; /* UINT64_MAX: it may come at any time */
};

static bool is_put(const struct op *op)
{
	return op->kind == OP_PUT || op->kind == OP_PUT_CREATE;
}

static bool possible(const struct op *op, uint64_t ino)
{
	return is_put(op) && (op->ino == ino || (op->error && op->ino == NO_INODE));
}

/* Why the record that a get saw cannot be, or NULL. */
static const char *wrong(const struct op *get, const struct op *ops, size_t n)
{
	uint64_t end = 0, begin = 0;
	if (get->value == TORN)
		return "bytes that nobody wrote, or parts of several records";
	if (get->value) {
		const struct op *from = NULL;
		for (size_t i = 0; i < n && !from; i++)
			if (ops[i].value == get->value && possible(&ops[i], get->ino))
				from = &ops[i];
		if (!from || from->invoked > get->returned)
			return "nobody wrote this record into this file";
		end = from->error ? UINT64_MAX : from->returned;
	}
	/* A later put that was complete before the file was opened. */
	for (size_t i = 0; i < n; i++) {
		if (!is_put(&ops[i]) || ops[i].ino != get->ino || ops[i].error || ops[i].weak)
			continue;
		begin = get->value ? ops[i].invoked : 1;
		if (begin > end && ops[i].returned < get->invoked)
			return "the record was replaced by a put that ended before this open began";
	}
	return NULL;
}

void judge_data(const struct op *ops, size_t n, const struct rules *rules, struct verdict *ret)
{
	(void)rules;
	memset(ret, 0, sizeof(*ret));
	for (size_t i = 0; i < n; i++) {
		if (ops[i].kind != OP_GET || ops[i].error || ops[i].weak)
			continue;
		ret->steps++;
		ret->why = wrong(&ops[i], ops, n);
		if (ret->why) {
			ret->op = &ops[i];
			return;
		}
	}
}

/* From the answer to lock to the call of unlock; 0 if the end of it is not known. */
static uint64_t held_until(const struct op *lock, const struct op *ops, size_t n)
{
	const struct op *end = NULL;
	for (size_t i = 0; i < n; i++) {
		const struct op *u = &ops[i];
		if (u->kind == OP_UNLOCK && u->client == lock->client && u->value == lock->value &&
		    u->invoked >= lock->returned && (!end || u->invoked < end->invoked))
			end = u;
	}
	return end && !end->error && !end->weak ? end->invoked : 0;
}

void judge_locks(const struct op *ops, size_t n, const struct rules *rules, struct verdict *ret)
{
	(void)rules;
	memset(ret, 0, sizeof(*ret));
	for (size_t i = 0; i < n; i++) {
		if (ops[i].kind != OP_LOCK || ops[i].error || ops[i].weak)
			continue;
		uint64_t end = held_until(&ops[i], ops, n);
		ret->steps++;
		for (size_t k = 0; k < n && end; k++) {
			if (k == i || ops[k].kind != OP_LOCK || ops[k].error || ops[k].weak ||
			    ops[k].value != ops[i].value)
				continue;
			uint64_t other = held_until(&ops[k], ops, n);
			if (other && ops[k].returned < end && other > ops[i].returned) {
				ret->op = ops[k].returned > ops[i].returned ? &ops[k] : &ops[i];
				ret->why = "two clients hold one lock";
				return;
			}
		}
	}
}

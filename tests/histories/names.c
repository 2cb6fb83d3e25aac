/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Just-in-time linearization (Lowe, "Testing for linearizability", 2017): all configurations that
 * the history so far can have led to are kept. When an operation returns, each of them is followed
 * until the operation has taken its last step; operations that have begun and not returned step in
 * any order before. If none is left, nothing explains the result.
 *
 * An operation without an answer keeps its slot: it may take its steps at any later time, or never.
 */
#include "judge.h"
#include "model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST 60000 /* configurations at one return */

/* A set of configurations in the order in which they came. */
struct set {
	struct config *items;
	uint32_t *table;
	size_t n;
	size_t room;
	size_t slots;
};

static uint64_t hash(const struct config *c)
{
	const uint64_t *w = (const uint64_t *)c;
	uint64_t h = 1469598103934665603ULL;
	size_t bytes = offsetof(struct config, object) + c->objects * sizeof(struct object);
	for (size_t i = 0; i < bytes / 8; i++) {
		h = (h ^ w[i]) * 0x9E3779B97F4A7C15ULL;
		h ^= h >> 29;
	}
	return h;
}

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static void clear(struct set *s)
{
	s->n = 0;
	memset(s->table, 0, s->slots * sizeof(*s->table));
}

static void init(struct set *s)
{
	s->room = 64;
	s->slots = 256;
	s->n = 0;
	s->items = must(malloc(s->room * sizeof(*s->items)));
	s->table = must(calloc(s->slots, sizeof(*s->table)));
}

static void destroy(struct set *s)
{
	free(s->items);
	free(s->table);
}

static void place(struct set *s, uint32_t item)
{
	size_t i = hash(&s->items[item]) & (s->slots - 1);
	while (s->table[i])
		i = (i + 1) & (s->slots - 1);
	s->table[i] = item + 1;
}

static void add(struct set *s, const struct config *c)
{
	for (size_t i = hash(c) & (s->slots - 1); s->table[i]; i = (i + 1) & (s->slots - 1))
		if (!memcmp(&s->items[s->table[i] - 1], c, sizeof(*c)))
			return;
	if (s->n == s->room) {
		s->room *= 2;
		s->slots *= 2;
		s->items = must(realloc(s->items, s->room * sizeof(*s->items)));
		free(s->table);
		s->table = must(calloc(s->slots, sizeof(*s->table)));
		for (uint32_t i = 0; i < s->n; i++)
			place(s, i);
	}
	s->items[s->n] = *c;
	place(s, (uint32_t)s->n++);
}

struct event {
	uint64_t time;
	uint32_t op;
	bool returns;
};

/* Of events at one time, beginnings come first: both may be at work together. */
static int by_time(const void *a, const void *b)
{
	const struct event *x = a, *y = b;
	if (x->time != y->time)
		return x->time < y->time ? -1 : 1;
	if (x->returns != y->returns)
		return x->returns ? 1 : -1;
	return x->op < y->op ? -1 : x->op > y->op;
}

struct search {
	const struct op *open[MAX_OPEN];
	const struct rules *rules;
	struct set now;
	struct set seen;
	uint64_t steps;
};

/* Follows every configuration until the operation of a slot is done. */
static int returned(struct search *s, int slot)
{
	struct config next[MAX_NEXT];
	struct set t = s->seen;
	bool weak = s->open[slot]->weak;
	s->seen = s->now;
	s->now = t;
	/* The present state is the beginning of the observed states. */
	clear(&s->now);
	for (size_t i = 0; i < s->seen.n; i++) {
		struct config c = s->seen.items[i];
		if (weak || c.slot[slot].phase == PHASE_DONE) {
			struct config done = c;
			done.slot[slot] = (struct slot){0};
			add(&s->now, &done);
			if (c.slot[slot].phase == PHASE_DONE)
				continue;
		}
		for (int k = 0; k < MAX_OPEN; k++) {
			if (!s->open[k] || c.slot[k].phase == PHASE_DONE)
				continue;
			int n = model_step(&c, k, s->open[k], s->rules, next);
			s->steps++;
			if (n < 0)
				return n;
			for (int j = 0; j < n; j++)
				add(&s->seen, &next[j]);
		}
		if (s->seen.n > (s->rules->most ? s->rules->most : MOST))
			return -E2BIG;
	}
	s->open[slot] = NULL;
	return s->now.n ? 0 : -ENOENT;
}

static bool of_names(const struct op *op, const struct rules *rules)
{
	if (op->kind == OP_LOCK || op->kind == OP_UNLOCK)
		return false;
	if (op->weak && op->error && !op_unknown(op))
		return false;
	if (!op_changes(op) && (op->weak || (rules->faults && op_unknown(op))))
		return false;
	return true;
}

void judge_names(const struct op *ops, size_t n, const struct rules *rules, struct verdict *ret)
{
	struct event *events = must(calloc(2 * n + 1, sizeof(*events)));
	struct op *copies = must(calloc(n + 1, sizeof(*copies)));
	int8_t *slots = must(malloc(n + 1));
	struct search s = {.rules = rules};
	struct config first = {0};
	size_t count = 0;
	memset(ret, 0, sizeof(*ret));
	init(&s.now);
	init(&s.seen);
	add(&s.now, &first);
	for (size_t i = 0; i < n; i++) {
		copies[i] = ops[i];
		if (!of_names(&ops[i], rules))
			continue;
		events[count++] = (struct event){ops[i].invoked, (uint32_t)i, false};
		/* With its inode known, only the data of a put is in doubt. */
		if (rules->faults && op_unknown(&ops[i])) {
			if (ops[i].ino == NO_INODE)
				copies[i].weak = true;
			else
				copies[i].error = 0;
			if (ops[i].ino == NO_INODE)
				continue;
		}
		events[count++] = (struct event){ops[i].returned, (uint32_t)i, true};
	}
	qsort(events, count, sizeof(*events), by_time);
	for (size_t e = 0; e < count; e++) {
		const struct op *op = &copies[events[e].op];
		if (!events[e].returns) {
			int k = 0;
			while (k < MAX_OPEN && s.open[k])
				k++;
			if (k == MAX_OPEN) {
				ret->gave_up = true;
				break;
			}
			s.open[k] = op;
			slots[events[e].op] = (int8_t)k;
			struct slot begun;
			model_open(&begun, op);
			struct set t = s.seen;
			clear(&t);
			for (size_t i = 0; i < s.now.n; i++) {
				s.now.items[i].slot[k] = begun;
				add(&t, &s.now.items[i]);
			}
			s.seen = s.now;
			s.now = t;
			continue;
		}
		int r = returned(&s, slots[events[e].op]);
		if (r == -ENOENT) {
			ret->op = &ops[events[e].op];
			ret->why = "no order of the operations explains it";
			break;
		}
		if (r < 0) {
			ret->gave_up = true;
			break;
		}
	}
	ret->steps = s.steps;
	destroy(&s.now);
	destroy(&s.seen);
	free(slots);
	free(copies);
	free(events);
}

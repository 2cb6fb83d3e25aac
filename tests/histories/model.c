/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <errno.h>
#include <string.h>

#define SYMBOLIC (1ULL << 63)
#define ARENA	 (1ULL << 62)

static struct object *find(struct config *c, uint64_t id)
{
	for (uint32_t i = 0; i < c->objects; i++)
		if (c->object[i].id == id)
			return &c->object[i];
	return NULL;
}

/* Where a name of a directory stands, NULL if there is no such directory any more. */
static uint8_t *entry_of(struct config *c, uint64_t dir, struct path p)
{
	if (dir == ARENA)
		return &c->top[p.top];
	struct object *d = find(c, dir);
	return d && d->kind == KIND_DIR ? &d->entry[p.sub] : NULL;
}

static struct object *at(struct config *c, uint8_t entry)
{
	return entry ? &c->object[entry - 1] : NULL;
}

/* Whether an object can be the one with this inode; one that was not seen before becomes it. */
static bool is(struct config *c, struct object *o, uint64_t ino)
{
	uint64_t old = o->id;
	if (old == ino)
		return true;
	if (!(old & SYMBOLIC) || find(c, ino))
		return false;
	o->id = ino;
	for (int i = 0; i < MAX_OPEN; i++) {
		struct slot *s = &c->slot[i];
		s->dir_a = s->dir_a == old ? ino : s->dir_a;
		s->dir_b = s->dir_b == old ? ino : s->dir_b;
		s->found = s->found == old ? ino : s->found;
		s->target = s->target == old ? ino : s->target;
		s->lost = s->lost == old ? ino : s->lost;
	}
	return true;
}

static bool empty(const struct object *d)
{
	for (int i = 0; i < SUB_NAMES; i++)
		if (d->entry[i])
			return false;
	return true;
}

/* Whether `inner` is d, or is below it. */
static bool holds(struct config *c, const struct object *d, uint64_t inner)
{
	if (d->id == inner)
		return true;
	for (int i = 0; i < SUB_NAMES && d->kind == KIND_DIR; i++)
		if (d->entry[i] && holds(c, at(c, d->entry[i]), inner))
			return true;
	return false;
}

static uint8_t copy_tree(const struct config *from, uint8_t entry, struct config *to,
			 uint8_t map[MAX_OBJECTS])
{
	if (!entry || map[entry - 1])
		return entry ? map[entry - 1] : 0;
	uint32_t i = to->objects++;
	map[entry - 1] = (uint8_t)(i + 1);
	to->object[i] = from->object[entry - 1];
	for (int k = 0; k < SUB_NAMES; k++)
		to->object[i].entry[k] = copy_tree(from, to->object[i].entry[k], to, map);
	return (uint8_t)(i + 1);
}

/* Inodes without a name are forgotten; the rest gets the one order that equal trees share. */
static void tidy(struct config *c)
{
	struct config t = {0};
	uint8_t map[MAX_OBJECTS] = {0};
	memcpy(t.slot, c->slot, sizeof(t.slot));
	for (int i = 0; i < TOP_NAMES; i++)
		t.top[i] = copy_tree(c, c->top[i], &t, map);
	*c = t;
}

static bool says(const struct op *op, int error)
{
	return op->weak || op->error == error;
}

static int finish(struct config *c, int slot)
{
	c->slot[slot] = (struct slot){.phase = PHASE_DONE};
	return 1;
}

/* As finish(), of an operation that took a name from the object. */
static int finish_taken(struct config *c, int slot, uint64_t from)
{
	finish(c, slot);
	tidy(c);
	for (int i = 0; i < MAX_OPEN; i++)
		if (c->slot[i].links && find(c, from))
			c->slot[i].lost = from;
	return 1;
}

static int answer(struct config *c, int slot, const struct op *op, int error)
{
	return says(op, error) ? finish(c, slot) : 0;
}

/* The phase after the walk to a path's directory. */
static void walked(struct slot *s, const struct op *op, bool first, uint64_t dir)
{
	bool two = op->b.top >= 0;
	if (first) {
		s->dir_a = dir;
		s->phase = op->kind == OP_LINK ? PHASE_LOOK_A : two ? PHASE_WALK_B : PHASE_ACT;
	} else {
		s->dir_b = dir;
		s->phase = PHASE_ACT;
	}
	if (s->phase == PHASE_WALK_B && op->b.sub < 0) {
		s->dir_b = ARENA;
		s->phase = PHASE_ACT;
	}
}

void model_open(struct slot *slot, const struct op *op)
{
	*slot = (struct slot){.phase = PHASE_WALK_A, .links = op->kind == OP_LINK};
	if (op->a.sub < 0)
		walked(slot, op, true, ARENA);
}

static int walk(struct config out[MAX_NEXT], int slot, const struct op *op, bool first)
{
	struct config *c = &out[0];
	struct object *d = at(c, c->top[first ? op->a.top : op->b.top]);
	if (!d || d->kind == KIND_LINK) /* the links point to nothing */
		return answer(c, slot, op, ENOENT);
	if (d->kind == KIND_FILE)
		return answer(c, slot, op, ENOTDIR);
	bool dead = d->dead && op->error == ENOENT;
	if (dead) {
		out[1] = *c;
		finish(&out[1], slot);
	}
	walked(&c->slot[slot], op, first, d->id);
	return dead ? 2 : 1;
}

/* Puts an object under a name that is free. */
static int make(struct config *c, int slot, const struct op *op, uint8_t *e, enum node_kind kind)
{
	if (!says(op, 0))
		return 0;
	if (c->objects == MAX_OBJECTS)
		return -ENOSPC;
	bool known = (kind == KIND_FILE) && op->ino != NO_INODE && !op->weak;
	if (known && find(c, op->ino))
		return 0;
	c->object[c->objects] = (struct object){
		.id = known ? op->ino : SYMBOLIC | op->id,
		.kind = (uint8_t)kind,
		.target = kind == KIND_LINK ? op->value : 0,
	};
	*e = (uint8_t)++c->objects;
	finish(c, slot);
	tidy(c);
	return 1;
}

/* An open that made its file. With EIO it has lost it to another mount before it was done. */
static int make_open(struct config *c, int slot, const struct op *op, uint8_t *e)
{
	struct op made = *op;
	if (op->weak || !op->error || (op->error != EIO && op->ino == NO_INODE))
		return make(c, slot, op, e, KIND_FILE);
	made.error = 0;
	int r = make(c, slot, &made, e, KIND_FILE);
	if (r > 0)
		c->slot[slot] = (struct slot){
			.phase = PHASE_GONE,
			.found = op->ino != NO_INODE ? op->ino : SYMBOLIC | op->id,
		};
	return r;
}

static int drop(struct config *c, int slot, const struct op *op, uint8_t *e)
{
	if (!says(op, 0))
		return 0;
	uint64_t from = at(c, *e)->id;
	*e = 0;
	return finish_taken(c, slot, from);
}

/* An open by name, and what follows it on the inode. */
static int opened(struct config *c, int slot, const struct op *op, struct object *o)
{
	if (o->kind == KIND_DIR)
		return answer(c, slot, op, EISDIR);
	if (o->kind == KIND_LINK)
		return answer(c, slot, op, ELOOP);
	if (op->weak)
		return finish(c, slot);
	if (op->ino ==
	    NO_INODE) /* the open failed: the name is removed before the inode is opened */
		return 0;
	if (!is(c, o, op->ino))
		return 0;
	if (op->error) {
		c->slot[slot].found = o->id;
		c->slot[slot].phase = PHASE_GONE;
		return 1;
	}
	return finish(c, slot);
}

static int act_one(struct config *c, int slot, const struct op *op, const struct rules *rules)
{
	if (op->kind == OP_LIST) {
		uint64_t names = 0;
		struct object *d = op->a.top < 0 ? NULL : at(c, c->top[op->a.top]);
		if (op->a.top >= 0 && !d)
			return answer(c, slot, op, ENOENT);
		if (d && d->kind != KIND_DIR)
			return answer(c, slot, op, d->kind == KIND_FILE ? ENOTDIR : ENOENT);
		for (int i = 0; i < (d ? SUB_NAMES : TOP_NAMES); i++)
			names |= (uint64_t)((d ? d->entry[i] : c->top[i]) != 0) << i;
		return !op->weak && op->value != names ? 0 : answer(c, slot, op, 0);
	}
	uint8_t *e = entry_of(c, c->slot[slot].dir_a, op->a);
	if (!e)
		return answer(c, slot, op, ENOENT);
	struct object *o = at(c, *e);
	if (!o && op->kind != OP_CREATE && op->kind != OP_PUT_CREATE && op->kind != OP_MKDIR &&
	    op->kind != OP_SYMLINK)
		return answer(c, slot, op, ENOENT);
	switch (op->kind) {
	case OP_CREATE:
		return o ? answer(c, slot, op, EEXIST) : make_open(c, slot, op, e);
	case OP_MKDIR:
		return o ? answer(c, slot, op, EEXIST) : make(c, slot, op, e, KIND_DIR);
	case OP_SYMLINK:
		return o ? answer(c, slot, op, EEXIST) : make(c, slot, op, e, KIND_LINK);
	case OP_PUT_CREATE:
		return o ? opened(c, slot, op, o) : make_open(c, slot, op, e);
	case OP_PUT:
	case OP_GET:
		return opened(c, slot, op, o);
	case OP_STAT:
		if (op->weak)
			return finish(c, slot);
		return o->kind == op->node && is(c, o, op->ino) ? answer(c, slot, op, 0) : 0;
	case OP_READLINK:
		if (o->kind != KIND_LINK)
			return answer(c, slot, op, EINVAL);
		return op->weak || o->target == op->value ? answer(c, slot, op, 0) : 0;
	case OP_UNLINK:
		if (o->kind == KIND_DIR)
			return answer(c, slot, op, EISDIR);
		break;
	default: /* rmdir */
		if (o->kind != KIND_DIR)
			return answer(c, slot, op, ENOTDIR);
		if (!empty(o))
			return answer(c, slot, op, ENOTEMPTY);
	}
	if (rules->deaths && !op->error) {
		/* Also: seen, and removed by another mount before its own removal is tried again. */
		c->slot[slot].phase = PHASE_GONE;
		return 1;
	}
	return drop(c, slot, op, e);
}

static int act_link(struct config *c, int slot, const struct op *op)
{
	struct slot *s = &c->slot[slot];
	uint8_t *e = entry_of(c, s->dir_b, op->b);
	struct object *o = find(c, s->found);
	if (!e)
		return answer(c, slot, op, ENOENT);
	if (*e && says(op, EEXIST))
		return finish(c, slot);
	if (s->found_kind == KIND_DIR)
		return answer(c, slot, op, EPERM);
	if (!o)
		return answer(c, slot, op, ENOENT);
	if (op->error == ENOENT && s->lost == s->found)
		return finish(c, slot);
	if (*e || !says(op, 0))
		return 0;
	*e = (uint8_t)(o - c->object + 1);
	finish(c, slot);
	tidy(c);
	return 1;
}

/* All errors that a rename can give here count, whatever order a file system asks in. */
static int act_rename(struct config *c, int slot, const struct op *op)
{
	struct slot *s = &c->slot[slot];
	uint8_t *from = entry_of(c, s->dir_a, op->a), *to = entry_of(c, s->dir_b, op->b);
	struct object *f = from ? at(c, *from) : NULL, *t = to ? at(c, *to) : NULL;
	bool swap = op->kind == OP_EXCHANGE, wrong = false;
	int error = op->error;
	if (!f || !to || (swap && !t))
		return answer(c, slot, op, ENOENT);
	if (t && op->kind == OP_RENAME_NEW)
		return answer(c, slot, op, EEXIST);
	bool into = f->kind == KIND_DIR && holds(c, f, s->dir_b);
	bool over = t && t->kind == KIND_DIR && holds(c, t, s->dir_a);
	if (into || (over && swap)) {
		wrong = true;
		if (error == EINVAL)
			return finish(c, slot);
	}
	if (over && !swap) {
		wrong = true;
		if (error == ENOTEMPTY)
			return finish(c, slot);
	}
	if (!wrong && f == t)
		return answer(c, slot, op, 0);
	if (t && !swap && f != t) {
		if (f->kind == KIND_DIR && t->kind != KIND_DIR) {
			wrong = true;
			if (error == ENOTDIR)
				return finish(c, slot);
		}
		if (f->kind != KIND_DIR && t->kind == KIND_DIR) {
			wrong = true;
			if (error == EISDIR)
				return finish(c, slot);
		}
		if (t->kind == KIND_DIR && !empty(t)) {
			wrong = true;
			if (error == ENOTEMPTY || (error == EEXIST && f->kind == KIND_DIR))
				return finish(c, slot);
		}
	}
	if (wrong)
		return op->weak ? finish(c, slot) : 0;
	if (!says(op, 0))
		return 0;
	uint8_t moved = *from;
	*from = swap ? *to : 0;
	*to = moved;
	struct object *seen = find(c, s->target);
	if (seen && seen != t)
		seen->dead = true;
	return finish_taken(c, slot, t && !swap ? t->id : NO_INODE);
}

/* The kernel looks the target of a rename up: a directory, which it takes for removed afterwards. */
static bool sees_target(struct config *c, int slot, const struct op *op)
{
	struct slot *s = &c->slot[slot];
	uint8_t *to = entry_of(c, s->dir_b, op->b);
	struct object *t = to ? at(c, *to) : NULL;
	if (op->kind != OP_RENAME || op->error || op->weak || s->target || !t ||
	    t->kind != KIND_DIR)
		return false;
	s->target = t->id;
	return true;
}

/* The kernel has looked the target up, after the source: what it answers by itself. */
static int look_b(struct config *c, int slot, const struct op *op)
{
	struct slot *s = &c->slot[slot];
	uint8_t *to = entry_of(c, s->dir_b, op->b);
	struct object *t = to ? at(c, *to) : NULL;
	if (!t)
		return answer(c, slot, op, op->kind == OP_EXCHANGE ? ENOENT : -1);
	if (op->kind == OP_RENAME_NEW)
		return answer(c, slot, op, EEXIST);
	if (t->id == s->found)
		return answer(c, slot, op, 0);
	if (op->kind == OP_EXCHANGE)
		return 0;
	if (s->found_kind == KIND_DIR && t->kind != KIND_DIR)
		return answer(c, slot, op, ENOTDIR);
	if (s->found_kind != KIND_DIR && t->kind == KIND_DIR)
		return answer(c, slot, op, EISDIR);
	return 0;
}

static int act(struct config *c, int slot, const struct op *op, const struct rules *rules)
{
	if (op->kind == OP_LINK)
		return act_link(c, slot, op);
	if (op->kind == OP_RENAME || op->kind == OP_RENAME_NEW || op->kind == OP_EXCHANGE)
		return act_rename(c, slot, op);
	return act_one(c, slot, op, rules);
}

/* A change whose answer died with the process of its mount, docs/posix.md: it is tried again. */
static bool done_before(struct config *c, int slot, const struct op *op, const struct rules *rules)
{
	struct slot before = c->slot[slot];
	struct op first = *op;
	first.error = 0;
	if (!rules->deaths || op->weak || before.again || !op_changes(&first) ||
	    op->kind == OP_EXCHANGE)
		return false;
	first.ino = NO_INODE;
	first.id |= 1U << 31;
	if (act(c, slot, &first, &(struct rules){0}) != 1)
		return false;
	before.again = true;
	if (op->kind == OP_UNLINK || op->kind == OP_RMDIR || op->kind == OP_RENAME ||
	    op->kind == OP_RENAME_NEW)
		before.phase = PHASE_GONE;
	c->slot[slot] = before;
	return true;
}

/* The inode that was seen has gone meanwhile. */
static int gone(struct config *c, int slot, const struct op *op)
{
	struct slot *s = &c->slot[slot];
	if (op->kind == OP_PUT || op->kind == OP_GET || op->kind == OP_PUT_CREATE ||
	    op->kind == OP_CREATE)
		return find(c, s->found) ? 0
					 : finish(c, slot); /* its data is lost, docs/posix.md */
	uint8_t *from = entry_of(c, s->dir_a, op->a);
	if (op->kind == OP_UNLINK || op->kind == OP_RMDIR) {
		if (from && *from)
			return act_one(c, slot, op, &(struct rules){0});
		return op->error ? 0 : finish(c, slot);
	}
	uint8_t *to = entry_of(c, s->dir_b, op->b);
	if (!op->error && !(from && *from) && to && *to)
		return finish(c, slot);
	return s->again ? act_rename(c, slot, op) : 0;
}

int model_step(const struct config *c, int slot, const struct op *op, const struct rules *rules,
	       struct config out[MAX_NEXT])
{
	int n = 0, r;
	out[0] = *c;
	struct slot *s = &out[0].slot[slot];
	struct object *o;
	uint8_t *e;
	if (op->error == ESTALE &&
	    !op->weak) /* a directory at two places, docs/posix.md: no change */
		return finish(&out[0], slot);
	switch ((enum phase)s->phase) {
	case PHASE_WALK_A:
		return walk(out, slot, op, true);
	case PHASE_WALK_B:
		return walk(out, slot, op, false);
	case PHASE_LOOK_A:
		e = entry_of(&out[0], s->dir_a, op->a);
		o = e ? at(&out[0], *e) : NULL;
		if (!o)
			return answer(&out[0], slot, op, ENOENT);
		s->found = o->id;
		s->found_kind = o->kind;
		s->dir_a = 0;
		if (op->b.sub < 0) {
			s->dir_b = ARENA;
			s->phase = PHASE_ACT;
		} else {
			s->phase = PHASE_WALK_B;
		}
		return 1;
	case PHASE_ACT:
		r = act(&out[0], slot, op, rules);
		if (r < 0)
			return r;
		n = r;
		if (op->weak)
			return n;
		out[n] = *c;
		n += done_before(&out[n], slot, op, rules);
		if (op->kind != OP_RENAME && op->kind != OP_RENAME_NEW && op->kind != OP_EXCHANGE)
			return n;
		out[n] = *c;
		n += sees_target(&out[n], slot, op);
		out[n] = *c;
		s = &out[n].slot[slot];
		e = entry_of(&out[n], s->dir_a, op->a);
		o = e ? at(&out[n], *e) : NULL;
		if (o) {
			s->found = o->id;
			s->found_kind = o->kind;
			s->phase = PHASE_LOOK_B;
			n++;
			if (rules->deaths && !op->error && op->kind != OP_EXCHANGE) {
				out[n] = out[n - 1];
				out[n++].slot[slot].phase = PHASE_GONE;
			}
		}
		return n;
	case PHASE_LOOK_B:
		return look_b(&out[0], slot, op);
	case PHASE_GONE:
		return gone(&out[0], slot, op);
	default:
		return 0;
	}
}

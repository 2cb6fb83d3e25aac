/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Permissions of names, on every combination of mode, class, sticky bit, flags, owner and ACL. The
 * rules exist in C and, for Redis, in Lua; each engine is held against the model below, which is
 * written for reading and shares nothing with them.
 */
#include <stdio.h>

#include "conformance.h"

enum { OWNER = 5, GROUP = 60, STRANGER = 7, SOMEBODY = 8 };

/* The actor, as the directory sees it. */
enum actor { IS_ROOT, IS_OWNER, IS_IN_GROUP, IS_OTHER, N_ACTORS };
enum rule { NO_RULE, NAMED, MASKED, N_RULES }; /* an ACL with an entry for the actor */

struct folder {
	cfs_ino_t ino;
	enum actor actor;
	enum rule rule;
	unsigned perm; /* of the actor's class or entry: rwx */
	bool sticky;
	uint8_t flags;
};

struct victim {
	uint8_t flags;
	bool own; /* of the actor, and not of somebody else */
};

static const uint8_t each_flags[] = {0, CFS_FLAG_IMMUTABLE, CFS_FLAG_APPEND};
enum { N_FLAGS = sizeof(each_flags), N_VICTIMS = 2 * N_FLAGS };

static size_t n_cases;

static uint32_t uid_of(enum actor actor)
{
	static const uint32_t uids[] = {
		[IS_ROOT] = 0, [IS_OWNER] = OWNER, [IS_IN_GROUP] = STRANGER, [IS_OTHER] = STRANGER};

	return uids[actor];
}

static struct cfs_ctx as_actor(enum actor actor, bool check)
{
	static const gid_t groups[] = {61, GROUP};
	struct cfs_ctx c = as_user(uid_of(actor), 62);

	c.groups = groups;
	c.n_groups = actor == IS_IN_GROUP ? 2 : 1;
	c.check = check;
	return c;
}

/* ---- the model ---- */

static bool may_write(const struct folder *d, bool check)
{
	return !check || d->actor == IS_ROOT || (d->perm & 3) == 3;
}

static int expect_add(const struct folder *d, bool check)
{
	if (d->rule != NO_RULE && !may_write(d, check))
		return -EACCES;
	if (d->flags & CFS_FLAG_IMMUTABLE)
		return -EPERM;
	return may_write(d, check) ? 0 : -EACCES;
}

static int expect_remove(const struct folder *d, const struct victim *v, bool check)
{
	if (d->rule != NO_RULE && !may_write(d, check))
		return -EACCES;
	if (d->flags)
		return -EPERM;
	if (!may_write(d, check))
		return -EACCES;
	if (d->sticky && d->actor != IS_ROOT && d->actor != IS_OWNER && !v->own)
		return -EACCES;
	return v->flags ? -EPERM : 0;
}

/* ---- the volume ---- */

static void entry_of_acl(uint8_t *p, uint16_t tag, unsigned perm, uint32_t id)
{
	memcpy(p, (uint8_t[]){tag & 0xff, 0, perm & 7, 0}, 4);
	memcpy(p + 4, (uint8_t[]){id & 0xff, id >> 8 & 0xff, id >> 16 & 0xff, id >> 24}, 4);
}

/* Owner, group and other have what the actor's entry does not. */
static void set_rule(const struct folder *d)
{
	enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, MASK = 16, OTHER = 32 };
	struct cfs_ctx c = as_root();
	unsigned rest = ~d->perm;
	uint8_t acl[4 + 5 * 8] = {2};

	entry_of_acl(acl + 4, USER_OBJ, rest, UINT32_MAX);
	entry_of_acl(acl + 12, USER, d->rule == MASKED ? 7 : d->perm, STRANGER);
	entry_of_acl(acl + 20, GROUP_OBJ, rest, UINT32_MAX);
	entry_of_acl(acl + 28, MASK, d->rule == MASKED ? d->perm : 7, UINT32_MAX);
	entry_of_acl(acl + 36, OTHER, rest, UINT32_MAX);
	OK(cfs_meta_setxattr(vol.m, &c, d->ino, "system.posix_acl_access", acl, sizeof(acl), 0));
}

/* The classes that are not the actor's have what it has not. */
static uint16_t mode_of(const struct folder *d)
{
	static const unsigned shift[] = {
		[IS_ROOT] = 0, [IS_OWNER] = 6, [IS_IN_GROUP] = 3, [IS_OTHER] = 0};
	unsigned rest = ~d->perm & 7, at = shift[d->actor];

	return (uint16_t)((rest * 0111 & ~(7u << at)) | d->perm << at | (d->sticky ? 01000 : 0));
}

static const char *name_of(const struct victim *v)
{
	static char name[16];

	snprintf(name, sizeof(name), "%s%u", v->own ? "own" : "other", v->flags);
	return name;
}

static void make_victim(const struct folder *d, const struct victim *v)
{
	struct cfs_ctx c = as_actor(d->actor, false);
	struct cfs_entry e = {0};

	if (!v->own)
		c.uid = SOMEBODY;
	OK(try_make(&c, d->ino, name_of(v), CFS_TYPE_FILE, 0644, &e));
	if (v->flags)
		set_flags(e.ino, v->flags);
}

static struct victim victim_of(unsigned i)
{
	return (struct victim){.flags = each_flags[i % N_FLAGS], .own = i >= N_FLAGS};
}

static void make_folder(struct folder *d, cfs_ino_t top, const char *name)
{
	struct cfs_attr in = {.mode = mode_of(d), .uid = OWNER, .gid = GROUP}, after;
	struct cfs_ctx c = as_root();
	struct victim v;
	unsigned i;

	d->ino = make_dir(top, name);
	for (i = 0; i < N_VICTIMS; i++) {
		v = victim_of(i);
		make_victim(d, &v);
	}
	OK(cfs_meta_setattr(vol.m, &c, d->ino, CFS_SET_UID | CFS_SET_GID, &in, &after));
	OK(cfs_meta_setattr(vol.m, &c, d->ino, CFS_SET_MODE, &in, &after));
	if (d->rule != NO_RULE)
		set_rule(d);
}

static void remove_folder(const struct folder *d, cfs_ino_t top, const char *name)
{
	struct cfs_ctx c = as_root();
	struct victim v;
	unsigned i;

	set_flags(d->ino, 0);
	for (i = 0; i < N_VICTIMS; i++) {
		v = victim_of(i);
		set_flags(find(d->ino, name_of(&v)), 0);
		OK(try_unlink(&c, d->ino, name_of(&v)));
	}
	OK(try_rmdir(&c, top, name));
}

/* ---- the cases ---- */

static void judge(const char *what, const struct folder *d, const struct victim *v, bool check,
		  int got, int expected)
{
	n_cases++;
	if (got != expected)
		fail_msg("%s: %d, expected %d: actor %d, perm %u, rule %d, sticky %d, flags %u, "
			 "check %d, victim %s",
			 what, got, expected, d->actor, d->perm, d->rule, d->sticky, d->flags,
			 check, v ? name_of(v) : "none");
}

static void try_folder(const struct folder *d, bool check)
{
	struct cfs_ctx actor = as_actor(d->actor, check), root = as_root();
	int rc, expected;
	struct victim v;
	unsigned i;

	for (i = 0; i < N_VICTIMS; i++) {
		v = victim_of(i);
		expected = expect_remove(d, &v, check);
		rc = try_rename(&actor, d->ino, name_of(&v), d->ino, "moved", 0, NULL);
		judge("rename", d, &v, check, rc, expected);
		if (!rc)
			OK(try_rename(&root, d->ino, "moved", d->ino, name_of(&v), 0, NULL));
		rc = try_unlink(&actor, d->ino, name_of(&v));
		judge("unlink", d, &v, check, rc, expected);
		if (!rc)
			make_victim(d, &v);
	}
	rc = try_make(&actor, d->ino, "new", CFS_TYPE_FILE, 0644, NULL);
	judge("create", d, NULL, check, rc, expect_add(d, check));
	if (rc)
		return;
	/* Also from a directory that takes names only. */
	set_flags(d->ino, 0);
	OK(try_unlink(&root, d->ino, "new"));
	set_flags(d->ino, d->flags);
}

static void try_flags(struct folder *d)
{
	unsigned i;

	for (i = 0; i < N_FLAGS; i++) {
		d->flags = each_flags[i];
		set_flags(d->ino, d->flags);
		try_folder(d, true);
		try_folder(d, false);
	}
}

static void try_actor(cfs_ino_t top, enum actor actor, enum rule rule)
{
	struct folder d = {.actor = actor, .rule = rule};
	unsigned sticky;

	for (d.perm = 0; d.perm < 8; d.perm++) {
		for (sticky = 0; sticky < 2; sticky++) {
			d.sticky = sticky;
			make_folder(&d, top, "d");
			try_flags(&d);
			remove_folder(&d, top, "d");
		}
	}
}

static void test_modes(void **state)
{
	cfs_ino_t top = test_dir("modes");
	unsigned actor;

	(void)state;
	n_cases = 0;
	for (actor = 0; actor < N_ACTORS; actor++)
		try_actor(top, actor, NO_RULE);
	print_message("%zu cases\n", n_cases);
	assert_true(n_cases > 4000);
}

static void test_acls(void **state)
{
	cfs_ino_t top = test_dir("acls");

	(void)state;
	n_cases = 0;
	try_actor(top, IS_OTHER, NAMED);
	try_actor(top, IS_OTHER, MASKED);
	print_message("%zu cases\n", n_cases);
	assert_true(n_cases > 2000);
}

TEST_LIST(permission, T(test_modes), T(test_acls));

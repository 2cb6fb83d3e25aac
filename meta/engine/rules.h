/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of volume-format section 5 as pure functions on attributes. Engines call them inside
 * transactions, with the rows just read.
 */
#ifndef CFS_META_RULES_H
#define CFS_META_RULES_H

#include <cachefs/meta.h>

#include "meta/engine/engine.h"

/*
 * Checks whether an entry may be created in, or removed from, this directory: 0, -ENOTDIR, -EPERM
 * (immutable, append for removal), -ENOENT (trash), -EACCES when ctx->check.
 */
int cfs_rules_add_entry(const struct cfs_ctx *ctx, cfs_ino_t dir, const struct cfs_attr *attr);
int cfs_rules_remove_entry(const struct cfs_ctx *ctx, cfs_ino_t dir, const struct cfs_attr *attr,
			   const struct cfs_attr *victim);
/*
 * Attributes of a new inode: the mode after umask, no ACL; nlink is 0 without a name. When
 * parent->default_acl is set, the caller then applies cfs_acl_inherit(), except to a symlink.
 */
void cfs_rules_new_inode(const struct cfs_ctx *ctx, const struct cfs_mknod *req,
			 const struct cfs_attr *parent, struct cfs_attr *ret);
/* Attributes of a directory that belongs to the volume: the root, the trash, hour directories. */
struct cfs_attr cfs_rules_directory(const struct cfs_ctx *ctx, uint16_t mode, cfs_ino_t parent);
/*
 * Checks a setattr and applies it to *attr. 1: changed; 0: nothing changes; -EPERM, -EACCES. When
 * attr->access_acl is set and the mode has changed, the caller makes a rule with cfs_acl_chmod()
 * and replaces attr->access_acl.
 */
int cfs_rules_setattr(const struct cfs_ctx *ctx, uint32_t set, const struct cfs_attr *in,
		      struct cfs_attr *attr);
/* Applies the attribute changes of a commit (may be NULL). ACL: as after cfs_rules_setattr(). */
void cfs_rules_apply(const struct cfs_attr_change *change, struct cfs_attr *attr);
/*
 * The time that a setattr asks for. Negative seconds, in the kernel's unsigned encoding, mean the
 * current time (volume-format section 5).
 */
static inline struct timespec cfs_rules_time(const struct cfs_ctx *ctx, bool current,
					     struct timespec t)
{
	return current || t.tv_sec < 0 ? ctx->now : t;
}
/*
 * Checks whether truncate, fallocate or copy may change length or content. -EPERM: immutable, or
 * append-only and not appending. Not called for commits, whose bytes write(2) has accepted.
 * cfs_meta_open_check checks the trash at open: a file that is open when it moves there stays
 * writable.
 */
int cfs_rules_write(const struct cfs_ctx *ctx, const struct cfs_attr *attr, bool append);
/* The same for an inode of any type: also -EISDIR, and -EINVAL for other non-files. */
int cfs_rules_change_file(const struct cfs_ctx *ctx, struct cfs_engine_host *host, cfs_ino_t ino,
			  const struct cfs_attr *attr);
/* Checks the position and length of a record: 0, -EINVAL, -EFBIG. */
int cfs_rules_record(uint32_t indx, const struct cfs_slice *s);
/*
 * 0 or -EACCES for a mask of R_OK, W_OK, X_OK. An inode with an access ACL passes: the core has
 * checked the rule before the call of the engine.
 */
int cfs_rules_access(const struct cfs_ctx *ctx, const struct cfs_attr *attr, int mask);
/* Makes "<parent>-<ino>-<name>", at most 255 bytes; returns the length. */
size_t cfs_rules_trash_name(cfs_ino_t parent, cfs_ino_t ino, const char *name, size_t len,
			    char out[CFS_NAME_MAX + 1]);

/*
 * Zero records of a length change or hole (volume-format section 6). fn is called for each partly
 * covered chunk (indx == last), and once for the whole chunks between (indx..last, only_existing).
 * A sparse file may have 2^31 whole chunks: fn must update them as a range, and never loop over
 * numbers.
 */
struct cfs_zero {
	uint32_t indx, last;
	uint32_t pos, len;
	bool only_existing; /* a chunk without a list needs no record */
};
typedef int (*cfs_zero_fn)(void *arg, const struct cfs_zero *z);
int cfs_rules_truncate_zeros(uint64_t old_length, uint64_t new_length, cfs_zero_fn fn, void *arg);
int cfs_rules_hole_zeros(uint64_t off, uint64_t len, cfs_zero_fn fn, void *arg);

/* ---- usage of an inode, and its changes by operations on names and owners ---- */

/* Bytes of data, for the statistics of directories. */
static inline int64_t cfs_length_of(const struct cfs_attr *attr)
{
	return attr->type == CFS_TYPE_FILE ? (int64_t)attr->length : 0;
}
/* Space, for the statistics of directories and the usage of the volume. */
static inline int64_t cfs_weight_of(const struct cfs_attr *attr)
{
	return cfs_space_of((uint64_t)cfs_length_of(attr));
}
/* A name of the inode is added to (sign 1) or removed from (-1) the directory. */
void cfs_usage_entry(struct cfs_usage *u, cfs_ino_t dir, const struct cfs_attr *attr, int sign);
/* The inode is added to (1) or removed from (-1) the volume. */
void cfs_usage_inode(struct cfs_usage *u, const struct cfs_attr *attr, int sign);
/* A new inode; parent 0: it has no name. Sets *u. */
void cfs_usage_made(struct cfs_usage *u, cfs_ino_t parent, const struct cfs_attr *attr);
/* Another name of an inode. Sets *u. */
void cfs_usage_linked(struct cfs_usage *u, cfs_ino_t parent, const struct cfs_attr *attr);
/* A rename; nothing when both names led to one inode. Sets *u. */
void cfs_usage_renamed(struct cfs_usage *u, const struct cfs_engine_rename *req,
		       const struct cfs_renamed *v);
/* A name in `parent` was removed, with the outcome *v. */
void cfs_usage_removed(struct cfs_usage *u, cfs_ino_t parent, cfs_ino_t trash,
		       const struct cfs_removed *v);
/* setattr: the usage that moves from the previous owner to the owner in *after. */
void cfs_usage_owner(struct cfs_usage *u, const struct cfs_attr *old, const struct cfs_attr *after);
/* Updates the attributes of an inode whose name moves to the trash or to another directory. */
void cfs_rules_moved(const struct cfs_ctx *ctx, cfs_ino_t to, struct cfs_attr *attr);

/* ---- ACL rules (volume-format section 10); unset fields are CFS_ACL_UNSET ---- */

#define CFS_ACL_UNSET 0xFFFF
/* True when the rule has owner, group and other only, as a mode does. */
bool cfs_acl_is_minimal(const struct cfs_acl *rule);
/* The permission bits of the mode that belongs to the rule. */
uint16_t cfs_acl_mode(const struct cfs_acl *rule);
/*
 * Rule and mode of a child of a directory with the default rule `def`. mode: the requested mode,
 * before umask. 1: *ret_rule must be stored as the child's access rule (then cfs_acl_release it);
 * 0: *ret_mode is sufficient; -ENOMEM. A directory also inherits the id default_acl.
 */
int cfs_acl_inherit(const struct cfs_acl *def, uint16_t mode, uint16_t *ret_mode,
		    struct cfs_acl *ret_rule);
/* Changes the rule for a chmod of an inode with this access rule. */
void cfs_acl_chmod(struct cfs_acl *rule, uint16_t mode);
int cfs_acl_copy(const struct cfs_acl *rule, struct cfs_acl *ret);
void cfs_acl_release(struct cfs_acl *rule);
/* 0 or -EACCES for a rwx mask. */
int cfs_acl_access(const struct cfs_ctx *ctx, const struct cfs_attr *attr,
		   const struct cfs_acl *rule, int mask);
/* The stored form of named entries: 6 bytes each (u32 id, u16 perm). */
#define CFS_ACL_ENTRY_BYTES 6
void cfs_acl_pack(const struct cfs_acl_entry *v, size_t n, uint8_t *out);
/* *ret is malloc'ed, NULL when there are none. -EINVAL: len is not a multiple of 6. */
int cfs_acl_unpack(const void *in, size_t len, struct cfs_acl_entry **ret, uint32_t *ret_n);

/*
 * POSIX locks of one owner: applies `lock` to a sorted list. *ret is the malloc'ed new list;
 * returns its length.
 */
ssize_t cfs_rules_plock_apply(const struct cfs_plock *list, size_t n, const struct cfs_plock *lock,
			      struct cfs_plock **ret);
/* First lock of the list in conflict with `lock`, or NULL. */
const struct cfs_plock *cfs_rules_plock_conflict(const struct cfs_plock *list, size_t n,
						 const struct cfs_plock *lock);
/* Compares the locks of an inode with one that an owner wants to set, or asks for. */
struct cfs_plock_search {
	cfs_ino_t ino;
	uint64_t sid, owner;
	struct cfs_plock lock;
	/* results; all zero before */
	struct cfs_plock *mine; /* the owner's own list, malloc'ed; NULL: none */
	size_t n_mine;
	bool conflict;
	struct cfs_plock found; /* the conflict that starts first, and its owner */
	uint64_t found_sid, found_owner;
};
/* Called with the stored list (volume-format section 9) of each owner. -EIO: damaged (logged). */
int cfs_plocks_see(struct cfs_plock_search *s, uint64_t sid, uint64_t owner, const void *list,
		   size_t len);
/* The owner's list with the lock, as it is stored, malloc'ed. Returns its length in bytes. */
ssize_t cfs_plocks_change(const struct cfs_plock_search *s, uint8_t **ret);
/* The results of getlk. */
void cfs_plocks_answer(const struct cfs_plock_search *s, struct cfs_plock *lock, uint64_t *ret_sid,
		       uint64_t *ret_owner);
/* R, W or U. */
char cfs_lock_letter(unsigned type);

/* ---- copy.c ---- */

/*
 * The number of bytes that one call of copy_file_range copies; 0: src_off is behind the end.
 * -EINVAL: not a file, or overlapping ranges of one file; -EFBIG.
 */
int cfs_rules_copy_length(const struct cfs_copy_range *req, const struct cfs_attr *src,
			  uint64_t *ret);
/*
 * Makes records for a copy of the visible bytes [pos, end) of a chunk list, holes included, to byte
 * `at` of a file. Of several records of one byte the last in the list is visible. fn gets each
 * record and its chunk. Returns the first result of fn other than 0, at which it stops; -ENOMEM.
 */
typedef int (*cfs_piece_fn)(void *arg, uint32_t indx, const struct cfs_slice *piece);
int cfs_rules_copy_pieces(const struct cfs_slice *v, size_t n, uint32_t pos, uint32_t end,
			  uint64_t at, cfs_piece_fn fn, void *arg);

/* ---- the checks of fsck, on a struct cfs_check with what the engine has found ---- */

/* Notes a damage. True: it is among `repair`, and is noted as repaired. */
bool cfs_check_note(struct cfs_check *c, unsigned repair, enum cfs_damage damage);
/*
 * Checks link count and parent of an existing inode. subdirs: of a directory; parent: the directory
 * of its first name; types_differ: an entry has another type than the inode.
 */
void cfs_check_names(struct cfs_check *c, unsigned repair, cfs_ino_t ino, uint32_t subdirs,
		     cfs_ino_t parent, bool types_differ);
/* c->attr with nlink and parent as repaired. */
struct cfs_attr cfs_check_repaired(const struct cfs_check *c);
/* Compares the statistics c->stat with c->want. True: the caller writes c->want. */
bool cfs_check_stat(struct cfs_check *c, unsigned repair);

#endif

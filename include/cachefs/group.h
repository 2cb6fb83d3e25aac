/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache group: members of one volume that serve each other's blocks. It knows who is there, whose
 * a block is, and asks the owner for it.
 *
 * Members find each other by records in a registry that all of them reach. Each one counts up a
 * number in its own record every beat. One of them, the leader, reads all records four times a beat
 * and publishes a list of the members; a record whose number stands still for two beats of the
 * leader is a member that is gone. The others read what has changed in the list. A leader that
 * publishes nothing is replaced by one of two deputies. No clocks are compared. A member that is
 * gone has lost its share within three beats, however many there are and go with it.
 *
 * A block belongs to the members that weighted rendezvous hashing puts first, so that a member that
 * comes or goes moves its own share only. Members of weight 0, and those that share nothing, own
 * none; nor do those that cannot keep blocks while others can. What they have can still be had.
 * Members with TLS and members without do not talk to each other: each kind shares among itself, as
 * if the others were not there. So do those of a volume that was there before and whose mounts have
 * not ended yet.
 *
 * Threads: any, unless said otherwise. Nothing waits without a deadline.
 */
#ifndef CFS_GROUP_H
#define CFS_GROUP_H

#include <cachefs/transport.h>

#include "base/hedge.h"

struct cfs_group;

/*
 * Where members and the group's key are recorded; functions as cfs_meta_put_record and its
 * neighbours. Each has a deadline of its own.
 */
typedef int (*cfs_group_record_fn)(void *arg, const char *key, const void *value, size_t len);
struct cfs_group_registry {
	int (*put)(void *arg, const char *key, const void *value, size_t len, bool fresh);
	int (*swap)(void *arg, const char *key, const void *old, size_t old_len, const void *value,
		    size_t len);
	int (*drop)(void *arg, const char *key);
	int (*get)(void *arg, const char *key, cfs_group_record_fn fn, void *fn_arg);
	int (*each)(void *arg, const char *table, cfs_group_record_fn fn, void *fn_arg);
	void *arg;
};

struct cfs_group_conf {
	const char *name;   /* letters, digits, '-', '_', '.'; at most CFS_GROUP_NAME_MAX */
	uint64_t member;    /* stable id, not 0: the same after a restart on the same cache */
	const char *volume; /* its UUID: another one's slices have the same numbers */
	const char *host, *mount_point, *version; /* to be shown */
	unsigned weight;
	bool no_sharing;     /* asks others, serves nobody */
	unsigned replicas;   /* owners of a block, 1 to CFS_GROUP_REPLICAS_MAX; 0: 1 */
	uint64_t backup_ms;  /* after joining, misses are first looked up at owners before */
	uint64_t beat_ms;    /* 0: 5 s */
	uint64_t timeout_ms; /* longest wait for a peer before object storage is asked; 0: 2 s */
	const char *address; /* to listen on, a number; NULL: the first private one */
	const char *network; /* "10.1.0.0/16": choose the address from it */
	unsigned port;	     /* 0: any */
	bool allow_public;
	bool tls;			    /* TLS 1.3; members without are not talked to */
	unsigned max_conns;		    /* to one peer; 0: the transport's */
	uint64_t inflight_bytes;	    /* being served; 0: the transport's */
	uint64_t request_rate;		    /* per second and connection; 0: no limit */
	unsigned hedge_percent;		    /* of requests to members, at most; 0: none */
	struct cfs_group_registry registry; /* borrowed */
	const struct cfs_peer_serve_ops *ops;
	void *ops_arg;
	uint64_t (*cached_bytes)(void *arg); /* to be shown; with ops_arg; may be NULL */
	/* Whether blocks can be kept now; with ops_arg, of any thread. NULL: always. */
	bool (*keeps)(void *arg);
	/* cfs_group_pace_us() of object storage; 0: unknown. With ops_arg, of any thread. NULL: the
	 * same. */
	uint64_t (*bucket_us)(void *arg);
};

#define CFS_GROUP_NAME_MAX     64
#define CFS_GROUP_WEIGHT       100 /* of a member that does not say */
#define CFS_GROUP_REPLICAS_MAX 3

/*
 * Joins: makes the key when this is the first member, listens, publishes itself. err: one line.
 * -EINVAL, -EADDRNOTAVAIL and others of cfs_transport_create, of the registry.
 */
int cfs_group_join(const struct cfs_group_conf *conf, struct cfs_group **ret, char err[256]);
/* Tells the others; requests that have arrived are still answered. */
void cfs_group_leave(struct cfs_group *g);
/* After leave; nobody asks any more. */
void cfs_group_destroy(struct cfs_group *g);

/* This member is one of the block's owners. */
bool cfs_group_owns(struct cfs_group *g, const struct cfs_peer_block *b);
/* Whether this member may be asked to stand in for the block's owner. */
bool cfs_group_may_stand_in(struct cfs_group *g, const struct cfs_peer_block *b);
/* us per 128 KiB of answers that took ns together; each counts as 32 KiB more. */
uint64_t cfs_group_pace_us(uint64_t ns, uint64_t bytes, uint64_t answers);
/* This member keeps blocks for others: what it does not own it need not keep. */
bool cfs_group_shares(struct cfs_group *g);
/*
 * Bytes of a block from a member that should have it. Returns len; -ENOENT: from object storage,
 * please, whatever the reason; nowait: -EAGAIN when a peer would have to be asked. hedge (may be
 * NULL) runs when the answer is late, as far as hedge_percent allows; -EALREADY: it has the bytes.
 */
ssize_t cfs_group_read(struct cfs_group *g, const struct cfs_peer_block *b, uint32_t off,
		       uint32_t len, const struct iovec *dst, int n_dst, bool nowait,
		       struct cfs_hedge *hedge, cfs_deadline_t deadline);
/* Best effort: to the owners, and CFS_PEER_FORGET to those who may have it from before. */
void cfs_group_hint(struct cfs_group *g, const struct cfs_peer_block *b, enum cfs_peer_hint hint);

/* The block is asked for often: where this member is its first owner the others get copies. */
void cfs_group_replicate(struct cfs_group *g, const struct cfs_peer_block *b);

struct cfs_group_member {
	uint64_t id;
	char address[CFS_ADDRESS_MAX]; /* empty: serves nobody */
	char host[65], mount_point[256], version[32], volume[37];
	unsigned weight;
	unsigned rank;	  /* the weight it had, or will have, while it has none */
	bool memory_only; /* cannot keep blocks at the moment */
	bool self, fresh, tls;
	bool apart; /* of the other kind: only one of us has TLS; or of another volume */
	uint64_t cached_bytes;
	double share; /* of the blocks, 0..1 */
	enum cfs_peer_state state;
	struct cfs_peer_stats asked; /* of this member by us */
};
/* Self first; until fn returns non-zero, which is returned. */
typedef int (*cfs_group_member_fn)(void *arg, const struct cfs_group_member *m);
int cfs_group_each_member(struct cfs_group *g, cfs_group_member_fn fn, void *arg);
/*
 * Owners of a block and who of them has it cached: cached[i] 1, 0, or a negative errno where the
 * owner could not be asked. Returns how many owners there are.
 */
int cfs_group_map(struct cfs_group *g, const struct cfs_peer_block *b,
		  uint64_t owners[CFS_GROUP_REPLICAS_MAX], int cached[CFS_GROUP_REPLICAS_MAX],
		  cfs_deadline_t deadline);

struct cfs_group_stats {
	unsigned members;	     /* alive, this one included */
	unsigned apart;		     /* of members: those of the other kind */
	unsigned slow;		     /* of members: for which others stand in */
	uint64_t hits, hit_bytes;    /* ranges that a peer gave */
	uint64_t misses;	     /* that the owner did not give */
	uint64_t previous_hits;	     /* of hits: from the owner before */
	uint64_t fallbacks;	     /* of misses: because of an error or a deadline */
	uint64_t hedges, hedge_wins; /* wins: of hedges, and neither hits nor misses */
	uint64_t beats, beat_errors; /* of the registry */
	struct cfs_peer_stats asked, served;
};
void cfs_group_stats(struct cfs_group *g, struct cfs_group_stats *ret);

/*
 * The records, for commands without a member of their own: a new key (members accept it from their
 * next beat on, use it two beats later, and accept the old one until the next change), and the
 * members of all groups.
 */
int cfs_group_rotate_key(const struct cfs_group_registry *r, const char *name);
typedef int (*cfs_group_listed_fn)(void *arg, const char *group, const struct cfs_group_member *m);
int cfs_group_list(const struct cfs_group_registry *r, cfs_group_listed_fn fn, void *arg);

#endif

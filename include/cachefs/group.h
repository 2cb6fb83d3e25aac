/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache group: members of one volume that serve each other's blocks. It keeps the membership,
 * maps a block to its owners, and asks an owner for it.
 *
 * Members find each other by records in a registry that all of them reach. Each member increments a
 * counter in its own record every heartbeat interval. One of them, the leader, reads all records
 * four times per interval and publishes a membership list. A member whose counter stays the same
 * for two intervals of the leader is considered gone. The others read the changes of the list. One
 * of four deputies replaces a leader that publishes nothing. No clocks are compared. A member that
 * is gone loses its share within three intervals, however many members there are and fail with it.
 *
 * A block belongs to the members that weighted rendezvous hashing puts first, so that a member that
 * comes or goes moves its own share only. Members of weight 0, and those that share nothing, own
 * none; nor do those that cannot keep blocks while others can. Blocks that they cached earlier can
 * still be read from them. Members with TLS and members without do not connect to each other: each
 * kind forms its own group. Mounts of an earlier volume in the same database, which have not ended
 * yet, are separate in the same way.
 *
 * Threads: any, unless said otherwise. Nothing waits without a deadline.
 */
#ifndef CFS_GROUP_H
#define CFS_GROUP_H

#include <cachefs/async.h>
#include <cachefs/transport.h>

#include "base/hedge.h"

struct cfs_group;

/*
 * The registry of members and of the group's key; functions as cfs_meta_put_record and its
 * neighbours. Each has its own deadline. drop of a record that is not there: 0.
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

enum cfs_group_rdma {
	CFS_GROUP_RDMA_OFF,
	CFS_GROUP_RDMA_ON,   /* -ENOENT without the module; a device may come later */
	CFS_GROUP_RDMA_AUTO, /* where there is the module, and a device at the start */
};

struct cfs_group_conf {
	const char *name;   /* letters, digits, '-', '_', '.'; at most CFS_GROUP_NAME_MAX */
	uint64_t member;    /* stable id, not 0: the same after a restart on the same cache */
	const char *volume; /* its UUID; slice numbers repeat between volumes */
	const char *host, *mount_point, *version; /* to be shown */
	unsigned weight;
	bool no_sharing;    /* reads from others, serves no blocks */
	unsigned replicas;  /* owners of a block, 1 to CFS_GROUP_REPLICAS_MAX; 0: 1 */
	uint64_t backup_ms; /* for so long after joining, a miss asks the previous owners first */
	uint64_t heartbeat_ms; /* 0: 5 s */
	uint64_t timeout_ms;   /* longest wait for a peer before object storage is asked; 0: 2 s */
	const char *address;   /* to listen on, a number; NULL: the first private one */
	const char *network;   /* "10.1.0.0/16": choose the address from it */
	unsigned port;	       /* 0: any */
	bool allow_public;
	enum cfs_peer_transport transport;
	enum cfs_group_rdma rdma;
	uint64_t rdma_bytes;	 /* as of cfs_transport_conf, unless CFS_GROUP_RDMA_OFF */
	unsigned max_conns;	 /* to one peer; 0: the transport's */
	uint64_t inflight_bytes; /* being served; 0: the transport's */
	uint64_t request_rate;	 /* per second and connection; 0: no limit */
	unsigned hedge_percent;	 /* of requests to members, at most; 0: none */
	struct cfs_group_registry registry; /* borrowed */
	const struct cfs_peer_serve_ops *ops;
	void *ops_arg;
	uint64_t (*cached_bytes)(void *arg); /* to be shown; with ops_arg; may be NULL */
	/* Whether blocks can be kept now; with ops_arg, on any thread. NULL: always. */
	bool (*keeps)(void *arg);
	/*
	 * cfs_group_service_us() of object storage; 0: unknown. With ops_arg, on any thread. NULL:
	 * unknown.
	 */
	uint64_t (*bucket_us)(void *arg);
};

#define CFS_GROUP_NAME_MAX     64
#define CFS_GROUP_WEIGHT       100 /* of a member that names none */
#define CFS_GROUP_REPLICAS_MAX 3

/*
 * Joins: makes the key when this is the first member, listens, publishes itself. err: one line.
 * -EINVAL, -EADDRNOTAVAIL and others of cfs_transport_create, of the registry.
 */
int cfs_group_join(const struct cfs_group_conf *conf, struct cfs_group **ret, char err[256]);
/* Tells the other members; requests that have arrived are still answered. */
void cfs_group_leave(struct cfs_group *g);
/* After leave, when no thread calls the group any more. */
void cfs_group_destroy(struct cfs_group *g);

/* This member is one of the block's owners. */
bool cfs_group_owns(struct cfs_group *g, const struct cfs_peer_block *b);
/* Whether requests for the block fail over to this member when its owner is slow. */
bool cfs_group_may_fail_over(struct cfs_group *g, const struct cfs_peer_block *b);
/*
 * Microseconds per 128 KiB, from the total time and bytes of some answers; each answer counts as 32
 * KiB more.
 */
uint64_t cfs_group_service_us(uint64_t ns, uint64_t bytes, uint64_t answers);
/* True when this member keeps blocks for others; it need not keep blocks that it does not own. */
bool cfs_group_shares(struct cfs_group *g);
/*
 * Bytes of a block from a member that should have it. Returns len. -ENOENT: the caller reads object
 * storage instead, for whatever reason. -EREMCHG: the same, and keeps the block, as requests that
 * its owner refuses fail over to this member. nowait: -EAGAIN when a peer would have to be asked. hedge
 * (may be NULL) runs when the answer is late, as far as hedge_percent allows; -EALREADY: the hedge
 * has the bytes.
 */
ssize_t cfs_group_read(struct cfs_group *g, const struct cfs_peer_block *b, uint32_t off,
		       uint32_t len, const struct iovec *dst, int n_dst, bool nowait,
		       struct cfs_hedge *hedge, cfs_deadline_t deadline);
/*
 * Starts a read of a->len bytes that no thread waits for (cachefs/async.h), when this is of use:
 * several requests are under way to the owner, and its last answers came soon. 0: started; -EAGAIN:
 * the caller calls cfs_group_read(). Never waits.
 */
int cfs_group_start(struct cfs_group *g, const struct cfs_peer_block *b, uint32_t off,
		    struct cfs_async *a);
/*
 * Best effort: to the owners, and CFS_PEER_FORGET also to members that may have cached it earlier.
 */
void cfs_group_hint(struct cfs_group *g, const struct cfs_peer_block *b, enum cfs_peer_hint hint);

/* For a block that is read often: the first owner sends copies to the other owners. */
void cfs_group_replicate(struct cfs_group *g, const struct cfs_peer_block *b);

struct cfs_group_member {
	uint64_t id;
	char address[CFS_ADDRESS_MAX]; /* empty: serves no blocks */
	char host[65], mount_point[256], version[32], volume[37];
	unsigned weight;
	unsigned rank;	  /* the configured weight, also while its weight is 0 */
	bool memory_only; /* cannot keep blocks at the moment */
	bool self, fresh;
	enum cfs_peer_transport transport;
	bool rdma;	   /* has an RDMA device at present, as its record says */
	bool incompatible; /* is not asked: TLS on one side only, or of another volume */
	uint64_t cached_bytes;
	double share; /* of the blocks, 0..1 */
	enum cfs_peer_state state;
	struct cfs_peer_stats asked; /* of requests from this process to it */
};
/* This member first; ends when fn returns non-zero, and returns that. */
typedef int (*cfs_group_member_fn)(void *arg, const struct cfs_group_member *m);
int cfs_group_each_member(struct cfs_group *g, cfs_group_member_fn fn, void *arg);
/*
 * Owners of a block, and whether each has it cached: cached[i] is 1, 0, or a negative errno where
 * the owner could not be asked. Returns how many owners there are.
 */
int cfs_group_map(struct cfs_group *g, const struct cfs_peer_block *b,
		  uint64_t owners[CFS_GROUP_REPLICAS_MAX], int cached[CFS_GROUP_REPLICAS_MAX],
		  cfs_deadline_t deadline);

struct cfs_group_stats {
	unsigned members;		       /* alive, this one included */
	unsigned incompatible;		       /* of members: not asked */
	unsigned slow;			       /* of members: requests fail over to others */
	uint64_t hits, hit_bytes;	       /* ranges that a peer gave */
	uint64_t misses;		       /* that the owner did not give */
	uint64_t previous_hits;		       /* of hits: from the previous owner */
	uint64_t fallbacks;		       /* of misses: because of an error or a deadline */
	uint64_t async, async_repeats;	       /* reads that no thread waited for; that failed */
	uint64_t hedges, hedge_wins;	       /* wins: of hedges, and neither hits nor misses */
	uint64_t heartbeats, heartbeat_errors; /* of the registry */
	struct cfs_peer_stats asked, served;
};
void cfs_group_stats(struct cfs_group *g, struct cfs_group_stats *ret);

/*
 * The registry, for commands that are no member. Makes another key: members accept it from their
 * next heartbeat on, use it two heartbeats later, and accept the old one until the next change.
 * Lists the members of all groups.
 */
int cfs_group_rotate_key(const struct cfs_group_registry *r, const char *name);
typedef int (*cfs_group_listed_fn)(void *arg, const char *group, const struct cfs_group_member *m);
int cfs_group_list(const struct cfs_group_registry *r, cfs_group_listed_fn fn, void *arg);

#endif

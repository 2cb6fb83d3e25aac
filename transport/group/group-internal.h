/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the cache group.
 *
 *	group.c      joining and leaving, requests
 *	members.c    the list of members in the registry
 *	heartbeat.c  makes nodes of them at every tick
 *	snapshot.c   makes an immutable snapshot of the nodes for requests
 *	locate.c     finds a member that has a block
 *	hedge.c      late answers
 *	slow.c       slow peers; failover.c: the members that are asked instead
 *	record.c     records of the registry: members and keys
 *	placement.c  the owners of a block
 *
 * Locks: `lock` protects the pointer to the snapshot and the members' figures that change while a
 * snapshot is in use. Nothing is called under it.
 */
#ifndef CFS_GROUP_INTERNAL_H
#define CFS_GROUP_INTERNAL_H

#include <cachefs/group.h>
#include <pthread.h>
#include <stdatomic.h>

#include "hedge.h"
#include "placement.h"

#define CFS_GROUP_KEY_MAX 128

/* A member's record. */
struct group_record {
	struct cfs_group_member member;
	struct sockaddr_storage addr; /* of member.address */
	socklen_t addr_len;
	uint64_t boot;	       /* random, for each life of the member */
	uint64_t number;       /* grows by one with each heartbeat */
	uint64_t heartbeat_ms; /* its heartbeat period */
	uint64_t info; /* version of the description, in a record of its own; 0: in this one */
};

struct group_key {
	uint8_t now[CFS_PEER_KEY_SIZE], old[CFS_PEER_KEY_SIZE];
	bool has_old;
};

struct group_node {
	unsigned refs; /* held by snapshots and by the heartbeat's table */
	struct cfs_group_member member;
	struct cfs_peer *peer; /* NULL: ourselves, or a member that does not serve others */
	struct cfs_latency latency;

	bool seen; /* used by the heartbeat: it is in the list */
};

struct group_snapshot {
	atomic_uint users;	     /* requests */
	struct group_snapshot *next; /* of g->replaced */
	struct cfs_placement *all;   /* of nodes */
	/*
	 * The placement as if no member were drained: it ranks previous owners of a block, from before
	 * others joined or before it was drained, first or next to the current owner.
	 */
	struct cfs_placement *previous;
	bool keepers; /* some members can keep blocks, so those that cannot own none */
	bool drained; /* some members own no blocks, and may still have many cached */
	size_t n;
	struct group_node *nodes[];
};

struct cfs_group {
	char name[CFS_GROUP_NAME_MAX + 1];
	struct cfs_group_registry registry;
	uint64_t heartbeat_ms, timeout_ms, backup_ms, joined_ms;
	unsigned replicas;
	bool shares;
	struct cfs_hedging hedging;
	uint64_t (*cached_bytes)(void *arg);
	bool (*keeps)(void *arg);
	uint64_t (*bucket_us)(void *arg);
	void *ops_arg;
	struct cfs_transport *transport;
	struct cfs_ticker *ticker;

	/* Used by the heartbeat, and by joining before it starts */
	struct group_record self;
	char device[IF_NAMESIZE]; /* of our address; empty: the address was given */
	char network[64];	  /* that it is chosen from; empty: any */
	uint64_t moved_ms;	  /* since when it is gone; 0: it is there */
	struct cfs_members *members;
	struct group_key key;
	unsigned key_heartbeats; /* heartbeats since it was first read */
	uint64_t key_ms;
	struct group_node **nodes; /* sorted by id, including our own */
	size_t n_nodes;
	bool had_others; /* others were present when we joined */
	bool listed;	 /* we are in the list */
	bool changed;	 /* the nodes have changed since the snapshot was made */
	bool heartbeat_failed;
	struct group_snapshot *replaced; /* snapshots that may still have users */
	atomic_bool fenced;		 /* another mount has our id; set by the heartbeat */

	pthread_mutex_t lock;
	struct group_snapshot *snapshot;

	struct {
		_Atomic uint64_t hits, hit_bytes, misses, previous_hits, fallbacks;
		_Atomic uint64_t async, async_repeats;
		_Atomic uint64_t heartbeats, heartbeat_errors;
	} stat;
};

/* ---- snapshot.c ---- */

/*
 * The current snapshot, which does not change, until cfs_group_snapshot_unref(). Any thread, also the
 * transport's; neither waits.
 */
struct group_snapshot *cfs_group_snapshot_ref(struct cfs_group *g);
void cfs_group_snapshot_unref(struct group_snapshot *v);
/*
 * The heartbeat's: publishes a snapshot of g->nodes; frees replaced ones without users; drops a
 * reference of a node. The last two may close peers, and then wait for the transport's thread.
 */
int cfs_group_snapshot_publish(struct cfs_group *g);
void cfs_group_snapshot_reap(struct cfs_group *g);
void cfs_group_node_unref(struct group_node *n);
/* No thread uses a snapshot any more. */
void cfs_group_snapshot_free(struct cfs_group *g);
/* Up to n owners of the block, best first; p: a placement of v. Valid as long as v. */
unsigned cfs_group_snapshot_pick(const struct group_snapshot *v, const struct cfs_placement *p,
				 const struct cfs_peer_block *b, unsigned n,
				 struct group_node **ret);

/* Its weight among the owners; 0: it owns nothing. */
unsigned cfs_group_snapshot_weight(const struct group_snapshot *v,
				   const struct cfs_group_member *m);

/* ---- locate.c ---- */

/* Asks up to CFS_PLACEMENT_PICK_MAX nodes, all with a peer: the first that has the block, or
 * -ENOENT. */
int cfs_group_locate(struct group_node *const *nodes, unsigned n, const struct cfs_peer_block *b,
		     cfs_deadline_t deadline);

/* ---- failover.c ---- */

struct group_owner {
	struct group_node *node;
	bool failover; /* is asked because an owner is slow or left out */
};
/*
 * The block's owners and the members that requests fail over to, best first, without those that
 * are slow or left out; slow ones are probed when it is time. The first g->replicas of them count
 * as owners.
 */
unsigned cfs_group_pick_askable(struct cfs_group *g, const struct group_snapshot *v,
				const struct cfs_peer_block *b, bool probe,
				struct group_owner ret[CFS_PLACEMENT_PICK_MAX]);
/* The judge function of a node's latency.slow; arg: the group. */
void cfs_group_judge(void *arg, struct cfs_slow *s, uint64_t us);

/* ---- heartbeat.c ---- */

struct cfs_members;
int cfs_group_heartbeat_init(struct cfs_group *g);
/* Called after the ticker has ended. */
void cfs_group_heartbeat_leave(struct cfs_group *g);
void cfs_group_heartbeat_free(struct cfs_group *g);

/* One tick. */
void cfs_group_heartbeat(void *arg);
/* The first heartbeat, whose failure goes to the caller. */
int cfs_group_heartbeat_once(struct cfs_group *g);
/* Gives the transport the keys that were read. */
void cfs_group_use_key(struct cfs_group *g);

/* ---- record.c ---- */

bool cfs_group_is_name(const char *name);
void cfs_group_member_table(const char *name, char table[CFS_GROUP_KEY_MAX]);
void cfs_group_member_key(const char *name, uint64_t id, char key[CFS_GROUP_KEY_MAX]);
void cfs_group_info_table(const char *name, char table[CFS_GROUP_KEY_MAX]);
void cfs_group_info_key(const char *name, uint64_t id, char key[CFS_GROUP_KEY_MAX]);
/* Truncates text to size and replaces bytes that JSON cannot hold: a path need not be text. src:
 * may be NULL. */
void cfs_group_copy_text(char *dst, size_t size, const char *src);
/* The record that changes with each heartbeat, and the description. malloc'ed; NULL without
 * memory. */
char *cfs_group_encode(const struct group_record *r);
char *cfs_group_encode_info(const struct group_record *r);
/* A record that has its description, or a description. -EINVAL: it is neither. */
int cfs_group_decode(const void *value, size_t len, struct group_record *ret);
int cfs_group_decode_info(const void *value, size_t len, struct group_record *ret);
/* Decodes the part that changes with each heartbeat. *ret_at: where the description begins, if
 * ret->info is 0. */
int cfs_group_decode_heartbeat(const void *value, size_t len, struct group_record *ret,
			       size_t *ret_at);
/* Lists one group; as cfs_group_list. */
int cfs_group_list_one(const struct cfs_group_registry *reg, const char *name,
		       cfs_group_listed_fn fn, void *arg);
/* "10.0.0.1:7000", "[fd00::1]:7000" */
int cfs_group_parse_endpoint(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len);
/* Reads the group's key. 1; 0: the group has none yet; or an error. */
int cfs_group_read_key(const struct cfs_group_registry *reg, const char *name,
		       struct group_key *ret);
/* The same, and creates a missing key. 0, or an error. */
int cfs_group_get_key(const struct cfs_group_registry *reg, const char *name,
		      struct group_key *ret);
/* Removes a key in a form that this version does not read. */
void cfs_group_drop_foreign_key(const struct cfs_group_registry *reg, const char *name);
/* A numeric address, v4 or v6, without port. -EINVAL. */
int cfs_group_parse_address(const char *text, unsigned port, struct sockaddr_storage *ret,
			    socklen_t *ret_len);
void cfs_group_set_port(struct sockaddr_storage *addr, unsigned port);
unsigned cfs_group_port(const struct sockaddr_storage *addr);

#endif

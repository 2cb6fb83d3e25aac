/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of a cache group. */
#include <cachefs/peers.h>

#include "base/metric.h"

_Static_assert(sizeof(struct cfs_group_stats) <= CFS_METRIC_SNAPSHOT_MAX, "they fit");

static void snapshot(void *peers, void *ret)
{
	cfs_group_stats(cfs_peers_group(peers), ret);
}

#define M(n, h, field)	   CFS_METRIC(struct cfs_group_stats, n, NULL, h, field)
#define L(n, l, h, field)  CFS_METRIC(struct cfs_group_stats, n, l, h, field)
#define NS(n, l, h, field) CFS_METRIC_NS(struct cfs_group_stats, n, l, h, field)
#define BOTH(K, name, help, field)                                                                 \
	K(name, "direction=\"asked\"", help, asked.field),                                         \
		K(name, "direction=\"served\"", help, served.field)
#define CONNECTIONS(way, s)                                                                        \
	CONNECTION(way, s, "none", CFS_PEER_TCP), CONNECTION(way, s, "openssl", CFS_PEER_TLS),     \
		CONNECTION(way, s, "kernel", CFS_PEER_KTLS)
#define CONNECTION(way, s, tls, i)                                                                 \
	L("peer_connections", "direction=\"" way "\",tls=\"" tls "\"",                             \
	  "Open connections between members", s.conns_by[i])
#define ERRORS(way, s)                                                                             \
	ERROR(way, s, "connect", CFS_PEER_E_CONNECT), ERROR(way, s, "auth", CFS_PEER_E_AUTH),      \
		ERROR(way, s, "timeout", CFS_PEER_E_TIMEOUT),                                      \
		ERROR(way, s, "lost", CFS_PEER_E_LOST),                                            \
		ERROR(way, s, "protocol", CFS_PEER_E_PROTOCOL),                                    \
		ERROR(way, s, "checksum", CFS_PEER_E_CHECKSUM),                                    \
		ERROR(way, s, "busy", CFS_PEER_E_BUSY),                                            \
		ERROR(way, s, "remote", CFS_PEER_E_REMOTE),                                        \
		ERROR(way, s, "canceled", CFS_PEER_E_CANCELED)
#define ERROR(way, s, kind, e)                                                                     \
	L("peer_errors_total", "direction=\"" way "\",kind=\"" kind "\"",                          \
	  "Requests between members that failed", s.errors[e])
static const struct cfs_metric metrics[] = {
	M("peer_members", "Members of the cache group", members),
	M("peer_members_apart",
	  "Of these the ones that are not asked: only one side has group-tls, or another volume",
	  incompatible),
	M("peer_members_slow", "Of these the ones that are slow, so that others stand in for them",
	  slow),
	M("peer_hits_total", "Reads served by other members", hits),
	M("peer_hit_bytes_total", "Data served by other members", hit_bytes),
	M("peer_misses_total", "Reads that no other member could serve", misses),
	M("peer_fallbacks_total", "Of these because of an error or a deadline", fallbacks),
	M("peer_hedges_total", "Reads sent to the object store, too, as another member was late",
	  hedges),
	M("peer_hedge_wins_total", "Of these the ones that the object store answered first",
	  hedge_wins),
	BOTH(L, "peer_requests_total", "Requests between members that ended well", requests),
	M("peer_requests_direct_total",
	  "Requests to members whose answer was received by the thread that waited for it",
	  asked.direct),
	M("peer_async_reads_total", "Reads from members that no thread waited for", async),
	M("peer_async_repeats_total", "Of these the ones that a thread had to repeat",
	  async_repeats),
	M("peer_requests_rdma_total",
	  "Requests to members that were read from their memory, without a thread of theirs",
	  asked.rdma),
	BOTH(L, "peer_rdma_connections", "Open RDMA connections between members",
	     conns_by[CFS_PEER_RDMA]),
	M("peer_rdma_blocks", "Blocks in memory that other members read by RDMA",
	  served.rdma_blocks),
	M("peer_rdma_block_bytes", "Their size", served.rdma_block_bytes),
	M("peer_rdma_loads_total", "Blocks loaded into that memory", served.rdma_loads),
	M("peer_rdma_load_failures_total", "Blocks that could not be read, or were damaged",
	  served.rdma_load_failures),
	M("peer_rdma_evictions_total", "Blocks evicted from that memory", served.rdma_evictions),
	M("peer_rdma_no_room_total", "Hot blocks not loaded, as others were being read",
	  served.rdma_no_room),
	BOTH(L, "peer_bytes_total", "Data sent between members", bytes),
	BOTH(L, "peer_request_misses_total", "Requests for what the other did not have", misses),
	BOTH(NS, "peer_request_seconds_total", "Time that requests between members took",
	     latency_ns),
	CONNECTIONS("asked", asked),
	CONNECTIONS("served", served),
	BOTH(L, "peer_inflight_bytes", "Data being sent between members", inflight_bytes),
	ERRORS("asked", asked),
	ERRORS("served", served),
};

const struct cfs_metric_table cfs_peers_metrics = CFS_METRIC_TABLE(metrics, .snapshot = snapshot);

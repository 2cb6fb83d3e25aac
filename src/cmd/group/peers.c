/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/group/peers.h"

#include <cachefs/records.h>
#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "cmd/access/jsontext.h"
#include "config.h"

#define RECORD_TIMEOUT_MS 10000

/* ---- the registry ---- */

static int put_record(void *arg, const char *key, const void *value, size_t len, bool fresh)
{
	struct cfs_ctx ctx = cfs_ctx_internal(RECORD_TIMEOUT_MS);

	return cfs_meta_put_record(arg, &ctx, key, value, len, fresh);
}

static int swap_record(void *arg, const char *key, const void *old, size_t old_len,
		       const void *value, size_t len)
{
	struct cfs_ctx ctx = cfs_ctx_internal(RECORD_TIMEOUT_MS);

	return cfs_meta_swap_record(arg, &ctx, key, old, old_len, value, len);
}

static int get_record(void *arg, const char *key, cfs_group_record_fn fn, void *fn_arg)
{
	struct cfs_ctx ctx = cfs_ctx_internal(RECORD_TIMEOUT_MS);

	return cfs_meta_get_record(arg, &ctx, key, fn, fn_arg);
}

static int drop_record(void *arg, const char *key)
{
	struct cfs_ctx ctx = cfs_ctx_internal(RECORD_TIMEOUT_MS);

	return cfs_meta_drop_record(arg, &ctx, key);
}

static int each_record(void *arg, const char *table, cfs_group_record_fn fn, void *fn_arg)
{
	struct cfs_ctx ctx = cfs_ctx_internal(RECORD_TIMEOUT_MS);

	return cfs_meta_each_record(arg, &ctx, table, fn, fn_arg);
}

/* Borrows m. */
static struct cfs_group_registry registry_of(struct cfs_meta *m)
{
	return (struct cfs_group_registry){.put = put_record,
					   .swap = swap_record,
					   .drop = drop_record,
					   .get = get_record,
					   .each = each_record,
					   .arg = m};
}

/* ---- a mount's membership ---- */

/* The id is the same after a restart: a member that comes back owns what its cache still has. */
static uint64_t member_id(const struct mount_opts *o, const char *dir,
			  const struct cfs_setting *setting, const char *host)
{
	cfs_auto_free char *text = NULL;
	unsigned char sum[EVP_MAX_MD_SIZE];
	char machine[64] = "";
	uint64_t id;
	FILE *f = fopen("/etc/machine-id", "re");
	int len;

	if (f) {
		if (!fgets(machine, sizeof(machine), f))
			machine[0] = '\0';
		fclose(f);
	}
	len = asprintf(&text, "%s\n%s\n%s\n%s\n%s", machine, host, setting->uuid, dir,
		       o->cache_dir ? o->cache_dir : "");
	if (len < 0) {
		text = NULL;
		return cfs_random_u64() | 1;
	}
	if (!EVP_Digest(text, (size_t)len, sum, NULL, EVP_sha256(), NULL))
		return cfs_random_u64() | 1;
	memcpy(&id, sum, sizeof(id));
	return id ? id : 1;
}

int peers_start(const struct mount_opts *o, const char *dir, const struct cfs_setting *setting,
		struct cfs_meta *meta, struct cfs_store *store, struct cfs_disk *disk,
		struct cfs_peers **ret, char err[256])
{
	char host[65] = "";
	struct cfs_peers_conf conf = {
		.store = store,
		.disk = disk,
		.fill = o->fill_group_cache,
		.group =
			{
				.name = o->cache_group,
				.volume = setting->uuid,
				.host = host,
				.mount_point = dir,
				.version = CFS_VERSION,
				.weight = (unsigned)o->group_weight,
				/* A read-only member cannot publish its address. */
				.no_sharing = o->no_sharing || o->ro,
				.replicas = (unsigned)o->group_replicas,
				.backup_ms = o->group_backup_ms,
				.heartbeat_ms = o->group_beat_ms,
				.timeout_ms = o->group_timeout_ms,
				.address = o->group_ip,
				.network = o->group_network,
				.port = (unsigned)o->group_port,
				.allow_public = o->group_allow_public,
				.transport = o->group_tls ? CFS_PEER_TLS : CFS_PEER_TCP,
				.rdma = o->group_tls ? CFS_GROUP_RDMA_OFF
						     : (enum cfs_group_rdma)o->group_transport,
				.rdma_bytes = o->group_rdma_buffer,
				.max_conns = (unsigned)o->group_max_conns,
				.inflight_bytes = o->group_max_inflight,
				.request_rate = (uint64_t)o->group_max_requests,
				.hedge_percent = (unsigned)o->group_hedge,
				.registry = registry_of(meta),
			},
	};

	if (!o->cache_group)
		return 0;
	gethostname(host, sizeof(host) - 1);
	conf.group.member = member_id(o, dir, setting, host);
	return cfs_peers_join(&conf, ret, err);
}

void peers_leave(struct cfs_peers *p)
{
	if (p)
		cfs_peers_leave(p);
}

void peers_destroy(struct cfs_peers *p)
{
	if (p)
		cfs_peers_destroy(p);
}

/* ---- members as JSON ---- */

static json_t *member_json(const struct cfs_group_member *m)
{
	char id[17];

	snprintf(id, sizeof(id), "%016" PRIx64, m->id);
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:i, s:b, s:b, s:b, s:b, s:I}", "id", id,
			 "address", m->address, "host", json_text(m->host), "mount_point",
			 json_text(m->mount_point), "version", json_text(m->version), "weight",
			 (int)m->weight, "fresh", m->fresh, "tls", m->transport == CFS_PEER_TLS,
			 "rdma", m->rdma, "memory_only", m->memory_only, "cached_bytes",
			 (json_int_t)m->cached_bytes);
}

static int add_recorded(void *arg, const char *group, const struct cfs_group_member *m)
{
	json_t *groups = arg, *members = json_object_get(groups, group);

	if (!members) {
		members = json_array();
		json_object_set_new(groups, group, members);
	}
	return json_array_append_new(members, member_json(m)) < 0 ? -ENOMEM : 0;
}

json_t *peers_recorded(struct cfs_meta *m)
{
	struct cfs_group_registry r = registry_of(m);
	json_t *groups = json_object();

	if (cfs_group_list(&r, add_recorded, groups) == 0)
		return groups;
	json_decref(groups);
	return NULL;
}

static const char *state_name(const struct cfs_group_member *m)
{
	if (m->self)
		return "self";
	if (!m->address[0])
		return "no-sharing";
	if (m->incompatible)
		return "incompatible";
	switch (m->state) {
	case CFS_PEER_OPEN_CIRCUIT:
		return "left out";
	case CFS_PEER_HALF_OPEN:
		return "probed";
	case CFS_PEER_CLOSED_CIRCUIT:
		break;
	}
	return m->memory_only ? "memory only" : m->fresh ? "fresh" : "ok";
}

/* The carrier of what this member asks of m. */
static const char *transport_name(const struct cfs_group_member *m)
{
	return cfs_peer_transport_name(m->asked.conns_by[CFS_PEER_RDMA] > 0 ? CFS_PEER_RDMA
									    : m->transport);
}

static int add_seen(void *arg, const struct cfs_group_member *m)
{
	json_t *j = member_json(m);

	json_object_set_new(j, "state", json_string(state_name(m)));
	json_object_set_new(j, "transport", json_string(transport_name(m)));
	json_object_set_new(j, "share", json_real(m->share));
	json_object_set_new(j, "requests", json_integer((json_int_t)m->asked.requests));
	json_object_set_new(j, "bytes", json_integer((json_int_t)m->asked.bytes));
	return json_array_append_new(arg, j) < 0 ? -ENOMEM : 0;
}

json_t *peers_seen(struct cfs_peers *p)
{
	json_t *members = json_array();

	cfs_group_each_member(cfs_peers_group(p), add_seen, members);
	return members;
}

json_t *peers_block(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline)
{
	uint64_t owners[CFS_GROUP_REPLICAS_MAX];
	int cached[CFS_GROUP_REPLICAS_MAX], i, n = cfs_peers_map(p, b, owners, cached, deadline);
	json_t *list = json_array();
	char id[17];

	for (i = 0; i < n; i++) {
		snprintf(id, sizeof(id), "%016" PRIx64, owners[i]);
		json_array_append_new(list,
				      json_pack("{s:s, s:o}", "id", id, "cached",
						cached[i] < 0 ? json_string(cfs_errname(cached[i]))
							      : json_boolean(cached[i])));
	}
	return list;
}

bool peers_have(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline)
{
	uint64_t owners[CFS_GROUP_REPLICAS_MAX];
	int cached[CFS_GROUP_REPLICAS_MAX], i, n = cfs_peers_map(p, b, owners, cached, deadline);

	for (i = 0; i < n; i++) {
		if (cached[i] == 1)
			return true;
	}
	return false;
}

int peers_rotate_key(struct cfs_meta *m, const char *group, char err[256])
{
	struct cfs_group_registry registry = registry_of(m);
	int r = cfs_group_rotate_key(&registry, group);

	if (r == -ENOENT)
		snprintf(err, 256, "there is no cache group %.100s yet", group);
	else if (r < 0)
		snprintf(err, 256, "the key of cache group %.100s could not be changed: %s", group,
			 strerror(-r));
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry entries of a cache group, as JSON:
 *
 *	group.member.NAME/ID	one per member, written by it at every heartbeat:
 *				BOOT NUMBER BYTES HEARTBEAT_MS VERSION
 *	group.info.NAME/ID	the description of a member, written by it when it changes:
 *				BOOT VERSION {description}
 *	group.list.NAME/...	who is there: members.c
 *	group.key/NAME		the key that members prove to have, and the previous one
 *
 * While the leader does not read descriptions (members.h), the first record has the description in
 * place of VERSION.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "group-internal.h"
#include "sorted.h"

#define MEMBERS_TABLE	 "group.member."
#define INFOS_TABLE	 "group.info."
#define KEYS_TABLE	 "group.key"
#define HEARTBEAT_MAX_MS (60 * 60 * 1000)

bool cfs_group_is_name(const char *name)
{
	size_t i;

	for (i = 0; name[i]; i++) {
		if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i]))
			return false;
	}
	return i > 0 && i <= CFS_GROUP_NAME_MAX;
}

void cfs_group_member_table(const char *name, char table[CFS_GROUP_KEY_MAX])
{
	snprintf(table, CFS_GROUP_KEY_MAX, MEMBERS_TABLE "%s", name);
}

void cfs_group_member_key(const char *name, uint64_t id, char key[CFS_GROUP_KEY_MAX])
{
	snprintf(key, CFS_GROUP_KEY_MAX, MEMBERS_TABLE "%s/%016" PRIx64, name, id);
}

void cfs_group_info_table(const char *name, char table[CFS_GROUP_KEY_MAX])
{
	snprintf(table, CFS_GROUP_KEY_MAX, INFOS_TABLE "%s", name);
}

void cfs_group_info_key(const char *name, uint64_t id, char key[CFS_GROUP_KEY_MAX])
{
	snprintf(key, CFS_GROUP_KEY_MAX, INFOS_TABLE "%s/%016" PRIx64, name, id);
}

/* ---- addresses ---- */

void cfs_group_set_port(struct sockaddr_storage *addr, unsigned port)
{
	if (addr->ss_family == AF_INET)
		((struct sockaddr_in *)addr)->sin_port = htons((uint16_t)port);
	else
		((struct sockaddr_in6 *)addr)->sin6_port = htons((uint16_t)port);
}

unsigned cfs_group_port(const struct sockaddr_storage *addr)
{
	return ntohs(addr->ss_family == AF_INET ? ((const struct sockaddr_in *)addr)->sin_port
						: ((const struct sockaddr_in6 *)addr)->sin6_port);
}

int cfs_group_parse_address(const char *text, unsigned port, struct sockaddr_storage *ret,
			    socklen_t *ret_len)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)ret;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret;

	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		ret->ss_family = AF_INET;
		*ret_len = sizeof(*v4);
	} else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		ret->ss_family = AF_INET6;
		*ret_len = sizeof(*v6);
	} else {
		return -EINVAL;
	}
	cfs_group_set_port(ret, port);
	return 0;
}

int cfs_group_parse_endpoint(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	char host[CFS_ADDRESS_MAX], *end;
	const char *colon = strrchr(text, ':'), *from = text;
	unsigned long port;
	size_t len;

	if (!colon)
		return -EINVAL;
	len = (size_t)(colon - text);
	if (*text == '[') {
		if (len < 2 || colon[-1] != ']')
			return -EINVAL;
		from++;
		len -= 2;
	}
	if (len >= sizeof(host))
		return -EINVAL;
	memcpy(host, from, len);
	host[len] = '\0';
	port = strtoul(colon + 1, &end, 10);
	if (!isdigit((unsigned char)colon[1]) || *end || port == 0 || port > 65535)
		return -EINVAL;
	return cfs_group_parse_address(host, (unsigned)port, ret, ret_len);
}

/* ---- members ---- */

void cfs_group_copy_text(char *dst, size_t size, const char *src)
{
	json_t *text;
	size_t i;

	snprintf(dst, size, "%s", src ? src : "");
	text = json_string(dst);
	for (i = 0; !text && dst[i]; i++) {
		if ((unsigned char)dst[i] >= 0x80)
			dst[i] = '?';
	}
	json_decref(text);
}

/* As JSON, malloc'ed. */
static char *description_of(const struct cfs_group_member *m)
{
	char id[17], *text;
	json_t *j;

	snprintf(id, sizeof(id), "%016" PRIx64, m->id);
	j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:b, s:b, s:b}", "id", id, "volume",
		      m->volume, "address", m->address, "host", m->host, "mount", m->mount_point,
		      "version", m->version, "weight", (int)m->weight, "rank", (int)m->rank,
		      "fresh", m->fresh, "tls", m->transport == CFS_PEER_TLS, "memory_only",
		      m->memory_only);
	/* Older versions of cachefs neither write nor read it. */
	if (j && m->rdma && json_object_set_new(j, "rdma", json_true()) < 0) {
		json_decref(j);
		j = NULL;
	}
	text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	return text;
}

char *cfs_group_encode(const struct group_record *r)
{
	char *text = r->info ? NULL : description_of(&r->member), *ret = NULL;
	int n;

	if (r->info)
		n = asprintf(&ret, "%" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64,
			     r->boot, r->number, r->member.cached_bytes, r->heartbeat_ms, r->info);
	else
		n = text ? asprintf(&ret, "%" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s",
				    r->boot, r->number, r->member.cached_bytes, r->heartbeat_ms,
				    text)
			 : -1;
	free(text);
	return n < 0 ? NULL : ret;
}

char *cfs_group_encode_info(const struct group_record *r)
{
	cfs_auto_free char *text = description_of(&r->member);
	char *ret;

	if (!text || asprintf(&ret, "%" PRIx64 " %" PRIu64 " %s", r->boot, r->info, text) < 0)
		return NULL;
	return ret;
}

static bool copy_text(char *dst, size_t size, const char *src)
{
	return (size_t)snprintf(dst, size, "%s", src) < size;
}

/* The list can hold the text as one word, in which "-" means empty. */
static bool is_word(const char *text)
{
	return !text[strcspn(text, " \t\n\v\f\r")] && strcmp(text, "-") != 0;
}

static int decode_json(json_t *j, struct group_record *ret)
{
	const char *id, *address, *host, *mount, *version, *volume;
	struct cfs_group_member *m = &ret->member;
	int weight, rank, fresh, tls, memory_only, rdma = 0;
	char *end;

	if (json_unpack(j, "{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:b, s:b, s:b, s?b}", "id",
			&id, "volume", &volume, "address", &address, "host", &host, "mount", &mount,
			"version", &version, "weight", &weight, "rank", &rank, "fresh", &fresh,
			"tls", &tls, "memory_only", &memory_only, "rdma", &rdma) < 0)
		return -EINVAL;
	m->id = strtoull(id, &end, 16);
	if (!m->id || *end || weight < 0 || rank < 0 || !is_word(volume) ||
	    !copy_text(m->address, sizeof(m->address), address) ||
	    !copy_text(m->host, sizeof(m->host), host) ||
	    !copy_text(m->mount_point, sizeof(m->mount_point), mount) ||
	    !copy_text(m->version, sizeof(m->version), version) ||
	    !copy_text(m->volume, sizeof(m->volume), volume))
		return -EINVAL;
	m->weight = (unsigned)weight;
	m->rank = (unsigned)rank;
	m->fresh = fresh;
	m->transport = tls ? CFS_PEER_TLS : CFS_PEER_TCP;
	m->memory_only = memory_only;
	m->rdma = rdma;
	return *address ? cfs_group_parse_endpoint(address, &ret->addr, &ret->addr_len) : 0;
}

int cfs_group_decode_heartbeat(const void *value, size_t len, struct group_record *ret,
			       size_t *ret_at)
{
	char text[96], *end;
	int at = 0;

	memcpy(text, value, CFS_MIN(len, sizeof(text) - 1));
	text[CFS_MIN(len, sizeof(text) - 1)] = '\0';
	if (sscanf(text, "%" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %n", &ret->boot,
		   &ret->number, &ret->member.cached_bytes, &ret->heartbeat_ms, &at) < 4 ||
	    !at || ret->heartbeat_ms == 0 || ret->heartbeat_ms > HEARTBEAT_MAX_MS)
		return -EINVAL;
	*ret_at = (size_t)at;
	ret->info = 0;
	if (text[at] == '{')
		return 0;
	ret->info = strtoull(text + at, &end, 10);
	return isdigit((unsigned char)text[at]) && ret->info && !*end ? 0 : -EINVAL;
}

static int decode_description(const char *text, size_t len, struct group_record *ret)
{
	json_t *j = json_loadb(text, len, 0, NULL);
	int r = j ? decode_json(j, ret) : -EINVAL;

	json_decref(j);
	return r;
}

int cfs_group_decode(const void *value, size_t len, struct group_record *ret)
{
	size_t at;
	int r;

	memset(ret, 0, sizeof(*ret));
	r = cfs_group_decode_heartbeat(value, len, ret, &at);
	if (r < 0)
		return r;
	return ret->info ? -EINVAL : decode_description((const char *)value + at, len - at, ret);
}

int cfs_group_decode_info(const void *value, size_t len, struct group_record *ret)
{
	char text[64];
	int at = 0;

	memset(ret, 0, sizeof(*ret));
	memcpy(text, value, CFS_MIN(len, sizeof(text) - 1));
	text[CFS_MIN(len, sizeof(text) - 1)] = '\0';
	if (sscanf(text, "%" SCNx64 " %" SCNu64 " %n", &ret->boot, &ret->info, &at) < 2 || !at)
		return -EINVAL;
	return decode_description((const char *)value + at, len - (size_t)at, ret);
}

struct list {
	char group[CFS_GROUP_NAME_MAX + 1];
	cfs_group_listed_fn fn;
	void *arg;
	struct list *next;
};

/* One group: its descriptions are read after its records. */
struct listing {
	const struct list *of;
	struct listed {
		uint64_t id, cached_bytes;
	} *v; /* with a description of their own */
	size_t n, room;
};

static uint64_t id_of(const void *element)
{
	return ((const struct listed *)element)->id;
}

static int note_listed(struct listing *l, uint64_t id, uint64_t cached_bytes)
{
	size_t i = cfs_sorted_place(l->v, l->n, sizeof(*l->v), id_of, id);

	if (CFS_ARRAY_ROOM(l->v, l->n, l->room) < 0)
		return -ENOMEM;
	memmove(l->v + i + 1, l->v + i, (l->n - i) * sizeof(*l->v));
	l->v[i] = (struct listed){.id = id, .cached_bytes = cached_bytes};
	l->n++;
	return 0;
}

static int list_member(void *arg, const char *key, const void *value, size_t len)
{
	struct listing *l = arg;
	struct group_record r = {0};
	uint64_t id = strtoull(strchr(key, '/') + 1, NULL, 16);
	size_t at;

	if (cfs_group_decode_heartbeat(value, len, &r, &at) < 0)
		return 0;
	if (r.info)
		return note_listed(l, id, r.member.cached_bytes);
	if (cfs_group_decode(value, len, &r) < 0)
		return 0;
	return l->of->fn(l->of->arg, l->of->group, &r.member);
}

static int list_info(void *arg, const char *key, const void *value, size_t len)
{
	const struct listing *l = arg;
	struct group_record r;
	size_t i;

	if (cfs_group_decode_info(value, len, &r) < 0)
		return 0;
	i = cfs_sorted_place(l->v, l->n, sizeof(*l->v), id_of, r.member.id);
	if (i == l->n || l->v[i].id != r.member.id)
		return 0;
	r.member.cached_bytes = l->v[i].cached_bytes;
	return l->of->fn(l->of->arg, l->of->group, &r.member);
}

static int list_group(void *arg, const char *key, const void *value, size_t len)
{
	struct list *l = calloc(1, sizeof(*l)), **first = arg;

	if (!l)
		return -ENOMEM;
	snprintf(l->group, sizeof(l->group), "%s", strchr(key, '/') + 1);
	l->next = *first;
	*first = l;
	return 0;
}

int cfs_group_list_one(const struct cfs_group_registry *reg, const char *name,
		       cfs_group_listed_fn fn, void *arg)
{
	struct list of = {.fn = fn, .arg = arg};
	struct listing l = {.of = &of};
	char table[CFS_GROUP_KEY_MAX];
	int r;

	snprintf(of.group, sizeof(of.group), "%s", name);
	cfs_group_member_table(name, table);
	r = reg->each(reg->arg, table, list_member, &l);
	cfs_group_info_table(name, table);
	if (r == 0 && l.n > 0)
		r = reg->each(reg->arg, table, list_info, &l);
	free(l.v);
	return r;
}

int cfs_group_list(const struct cfs_group_registry *reg, cfs_group_listed_fn fn, void *arg)
{
	struct list *groups = NULL, *next;
	int r = reg->each(reg->arg, KEYS_TABLE, list_group, &groups);

	for (; groups; groups = next) {
		next = groups->next;
		if (!r)
			r = cfs_group_list_one(reg, groups->group, fn, arg);
		free(groups);
	}
	return r;
}

/* ---- keys ---- */

static void key_name(const char *group, char key[CFS_GROUP_KEY_MAX])
{
	snprintf(key, CFS_GROUP_KEY_MAX, KEYS_TABLE "/%s", group);
}

static void to_hex(const uint8_t *bytes, char hex[2 * CFS_PEER_KEY_SIZE + 1])
{
	size_t i;

	for (i = 0; i < CFS_PEER_KEY_SIZE; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

static bool from_hex(const char *hex, uint8_t bytes[CFS_PEER_KEY_SIZE])
{
	size_t i;

	if (strlen(hex) != 2 * CFS_PEER_KEY_SIZE)
		return false;
	for (i = 0; i < CFS_PEER_KEY_SIZE; i++) {
		if (sscanf(hex + 2 * i, "%2hhx", &bytes[i]) != 1)
			return false;
	}
	return true;
}

static int put_key(const struct cfs_group_registry *reg, const char *name,
		   const struct group_key *key, bool fresh)
{
	char record[CFS_GROUP_KEY_MAX], now[2 * CFS_PEER_KEY_SIZE + 1],
		old[2 * CFS_PEER_KEY_SIZE + 1] = "", text[256];
	int r;

	key_name(name, record);
	to_hex(key->now, now);
	if (key->has_old)
		to_hex(key->old, old);
	snprintf(text, sizeof(text), "{\"key\":\"%s\",\"old\":\"%s\"}", now, old);
	r = reg->put(reg->arg, record, text, strlen(text), fresh);
	explicit_bzero(now, sizeof(now));
	explicit_bzero(old, sizeof(old));
	explicit_bzero(text, sizeof(text));
	return r;
}

static int see_key(void *arg, const char *record, const void *value, size_t len)
{
	struct group_key *ret = arg;
	const char *now, *old;
	int r = -EINVAL;
	json_t *j;

	memset(ret, 0, sizeof(*ret));
	j = json_loadb(value, len, 0, NULL);
	if (j && json_unpack(j, "{s:s, s:s}", "key", &now, "old", &old) == 0 &&
	    from_hex(now, ret->now)) {
		ret->has_old = from_hex(old, ret->old);
		r = 1;
	}
	json_decref(j);
	return r;
}

int cfs_group_read_key(const struct cfs_group_registry *reg, const char *name,
		       struct group_key *ret)
{
	char record[CFS_GROUP_KEY_MAX];
	int r;

	key_name(name, record);
	r = reg->get(reg->arg, record, see_key, ret);
	return r == -ENOENT ? 0 : r;
}

static int new_key(uint8_t key[CFS_PEER_KEY_SIZE])
{
	return getrandom(key, CFS_PEER_KEY_SIZE, 0) == CFS_PEER_KEY_SIZE ? 0 : -EIO;
}

int cfs_group_get_key(const struct cfs_group_registry *reg, const char *name, struct group_key *ret)
{
	struct group_key fresh = {0};
	int r = cfs_group_read_key(reg, name, ret);

	if (r)
		return r < 0 ? r : 0;
	r = new_key(fresh.now);
	if (!r)
		r = put_key(reg, name, &fresh, true);
	explicit_bzero(&fresh, sizeof(fresh));
	if (r && r != -EEXIST)
		return r;
	r = cfs_group_read_key(reg, name, ret);
	return r < 0 ? r : r ? 0 : -ENOENT;
}

void cfs_group_drop_foreign_key(const struct cfs_group_registry *reg, const char *name)
{
	char record[CFS_GROUP_KEY_MAX];

	snprintf(record, sizeof(record), KEYS_TABLE ".%s/", name);
	(void)reg->drop(reg->arg, record); /* the next list tries it again */
}

int cfs_group_rotate_key(const struct cfs_group_registry *reg, const char *name)
{
	struct group_key key;
	int r;

	if (!cfs_group_is_name(name))
		return -EINVAL;
	r = cfs_group_read_key(reg, name, &key);
	if (r <= 0)
		return r ? r : -ENOENT;
	memcpy(key.old, key.now, sizeof(key.old));
	key.has_old = true;
	r = new_key(key.now);
	if (!r)
		r = put_key(reg, name, &key, false);
	explicit_bzero(&key, sizeof(key));
	return r;
}

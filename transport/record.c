/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a cache group keeps in the registry, as JSON:
 *
 *	group.member.NAME/ID	one per member, written by it at every beat
 *	group.key.NAME/		the key that members prove to have, and the one before
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

#include "group-internal.h"

#define MEMBER_PREFIX "group.member."
#define KEY_PREFIX    "group.key."
#define BEAT_MAX_MS   (60 * 60 * 1000)

bool cfs_group_is_name(const char *name)
{
	size_t i;

	for (i = 0; name[i]; i++) {
		if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i]))
			return false;
	}
	return i > 0 && i <= CFS_GROUP_NAME_MAX;
}

/* Names have dots: '/' ends them, so that no group's prefix is another one's. */
void cfs_group_member_key(const char *name, uint64_t id, char key[CFS_GROUP_KEY_MAX])
{
	if (id)
		snprintf(key, CFS_GROUP_KEY_MAX, MEMBER_PREFIX "%s/%016" PRIx64, name, id);
	else
		snprintf(key, CFS_GROUP_KEY_MAX, MEMBER_PREFIX "%s/", name);
}

/* ---- addresses ---- */

void cfs_group_set_port(struct sockaddr_storage *addr, unsigned port)
{
	if (addr->ss_family == AF_INET)
		((struct sockaddr_in *)addr)->sin_port = htons((uint16_t)port);
	else
		((struct sockaddr_in6 *)addr)->sin6_port = htons((uint16_t)port);
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

/* "10.0.0.1:7000", "[fd00::1]:7000" */
static int parse_with_port(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
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

char *cfs_group_encode(const struct group_record *r)
{
	const struct cfs_group_member *m = &r->member;
	char id[17], *text;
	json_t *j;

	snprintf(id, sizeof(id), "%016" PRIx64, m->id);
	j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:b, s:b, s:I, s:I, s:I, s:I}", "id", id,
		      "volume", m->volume, "address", m->address, "host", m->host, "mount",
		      m->mount_point, "version", m->version, "weight", (int)m->weight, "fresh",
		      m->fresh, "tls", m->tls, "bytes", (json_int_t)m->cached_bytes, "boot",
		      (json_int_t)r->boot, "number", (json_int_t)r->number, "beat_ms",
		      (json_int_t)r->beat_ms);
	text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	return text;
}

static bool copy_text(char *dst, size_t size, const char *src)
{
	return (size_t)snprintf(dst, size, "%s", src) < size;
}

static int decode(json_t *j, struct group_record *ret)
{
	const char *id, *address, *host, *mount, *version, *volume = "";
	struct cfs_group_member *m = &ret->member;
	json_int_t bytes, boot, number, beat_ms;
	int weight, fresh, tls = 0;
	char *end;

	if (json_unpack(j, "{s:s, s?s, s:s, s:s, s:s, s:s, s:i, s:b, s?b, s:I, s:I, s:I, s:I}",
			"id", &id, "volume", &volume, "address", &address, "host", &host, "mount",
			&mount, "version", &version, "weight", &weight, "fresh", &fresh, "tls",
			&tls, "bytes", &bytes, "boot", &boot, "number", &number, "beat_ms",
			&beat_ms) < 0)
		return -EINVAL;
	m->id = strtoull(id, &end, 16);
	if (!m->id || *end || weight < 0 || beat_ms <= 0 || beat_ms > BEAT_MAX_MS ||
	    !copy_text(m->address, sizeof(m->address), address) ||
	    !copy_text(m->host, sizeof(m->host), host) ||
	    !copy_text(m->mount_point, sizeof(m->mount_point), mount) ||
	    !copy_text(m->version, sizeof(m->version), version) ||
	    !copy_text(m->volume, sizeof(m->volume), volume))
		return -EINVAL;
	m->weight = (unsigned)weight;
	m->fresh = fresh;
	m->tls = tls;
	m->cached_bytes = (uint64_t)bytes;
	ret->boot = (uint64_t)boot;
	ret->number = (uint64_t)number;
	ret->beat_ms = (uint64_t)beat_ms;
	return *address ? parse_with_port(address, &ret->addr, &ret->addr_len) : 0;
}

int cfs_group_decode(const void *value, size_t len, struct group_record *ret)
{
	json_t *j = json_loadb(value, len, 0, NULL);
	int r;

	memset(ret, 0, sizeof(*ret));
	if (!j)
		return -EINVAL;
	r = decode(j, ret);
	json_decref(j);
	return r;
}

struct list {
	cfs_group_listed_fn fn;
	void *arg;
};

static int list_member(void *arg, const char *key, const void *value, size_t len)
{
	const struct list *l = arg;
	const char *name = key + strlen(MEMBER_PREFIX), *slash = strchr(name, '/');
	char group[CFS_GROUP_NAME_MAX + 1];
	struct group_record r;

	if (!slash || (size_t)(slash - name) >= sizeof(group) ||
	    cfs_group_decode(value, len, &r) < 0)
		return 0;
	memcpy(group, name, (size_t)(slash - name));
	group[slash - name] = '\0';
	return l->fn(l->arg, group, &r.member);
}

int cfs_group_list(const struct cfs_group_registry *reg, cfs_group_listed_fn fn, void *arg)
{
	struct list l = {.fn = fn, .arg = arg};

	return reg->each(reg->arg, MEMBER_PREFIX, list_member, &l);
}

/* ---- keys ---- */

static void key_name(const char *group, char key[CFS_GROUP_KEY_MAX])
{
	snprintf(key, CFS_GROUP_KEY_MAX, KEY_PREFIX "%s/", group);
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

struct key_search {
	char record[CFS_GROUP_KEY_MAX];
	struct group_key *ret;
	int found;
};

static int see_key(void *arg, const char *record, const void *value, size_t len)
{
	struct key_search *s = arg;
	const char *now, *old;
	json_t *j;

	if (strcmp(record, s->record) != 0)
		return 0;
	memset(s->ret, 0, sizeof(*s->ret));
	j = json_loadb(value, len, 0, NULL);
	s->found = -EINVAL;
	if (j && json_unpack(j, "{s:s, s:s}", "key", &now, "old", &old) == 0 &&
	    from_hex(now, s->ret->now)) {
		s->ret->has_old = from_hex(old, s->ret->old);
		s->found = 1;
	}
	json_decref(j);
	return 0;
}

int cfs_group_read_key(const struct cfs_group_registry *reg, const char *name,
		       struct group_key *ret)
{
	struct key_search s = {.ret = ret};
	int r;

	key_name(name, s.record);
	r = reg->each(reg->arg, s.record, see_key, &s);
	return r < 0 ? r : s.found;
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

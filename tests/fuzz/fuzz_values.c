/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values in the metadata, which other clients write, too. The first byte of an input says which one
 * the rest is; what was taken is written again and read again, and is the same then.
 *
 *	0	the setting of a volume
 *	1	attributes
 *	2	the entries of an ACL
 *	3	the record of a member of a cache group
 *	4	an address of a member
 *	5	JSON whose numbers keep their text
 */
#include <cachefs/meta.h>
#include <stdio.h>

#include "base/log.h"
#include "base/text/json.h"
#include "fuzz.h"
#include "meta/engine/rules.h"
#include "meta/setting/setting-internal.h"
#include "transport/group/group-internal.h"

static __attribute__((constructor)) void log_nothing(void)
{
	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
}

static void setting(const char *text, size_t len)
{
	struct cfs_setting *s, *again, *copy;
	char *out, *out_again, err[256] = "";
	int r = cfs_setting_decode(text, len, &s, err);

	check(r == 0 || *err);
	if (r < 0)
		return;
	cfs_setting_check_version(s, err);
	check(cfs_setting_show(s, &out) == 0);
	free(out);
	check(cfs_setting_copy(s, &copy) == 0 && !cfs_setting_fixed_change(s, copy));
	/* Secrets are sealed with a fresh nonce each time. */
	copy->key_encrypted = false;
	check(cfs_setting_encode(copy, &out) == 0);
	if (cfs_setting_decode(out, strlen(out), &again, err) == 0) {
		check(cfs_setting_encode(again, &out_again) == 0);
		check(!strcmp(out, out_again));
		free(out_again);
		cfs_setting_free(again);
	}
	free(out);
	cfs_setting_free(copy);
	cfs_setting_normalise(s);
	cfs_setting_free(s);
}

static void attributes(const char *p, size_t len)
{
	struct cfs_attr a, b;
	uint8_t out[CFS_ATTR_BYTES_MAX], again[CFS_ATTR_BYTES_MAX];

	if (cfs_attr_decode(p, len, &a) < 0)
		return;
	len = cfs_attr_encode(&a, out);
	check(len <= sizeof(out) && cfs_attr_decode(out, len, &b) == 0);
	/* The structures differ in their padding. */
	check(cfs_attr_encode(&b, again) == len && !memcmp(out, again, len));
}

static void acl(const char *p, size_t len)
{
	struct cfs_acl rule = {0}, child = {0};
	uint8_t *out = malloc(len + 1);
	uint16_t mode;

	check(out != NULL);
	if (cfs_acl_unpack(p, len, &rule.users, &rule.n_users) == 0) {
		cfs_acl_pack(rule.users, rule.n_users, out);
		check(!memcmp(out, p, len));
		if (cfs_acl_inherit(&rule, 0644, &mode, &child) == 1)
			cfs_acl_release(&child);
		cfs_acl_chmod(&rule, 0640);
	}
	cfs_acl_release(&rule);
	free(out);
}

static void member(const char *p, size_t len)
{
	struct group_record r, again;
	char *text;

	if (cfs_group_decode(p, len, &r) < 0)
		return;
	check(r.member.id != 0 && r.heartbeat_ms > 0);
	text = cfs_group_encode(&r);
	check(text && cfs_group_decode(text, strlen(text), &again) == 0);
	check(again.member.id == r.member.id && again.boot == r.boot && again.number == r.number);
	check(!strcmp(again.member.address, r.member.address) &&
	      !strcmp(again.member.volume, r.member.volume));
	free(text);
}

static void address(const char *text)
{
	struct sockaddr_storage sa;
	socklen_t len;

	if (cfs_group_parse_endpoint(text, &sa, &len) == 0)
		check(len > 0 && len <= sizeof(sa));
}

static void json(const char *text, size_t len)
{
	json_t *j = cfs_json_load(text, len, NULL), *again;
	char *out, *out_again;
	uint64_t v;

	if (!j)
		return;
	cfs_json_get_u64(json_object_get(j, "a"), &v);
	out = cfs_json_dump(j, JSON_COMPACT);
	check(out != NULL);
	again = cfs_json_load(out, strlen(out), NULL);
	check(again != NULL);
	out_again = cfs_json_dump(again, JSON_COMPACT);
	check(out_again && !strcmp(out, out_again));
	free(out);
	free(out_again);
	json_decref(j);
	json_decref(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = {data, size};
	uint8_t what = fuzz_u8(&in) % 6;
	size_t len = in.left;
	char *text = fuzz_text(&in, len);

	if (what == 0)
		setting(text, len);
	else if (what == 1)
		attributes(text, len);
	else if (what == 2)
		acl(text, len);
	else if (what == 3)
		member(text, len);
	else if (what == 4)
		address(text);
	else
		json(text, len);
	free(text);
	return 0;
}

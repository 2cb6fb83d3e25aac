/* SPDX-License-Identifier: Apache-2.0 */
/* The client versions that a volume allows (volume-format section 13). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "meta/setting/setting-internal.h"

struct version {
	unsigned long part[3];
	char pre[64];
};

static int parse_version(const char *text, struct version *ret)
{
	struct version v = {0};
	const char *p = text;
	int i;

	for (i = 0; i < 3; i++) {
		char *end;

		if (*p < '0' || *p > '9')
			return -EINVAL;
		v.part[i] = strtoul(p, &end, 10);
		p = end;
		if (*p != '.')
			break;
		p++;
	}
	if (*p == '-') {
		size_t len = strcspn(++p, "+");

		if (!len || len >= sizeof(v.pre))
			return -EINVAL;
		memcpy(v.pre, p, len);
		p += len;
	}
	if (*p != '\0' && *p != '+')
		return -EINVAL;
	*ret = v;
	return 0;
}

static int compare_versions(const struct version *a, const struct version *b)
{
	int i;

	for (i = 0; i < 3; i++)
		if (a->part[i] != b->part[i])
			return a->part[i] < b->part[i] ? -1 : 1;
	if (!a->pre[0] || !b->pre[0])
		return (a->pre[0] == '\0') - (b->pre[0] == '\0');
	return strcmp(a->pre, b->pre);
}

static int check_bound(const char *bound, int bad_sign, const char *which, char err[256])
{
	struct version own, v;
	int order;

	if (!bound || !*bound)
		return 0;
	if (parse_version(bound, &v) || parse_version(CFS_COMPAT_VERSION, &own))
		return cfs_fail(err, -EPROTONOSUPPORT, "%s \"%s\" of the volume is not a version",
				which, bound);
	order = compare_versions(&own, &v);
	if (order == 0 || (order < 0) != (bad_sign < 0))
		return 0;
	return cfs_fail(err, -EPROTONOSUPPORT, "the volume requires %s %s, this client is level %s",
			which, bound, CFS_COMPAT_VERSION);
}

int cfs_setting_check_version(const struct cfs_setting *s, char err[256])
{
	int rc = check_bound(s->min_client_version, -1, "MinClientVersion", err);

	return rc ? rc : check_bound(s->max_client_version, 1, "MaxClientVersion", err);
}

int cfs_setting_raise_version(struct cfs_setting *s, const char *to)
{
	struct version have, want;
	char *text;

	if (s->min_client_version && !parse_version(s->min_client_version, &have) &&
	    !parse_version(to, &want) && compare_versions(&have, &want) >= 0)
		return 0;
	text = strdup(to);
	if (!text)
		return -ENOMEM;
	free(s->min_client_version);
	s->min_client_version = text;
	return 0;
}

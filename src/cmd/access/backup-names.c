/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "cmd/access/backup.h"

#define DAY_S	  ((int64_t)86400)
#define NAME_TIME "dump-%Y-%m-%d-%H%M%S"
#define NAME_END  ".json.gz"

void backup_name(int64_t when_s, char ret[BACKUP_NAME_LEN + 1])
{
	time_t when = (time_t)when_s;
	struct tm tm;

	gmtime_r(&when, &tm);
	if (!strftime(ret, BACKUP_NAME_LEN + 1, NAME_TIME NAME_END, &tm))
		*ret = '\0';
}

bool backup_time(const char *name, int64_t *ret_s)
{
	char again[BACKUP_NAME_LEN + 1];
	struct tm tm = {0};
	const char *end = strptime(name, NAME_TIME, &tm);
	int64_t when_s;

	if (!end || strcmp(end, NAME_END) != 0)
		return false;
	when_s = timegm(&tm);
	/* strptime(3) also takes numbers without leading zeros, and a 31st of every month. */
	backup_name(when_s, again);
	if (strcmp(again, name) != 0)
		return false;
	*ret_s = when_s;
	return true;
}

static int compare_backups(const void *a, const void *b)
{
	const struct backup *x = a, *y = b;

	return CFS_COMPARE(x->when_s, y->when_s);
}

void backup_sort(struct backup_list *l)
{
	size_t i, n = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), compare_backups);
	for (i = 0; i < l->n; i++)
		if (!n || l->v[i].when_s != l->v[n - 1].when_s)
			l->v[n++] = l->v[i];
	l->n = n;
}

void backup_rotate(struct backup_list *l, int64_t now_s)
{
	int64_t days = 2, edge_s = now_s - days * DAY_S;
	struct backup *kept = NULL; /* of the window */
	size_t i;

	for (i = l->n; i-- > 0;) {
		/* JuiceFS compares with fractions of a second, which names do not have. */
		while (l->v[i].when_s <= edge_s) {
			int64_t window = days < 14 ? 1 : days < 60 ? 7 : 30;

			days += window;
			edge_s -= window * DAY_S;
			kept = NULL;
		}
		if (days == 2)
			continue;
		if (kept)
			kept->drop = true;
		kept = &l->v[i];
	}
}

const struct backup *backup_latest(const struct backup_list *l, int64_t now_s)
{
	size_t i = l->n;

	while (i-- > 0)
		if (l->v[i].when_s <= now_s + BACKUP_FUTURE_S)
			return &l->v[i];
	return NULL;
}

void backup_mark(int64_t when_s, char ret[BACKUP_MARK_LEN + 1])
{
	time_t when = (time_t)when_s;
	struct tm tm;

	gmtime_r(&when, &tm);
	if (!strftime(ret, BACKUP_MARK_LEN + 1, "%Y-%m-%dT%H:%M:%SZ", &tm))
		*ret = '\0';
}

int64_t backup_mark_time(const char *mark)
{
	struct tm tm = {0};
	const char *rest = strptime(mark, "%Y-%m-%dT%H:%M:%S", &tm);
	long east_s;

	if (rest && *rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	rest = rest ? strptime(rest, "%z", &tm) : NULL;
	if (!rest || *rest)
		return -1;
	/* timegm() reads the fields as UTC and overwrites tm_gmtoff. */
	east_s = tm.tm_gmtoff;
	return timegm(&tm) - east_s;
}

bool backup_is_due(int64_t mark_s, bool unfinished, int64_t now_s, int64_t interval_s,
		   int64_t retry_s)
{
	return mark_s < 0 || mark_s > now_s + BACKUP_FUTURE_S ||
	       now_s - mark_s >= (unfinished ? retry_s : interval_s);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/module.h"
#include "base/utf8.h"

struct metrics {
	struct mount_parts parts;
	struct health *health;
	const struct metrics_server_ops *ops;
	void *server;
	char *labels; /* of each metric */
};

/* Escapes a label value. The format has no bytes that are not UTF-8: each becomes U+FFFD. */
static void print_value(FILE *out, const char *value)
{
	const char *p = value;
	size_t len;

	for (; *p; p += len) {
		len = cfs_utf8_len(p, strlen(p));
		if (*p == '\n')
			fputs("\\n", out);
		else if (*p == '"' || *p == '\\')
			fprintf(out, "\\%c", *p);
		else if (len)
			fwrite(p, 1, len, out);
		else
			fputs("\xef\xbf\xbd", out);
		len = len ? len : 1;
	}
}

/* Labels distinguish the mounts of a machine, however the metrics are collected. */
static char *make_labels(const char *volume, const char *mount)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	fputs("volume=\"", out);
	print_value(out, volume);
	fputs("\",mount=\"", out);
	print_value(out, mount);
	fputc('"', out);
	fclose(out);
	return text;
}

static bool healthy(void *arg)
{
	struct metrics *m = arg;

	return health_ask(m->health);
}

static int text(void *arg, char **ret, size_t *ret_len)
{
	struct metrics *m = arg;

	return cfs_vfs_show_metrics(m->parts.vfs, m->labels, ret, ret_len);
}

static int status(void *arg, char **ret, size_t *ret_len)
{
	struct metrics *m = arg;

	return mount_status_json(&m->parts, ret, ret_len);
}

int metrics_start(const char *listen, const struct mount_parts *parts, struct health *health,
		  struct metrics **ret, char err[256])
{
	struct metrics_source source = {.text = text, .status = status, .healthy = healthy};
	const void *table;
	struct metrics *m;
	int r;

	r = cfs_module_load(METRICS_MODULE, &table, err);
	if (r < 0)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->parts = *parts;
	m->health = health;
	m->ops = table;
	source.arg = m;
	m->labels = make_labels(parts->setting->name, parts->dir);
	r = m->labels ? m->ops->start(listen, &source, &m->server, err) : -ENOMEM;
	if (r < 0) {
		free(m->labels);
		free(m);
		return r;
	}
	*ret = m;
	return 0;
}

void metrics_stop(struct metrics *m)
{
	if (!m)
		return;
	m->ops->stop(m->server);
	free(m->labels);
	free(m);
}

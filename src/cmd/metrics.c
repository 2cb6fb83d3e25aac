/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/metrics.h"

#include <errno.h>
#include <stdlib.h>

#include "base/module.h"

struct metrics {
	struct mount_parts parts;
	struct health *health;
	const struct metrics_server_ops *ops;
	void *server;
};

static bool healthy(void *arg)
{
	struct metrics *m = arg;

	return health_ask(m->health);
}

static int text(void *arg, char **ret, size_t *ret_len)
{
	struct metrics *m = arg;

	return cfs_vfs_metrics(m->parts.vfs, true, ret, ret_len);
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
	r = m->ops->start(listen, &source, &m->server, err);
	if (r < 0) {
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
	free(m);
}

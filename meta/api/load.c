/* SPDX-License-Identifier: Apache-2.0 */
/* Filling an empty database with the rows of another volume. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/api/call.h"
#include "meta/api/core.h"

/* Every client refuses this MetaVersion: none mounts half a volume. The UUID names the load. */
static const char unfinished[] =
	"{\n\"Name\": \"unfinished-load\",\n"
	"\"UUID\": \"00000000-0000-0000-0000-%012" PRIx64 "\",\n\"Storage\": \"file\",\n"
	"\"Bucket\": \"/nowhere/\",\n\"BlockSize\": 4096,\n\"TrashDays\": 0,\n"
	"\"MetaVersion\": 1000000,\n\"EnableACL\": false\n}";

bool cfs_load_unfinished(const char *setting)
{
	return strstr(setting, "\"unfinished-load\"") != NULL;
}

int cfs_meta_setting_text(struct cfs_meta *m, char **ret)
{
	pthread_mutex_lock(&m->setting_lock);
	*ret = m->setting_text ? strdup(m->setting_text) : NULL;
	pthread_mutex_unlock(&m->setting_lock);
	return *ret ? 0 : -ENOMEM;
}

static int make_room(struct cfs_meta *m, const struct cfs_ctx *ctx, bool restart, char err[256])
{
	cfs_auto_free char *text = NULL;
	int rc = m->eng->ops->get_setting(m->eng, ctx, &text);

	if (rc == -ENODATA)
		return 0;
	if (rc)
		return cfs_fail(err, rc, "cannot read %.180s: %s", m->masked_url, strerror(-rc));
	if (!cfs_load_unfinished(text))
		return cfs_fail(err, -EEXIST,
				"%.150s has a volume already: load needs an empty database",
				m->masked_url);
	if (!restart)
		return cfs_fail(err, -EEXIST,
				"%.130s has the remains of an unfinished load: --restart "
				"removes them and begins again",
				m->masked_url);
	rc = m->eng->ops->destroy(m->eng, ctx);
	if (rc)
		snprintf(err, 256, "cannot empty %.180s: %s", m->masked_url, strerror(-rc));
	return rc;
}

int cfs_meta_load_begin(struct cfs_meta *m, bool trash, bool restart, char err[256])
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = cfs_core_check_writable(m);

	if (!rc)
		rc = make_room(m, &ctx, restart, err);
	if (rc)
		return rc;
	free(m->load_text);
	if (asprintf(&m->load_text, unfinished, cfs_random_u64() >> 16) < 0) {
		m->load_text = NULL;
		return -ENOMEM;
	}
	rc = m->eng->ops->create(m->eng, &ctx, m->load_text, trash);
	if (rc == -EEXIST)
		snprintf(err, 256, "%.180s is not empty: load needs an empty database",
			 m->masked_url);
	else if (rc)
		snprintf(err, 256, "cannot create a volume in %.150s: %s", m->masked_url,
			 strerror(-rc));
	return rc;
}

int cfs_meta_put_rows(struct cfs_meta *m, enum cfs_meta_table table, const struct cfs_row *rows,
		      size_t n)
{
	int rc = 0;

	while (n && !rc) {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
		size_t part = CFS_MIN(n, (size_t)CFS_PUT_ROWS);
		struct cfs_call c;

		cfs_call_begin(&c, m, CFS_META_OP_other, &ctx);
		rc = m->eng->ops->put_rows(m->eng, c.ctx, table, rows, part);
		rc = (int)cfs_call_end(&c, rc);
		rows += part;
		n -= part;
	}
	return rc;
}

int cfs_meta_put_ended_session(struct cfs_meta *m, uint64_t sid)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = (int)CFS_CALL(c, m, CFS_META_OP_session, &ctx,
			       m->eng->ops->refresh_session(m->eng, c.ctx, sid, "{}", 1));

	return rc < 0 ? rc : 0;
}

/*
 * -ESTALE: the database no longer holds our load. Another load, begun with `restart`, has replaced
 * it, and its volume may be in use by now.
 */
static int check_ours(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	cfs_auto_free char *text = NULL;
	int rc = m->eng->ops->get_setting(m->eng, ctx, &text);

	if (rc)
		return rc == -ENODATA ? -ESTALE : rc;
	if (strcmp(text, m->load_text) == 0)
		return 0;
	return m->loaded_text && strcmp(text, m->loaded_text) == 0 ? 0 : -ESTALE;
}

int cfs_meta_load_end(struct cfs_meta *m, const char *setting, char err[256])
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = check_ours(m, &ctx);

	if (rc == -ESTALE)
		return cfs_fail(err, rc,
				"another load has begun in %.150s meanwhile, this one ends",
				m->masked_url);
	if (!rc) {
		m->loaded_text = strdup(setting);
		rc = m->loaded_text ? m->eng->ops->put_setting(m->eng, &ctx, setting) : -ENOMEM;
	}
	if (!rc && m->eng->ops->sync)
		rc = m->eng->ops->sync(m->eng, &ctx);
	if (rc)
		snprintf(err, 256, "cannot store the setting in %.150s: %s", m->masked_url,
			 strerror(-rc));
	return rc;
}

int cfs_meta_load_abort(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = check_ours(m, &ctx);

	if (!rc)
		rc = m->eng->ops->destroy(m->eng, &ctx);
	return rc == -ESTALE ? 0 : rc;
}

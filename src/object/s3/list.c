/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListObjectsV2 and DeleteObjects. A page is parsed while it arrives and delivered to the caller once
 * it is complete, so no connection waits for the caller. An incomplete page is an error.
 */
#include <ctype.h>
#include <errno.h>
#include <expat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/text/url.h"
#include "s3.h"

#define PAGE_KEYS "1000"
#define TEXT_MAX  4096 /* of one element: keys have at most 1024 bytes, times 3 when encoded */
#define DEPTH_MAX 16
/* Of an answer: twice the bytes of 1000 entries with the longest keys. */
#define ANSWER_MAX ((size_t)8 << 20)

/* ---- XML ---- */

/* Called at the end of each element, with the text directly in it. Non-zero: malformed. */
typedef int (*element_fn)(void *arg, const char *parent, const char *name, char *text);

struct xml {
	XML_Parser parser;
	element_fn element;
	void *arg;
	char names[DEPTH_MAX][64]; /* of the open elements, without name space; first the root */
	unsigned depth;
	bool leaf; /* the innermost one has no element in it */
	char text[TEXT_MAX];
	size_t len;
	size_t fed;
	int err;
};

static const char *local_name(const char *name)
{
	const char *colon = strrchr(name, ':');

	return colon ? colon + 1 : name;
}

static void give_up(struct xml *x, int err)
{
	x->err = err;
	XML_StopParser(x->parser, XML_FALSE);
}

static void on_start(void *arg, const XML_Char *name, const XML_Char **attributes)
{
	struct xml *x = arg;

	if (x->depth == DEPTH_MAX) {
		give_up(x, -EPROTO);
		return;
	}
	snprintf(x->names[x->depth++], sizeof(x->names[0]), "%s", local_name(name));
	x->leaf = true;
	x->len = 0;
}

static void on_text(void *arg, const XML_Char *text, int len)
{
	struct xml *x = arg;

	if (x->len + (size_t)len >= sizeof(x->text)) {
		give_up(x, -EPROTO);
		return;
	}
	memcpy(x->text + x->len, text, (size_t)len);
	x->len += (size_t)len;
}

static void on_end(void *arg, const XML_Char *name)
{
	struct xml *x = arg;
	const char *parent = x->depth > 1 ? x->names[x->depth - 2] : "";
	int r;

	/* Handlers may be called once more after XML_StopParser(). */
	if (x->err)
		return;
	x->text[x->leaf ? x->len : 0] = '\0';
	r = x->element(x->arg, parent, x->names[--x->depth], x->text);
	if (r)
		give_up(x, r);
	x->leaf = false;
	x->len = 0;
}

/* S3 sends no DTD. Refuses it, because entities could expand without bound. */
static void on_doctype(void *arg, const XML_Char *name, const XML_Char *system_id,
		       const XML_Char *public_id, int has_internal_subset)
{
	give_up(arg, -EPROTO);
}

static int xml_init(struct xml *x, element_fn element, void *arg)
{
	*x = (struct xml){.element = element, .arg = arg, .parser = XML_ParserCreate(NULL)};
	if (!x->parser)
		return -ENOMEM;
	XML_SetUserData(x->parser, x);
	XML_SetElementHandler(x->parser, on_start, on_end);
	XML_SetCharacterDataHandler(x->parser, on_text);
	XML_SetStartDoctypeDeclHandler(x->parser, on_doctype);
	return 0;
}

static int xml_feed(void *arg, const void *data, size_t len)
{
	struct xml *x = arg;

	x->fed += len;
	if (x->fed > ANSWER_MAX)
		return -EPROTO;
	if (XML_Parse(x->parser, data, (int)len, XML_FALSE) == XML_STATUS_OK)
		return 0;
	return x->err ? x->err : -EPROTO;
}

/* -EPROTO unless a whole document with that root has been read. */
static int xml_finish(struct xml *x, const char *root)
{
	if (XML_Parse(x->parser, "", 0, XML_TRUE) != XML_STATUS_OK ||
	    strcmp(x->names[0], root) != 0)
		return -EPROTO;
	return 0;
}

/* Makes a call whose answer is a document with that root. */
static int call_for_xml(struct cfs_s3 *s, struct cfs_s3_call *call, const char *root,
			element_fn element, void *arg, cfs_deadline_t deadline)
{
	struct xml *x = malloc(sizeof(*x));
	struct cfs_s3_response resp;
	int r = x ? xml_init(x, element, arg) : -ENOMEM;

	if (r < 0) {
		free(x);
		return cfs_http_fail(false, r, "out of memory");
	}
	call->sink = xml_feed;
	call->sink_arg = x;
	r = cfs_s3_call(s, call, &resp, deadline);
	if (r == 0 && xml_finish(x, root) < 0)
		r = cfs_http_fail(true, -EPROTO, "the answer is broken");
	XML_ParserFree(x->parser);
	free(x);
	return r;
}

/* ---- listing ---- */

struct entry {
	char *key;
	uint64_t size;
	int64_t mtime_s;
	bool has_size, has_time;
};

struct page {
	struct entry *v;
	size_t n, cap;
	struct entry now; /* being read */
	bool has_truncated, truncated, encoded;
	char *token; /* where the next page begins */
};

static void free_page(struct page *p)
{
	size_t i;

	for (i = 0; i < p->n; i++)
		free(p->v[i].key);
	free(p->v);
	free(p->now.key);
	free(p->token);
}

static int add_entry(struct page *p)
{
	/* Without a time it would look old to gc, without a size incomplete to fsck. */
	if (!p->now.key || !p->now.has_size || !p->now.has_time)
		return -EPROTO;
	if (CFS_ARRAY_ROOM(p->v, p->n, p->cap) < 0)
		return -ENOMEM;
	p->v[p->n++] = p->now;
	p->now = (struct entry){0};
	return 0;
}

static int set_text(char **dst, const char *text)
{
	free(*dst);
	*dst = strdup(text);
	return *dst ? 0 : -ENOMEM;
}

/* Another zone than UTC would make an object look older to gc than it is. */
static int parse_time(const char *text, int64_t *ret)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);

	if (rest && *rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	if (!rest || strcmp(rest, "Z") != 0)
		return -EPROTO;
	*ret = timegm(&tm);
	return 0;
}

static int parse_size(const char *text, uint64_t *ret)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EPROTO;
	errno = 0;
	*ret = strtoull(text, &end, 10);
	return !errno && !*end ? 0 : -EPROTO;
}

static int list_element(void *arg, const char *parent, const char *name, char *text)
{
	struct page *p = arg;

	if (strcmp(name, "Contents") == 0)
		return add_entry(p);
	if (strcmp(parent, "Contents") == 0) {
		if (strcmp(name, "Key") == 0)
			return set_text(&p->now.key, text);
		if (strcmp(name, "LastModified") == 0) {
			p->now.has_time = true;
			return parse_time(text, &p->now.mtime_s);
		}
		if (strcmp(name, "Size") == 0) {
			p->now.has_size = true;
			return parse_size(text, &p->now.size);
		}
	} else if (strcmp(parent, "ListBucketResult") == 0) {
		if (strcmp(name, "IsTruncated") == 0) {
			p->truncated = strcasecmp(text, "true") == 0;
			p->has_truncated = p->truncated || strcasecmp(text, "false") == 0;
		} else if (strcmp(name, "NextContinuationToken") == 0) {
			return set_text(&p->token, text);
		} else if (strcmp(name, "EncodingType") == 0) {
			p->encoded = strcmp(text, "url") == 0;
		}
	}
	return 0;
}

static int decode_key(char **key)
{
	char *decoded;
	int r = cfs_url_decode(*key, strlen(*key), true, &decoded);

	if (r < 0)
		return r == -EINVAL ? -EPROTO : r;
	free(*key);
	*key = decoded;
	return 0;
}

/* A key outside the prefix may belong to another volume, and destroy removes what is listed. */
static int check_page(struct page *p, const char *prefix)
{
	size_t i, prefix_len = strlen(prefix);
	int r = 0;

	if (!p->has_truncated || (p->truncated && (!p->token || !*p->token)))
		return -EPROTO;
	for (i = 0; p->encoded && i < p->n && r == 0; i++)
		r = decode_key(&p->v[i].key);
	for (i = 0; i < p->n && r == 0; i++)
		r = strncmp(p->v[i].key, prefix, prefix_len) == 0 ? 0 : -EPROTO;
	return r;
}

/* Parameters in the order of their names, as the signature has them. */
static char *list_query(const char *prefix, const char *after, const char *token)
{
	cfs_auto_free char *e_prefix = malloc(3 * strlen(prefix) + 1);
	cfs_auto_free char *e_after = malloc(3 * strlen(after) + 1);
	cfs_auto_free char *e_token = malloc(3 * strlen(token ? token : "") + 1);
	char *query;

	if (!e_prefix || !e_after || !e_token)
		return NULL;
	cfs_s3_encode(prefix, false, e_prefix);
	cfs_s3_encode(after, false, e_after);
	cfs_s3_encode(token ? token : "", false, e_token);
	if (asprintf(&query,
		     "%s%s%sencoding-type=url&list-type=2&max-keys=" PAGE_KEYS "&prefix=%s%s%s",
		     token ? "continuation-token=" : "", e_token, token ? "&" : "", e_prefix,
		     *after && !token ? "&start-after=" : "", token ? "" : e_after) < 0)
		return NULL;
	return query;
}

static int read_page(struct cfs_s3 *s, const char *query, const char *prefix, struct page *p,
		     cfs_deadline_t deadline)
{
	struct cfs_s3_call call = {.method = "GET", .query = query};
	int r = call_for_xml(s, &call, "ListBucketResult", list_element, p, deadline);

	if (r < 0)
		return r;
	r = check_page(p, prefix);
	return r < 0 ? cfs_http_fail(true, r, "the listing is broken") : 0;
}

static int deliver_page(const struct page *p, const char *after, cfs_object_list_fn fn, void *arg)
{
	struct cfs_object_info info;
	size_t i;
	int r = 0;

	for (i = 0; i < p->n && r == 0; i++) {
		/* Some servers ignore start-after. */
		if (strcmp(p->v[i].key, after) <= 0)
			continue;
		info = (struct cfs_object_info){
			.key = p->v[i].key,
			.size = p->v[i].size,
			.mtime_s = p->v[i].mtime_s,
		};
		r = fn(arg, &info);
	}
	return r;
}

/* Brent's cycle detection for page tokens: keeps one token, replaced at powers of two. */
struct circle {
	char *token;
	uint64_t steps, limit;
};

static int check_circle(struct circle *c, const char *token)
{
	if (c->token && strcmp(c->token, token) == 0)
		return cfs_http_fail(false, -EPROTO, "the listing repeats a page token");
	if (++c->steps < c->limit)
		return 0;
	c->steps = 0;
	c->limit = c->limit ? 2 * c->limit : 1;
	return set_text(&c->token, token) < 0 ? cfs_http_fail(false, -ENOMEM, "out of memory") : 0;
}

int cfs_s3_list(struct cfs_object_store *o, const char *prefix, const char *after,
		cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	char *token = NULL, *query;
	struct circle circle = {0};
	struct page p;
	bool more;
	int r;

	do {
		p = (struct page){0};
		query = list_query(prefix, after, token);
		r = query ? read_page(s, query, prefix, &p, deadline)
			  : cfs_http_fail(false, -ENOMEM, "out of memory");
		free(query);
		if (r == 0 && p.truncated)
			r = check_circle(&circle, p.token);
		if (r == 0)
			r = deliver_page(&p, after, fn, arg);
		more = r == 0 && p.truncated;
		free(token);
		token = p.token;
		p.token = NULL;
		free_page(&p);
	} while (more);
	free(circle.token);
	free(token);
	return r;
}

/* ---- removal ---- */

struct removal {
	char code[64], message[128]; /* of the <Error> being read */
	unsigned n_errors;
	char first[200];
	bool retry, denied;
};

static int delete_element(void *arg, const char *parent, const char *name, char *text)
{
	struct removal *m = arg;

	if (strcmp(parent, "Error") == 0 && strcmp(name, "Code") == 0) {
		snprintf(m->code, sizeof(m->code), "%s", text);
	} else if (strcmp(parent, "Error") == 0 && strcmp(name, "Message") == 0) {
		snprintf(m->message, sizeof(m->message), "%s", text);
	} else if (strcmp(name, "Error") == 0) {
		if (strcmp(m->code, "NoSuchKey") != 0 && m->n_errors++ == 0) {
			snprintf(m->first, sizeof(m->first), "%s: %s", m->code, m->message);
			m->denied = strcmp(m->code, "AccessDenied") == 0;
			m->retry = !m->denied;
		}
		m->code[0] = m->message[0] = '\0';
	}
	return 0;
}

/* Bytes that XML 1.0 cannot hold. */
static bool fits_in_xml(const char *key)
{
	for (; *key; key++) {
		if ((unsigned char)*key < ' ')
			return false;
	}
	return true;
}

static void write_escaped(FILE *out, const char *key)
{
	for (; *key; key++) {
		switch (*key) {
		case '&':
			fputs("&amp;", out);
			break;
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		default:
			fputc(*key, out);
		}
	}
}

static int delete_body(const char *const *keys, size_t n, char **ret, size_t *ret_len)
{
	FILE *out = open_memstream(ret, ret_len);
	size_t i;

	if (!out)
		return -ENOMEM;
	fputs("<Delete><Quiet>true</Quiet>", out);
	for (i = 0; i < n; i++) {
		fputs("<Object><Key>", out);
		write_escaped(out, keys[i]);
		fputs("</Key></Object>", out);
	}
	fputs("</Delete>", out);
	return fclose(out) == 0 ? 0 : -ENOMEM;
}

static int post_delete(struct cfs_s3 *s, const char *body, size_t len, struct removal *m,
		       cfs_deadline_t deadline)
{
	struct iovec src = {.iov_base = (char *)body, .iov_len = len};
	struct cfs_s3_call call = {
		.method = "POST",
		.query = "delete=",
		.hash_body = true,
		.src = &src,
		.n_src = 1,
	};
	int r = call_for_xml(s, &call, "DeleteResult", delete_element, m, deadline);

	if (r == 0 && m->n_errors)
		r = cfs_http_fail(m->retry, m->denied ? -EACCES : -EIO, "%u not removed, %s",
				  m->n_errors, m->first);
	return r;
}

static int delete_each(struct cfs_s3 *s, const char *const *keys, size_t n, cfs_deadline_t deadline)
{
	size_t i;
	int r, err = 0;

	for (i = 0; i < n; i++) {
		r = cfs_s3_del(&s->base, keys[i], deadline);
		err = err ? err : r;
	}
	return err;
}

int cfs_s3_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
		    cfs_deadline_t deadline)
{
	struct cfs_s3 *s = (struct cfs_s3 *)o;
	cfs_auto_free char *body = NULL;
	struct removal m = {0};
	bool each = atomic_load(&s->no_del_many);
	size_t i, len = 0;
	int r;

	for (i = 0; i < n && !each; i++)
		each = !fits_in_xml(keys[i]);
	if (each)
		return delete_each(s, keys, n, deadline);
	r = delete_body(keys, n, &body, &len);
	if (r < 0)
		return cfs_http_fail(false, r, "out of memory");
	r = post_delete(s, body, len, &m, deadline);
	if (r == -EOPNOTSUPP) {
		atomic_store(&s->no_del_many, true);
		r = delete_each(s, keys, n, deadline);
	}
	return r;
}

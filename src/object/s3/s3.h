/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The S3 store on the HTTP client, for its source files:
 *
 *	endpoint.c	what a bucket setting names
 *	credentials.c	whose requests they are
 *	keys.c		access keys of profiles and of roles
 *	sign.c		Signature Version 4
 *	checks.c	checksums of bodies
 *	call.c		a signed call to the bucket; what its answer means
 *	list.c		ListObjectsV2 and DeleteObjects, the verbs with XML
 *	s3.c		the store's table
 */
#ifndef CFS_OBJECT_S3_H
#define CFS_OBJECT_S3_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "object/http/http.h"

/* A variable of the environment; NULL: it is unset, or empty. */
static inline const char *cfs_s3_env(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* ---- endpoint ---- */

struct cfs_s3_endpoint {
	char *origin; /* "https://host[:port]" */
	char *host;   /* the part of origin after "://" */
	char *path;   /* prefix of every key: "", or "/bucket" in path style */
	char *bucket, *region;
	char *ca_certs, *ssl_cert, *ssl_key; /* files, NULL: the system's, none */
	bool tls;			     /* protects bodies in transit */
	bool insecure;			     /* the server's certificate is not checked */
	bool checksum;			     /* stores a CRC32C with each object */
	bool verify_etag;		     /* compares the ETag of a put with the MD5 */
};

/* storage: "s3" or "minio". On failure err says what is wrong with the text; it has no secrets. */
int cfs_s3_endpoint_parse(const char *storage, const char *text, struct cfs_s3_endpoint *ret,
			  char err[CFS_OBJECT_ERRLEN]);
void cfs_s3_endpoint_free(struct cfs_s3_endpoint *e);

/* ---- credentials ---- */

/* Immutable, counted. */
struct cfs_s3_keys {
	_Atomic unsigned refs;
	char *access, *secret, *token; /* access NULL: requests are not signed; token may be NULL */
	int64_t expires_s;	       /* CLOCK_REALTIME, 0: never */
};

struct cfs_s3_credentials;

int cfs_s3_credentials_open(const struct cfs_object_conf *conf, struct cfs_s3_credentials **ret);
void cfs_s3_credentials_close(struct cfs_s3_credentials *c);
/* Takes the keys of a changed setting. Requests under way keep theirs. */
int cfs_s3_credentials_adopt(struct cfs_s3_credentials *c, const struct cfs_object_conf *conf);
/* Keys that are valid now. -EACCES when none can be found, with the reason in err. */
int cfs_s3_credentials_get(struct cfs_s3_credentials *c, cfs_deadline_t deadline,
			   const struct cfs_s3_keys **ret, char err[CFS_OBJECT_ERRLEN]);
const struct cfs_s3_keys *cfs_s3_keys_ref(const struct cfs_s3_keys *keys);
void cfs_s3_keys_unref(const struct cfs_s3_keys *keys);
/* The server rejects the keys as expired. True: the next get may return others. */
bool cfs_s3_credentials_expired(struct cfs_s3_credentials *c, const struct cfs_s3_keys *keys);

/* One function per source of credentials. -ENOENT: the source has none. */
int cfs_s3_keys_new(const char *access, const char *secret, const char *token, int64_t expires_s,
		    struct cfs_s3_keys **ret);
int cfs_s3_keys_from_profile(struct cfs_s3_keys **ret);
int cfs_s3_keys_from_instance(cfs_deadline_t deadline, struct cfs_s3_keys **ret);

/* ---- signature ---- */

struct cfs_s3_signer {
	pthread_mutex_t lock; /* protects what follows; a leaf */
	const struct cfs_s3_keys *keys;
	char day[9];
	uint8_t key[32];
};

/* Headers that are signed, in the order in which they are. */
enum cfs_s3_header {
	CFS_S3_CONTENT_MD5,
	CFS_S3_HOST,
	CFS_S3_IF_NONE_MATCH,
	CFS_S3_CHECKSUM,
	CFS_S3_CONTENT_SHA256,
	CFS_S3_DATE,
	CFS_S3_META_TABLE,
	CFS_S3_META_CRC32C,
	CFS_S3_TOKEN,
	CFS_S3_STORAGE_CLASS,
	CFS_S3_TAGGING,
	CFS_S3_N_HEADERS
};
extern const char *const cfs_s3_header_names[CFS_S3_N_HEADERS];

struct cfs_s3_to_sign {
	const char *method;
	const char *path;		       /* encoded */
	const char *query;		       /* encoded, sorted, "name=value&..."; "" */
	const char *headers[CFS_S3_N_HEADERS]; /* values, NULL: not sent */
	time_t now;
};

void cfs_s3_signer_init(struct cfs_s3_signer *s);
void cfs_s3_signer_fini(struct cfs_s3_signer *s);
/*
 * Sets date and token among what->headers. Content-SHA256 must be there. *ret_authorization: the
 * value of that header, malloc'ed.
 */
int cfs_s3_sign(struct cfs_s3_signer *s, const char *region, const struct cfs_s3_keys *keys,
		struct cfs_s3_to_sign *what, char ret_date[17], char **ret_authorization);

/* Everything but A-Z a-z 0-9 - _ . ~ becomes %XX, '/' unless it is kept. Needs 3 * strlen + 1. */
void cfs_s3_encode(const char *text, bool keep_slash, char *ret);

/* ---- checksums of bodies ---- */

#define CFS_S3_TABLE_MAX  1100
#define CFS_S3_CRC_BASE64 9
#define CFS_S3_MD5_LEN	  16
#define CFS_S3_SHA256_LEN 32
#define CFS_S3_HASH_MAX	  64

struct cfs_s3_response {
	struct cfs_http_response http;
	bool has_crc;
	uint32_t crc;		      /* x-amz-meta-crc32c */
	char table[CFS_S3_TABLE_MAX]; /* x-amz-meta-cachefs-crc32c; "" */
	char checksum[16];	      /* x-amz-checksum-crc32c; "" */
	char region[64];
};

enum cfs_s3_hash { CFS_S3_MD5, CFS_S3_SHA256 };

enum cfs_s3_verdict {
	CFS_S3_COVERED,	  /* a checksum of the object matches all of it */
	CFS_S3_UNCOVERED, /* no checksum covers all of it */
	CFS_S3_DAMAGED,
};

/* The value of x-amz-meta-cachefs-crc32c. */
void cfs_s3_table_make(const char *key, const struct iovec *iov, int n, char ret[CFS_S3_TABLE_MAX]);
/* Checks resp->received bytes from off on, of `total`, against the object's own checksums. */
enum cfs_s3_verdict cfs_s3_judge_body(const char *key, const struct cfs_s3_response *resp,
				      const struct iovec *iov, int n, uint64_t off, uint64_t total);
/* An ETag is the MD5 of the object, unless the server has encrypted it or it came in parts. */
enum cfs_s3_verdict cfs_s3_judge_etag(const char *etag, const struct iovec *iov, int n,
				      uint64_t len);
/* Of the first len bytes. */
uint32_t cfs_s3_crc(const struct iovec *iov, int n, uint64_t len);
int cfs_s3_digest(enum cfs_s3_hash which, const struct iovec *iov, int n, uint64_t len,
		  uint8_t ret[CFS_S3_HASH_MAX]);
void cfs_s3_hex(const uint8_t *hash, size_t len, char *ret);
/* As servers write it in x-amz-checksum-crc32c. */
void cfs_s3_base64_crc(uint32_t crc, char ret[CFS_S3_CRC_BASE64]);

/* ---- calls ---- */

/* Values of headers by tier, NULL: none. They never change: adopt() puts others in their place. */
struct cfs_s3_classes {
	unsigned users; /* the store, and puts */
	char *storage[CFS_OBJECT_TIERS], *tags[CFS_OBJECT_TIERS];
};

struct cfs_s3 {
	struct cfs_object_store base; /* first */
	struct cfs_s3_endpoint endpoint;
	struct cfs_s3_credentials *credentials;
	struct cfs_s3_signer signer;
	struct cfs_http *http;
	pthread_mutex_t classes_lock; /* protects `classes` and its users; a leaf */
	struct cfs_s3_classes *classes;
	_Atomic bool no_del_many; /* the server lacks DeleteObjects */
	_Atomic bool unconfirmed; /* the server does not confirm a CRC32C */
};

struct cfs_s3_call {
	const char *method;
	const char *key;		       /* NULL: the bucket itself */
	const char *query;		       /* as in cfs_s3_to_sign; NULL: none */
	const char *range;		       /* value of Range; NULL: none */
	const char *headers[CFS_S3_N_HEADERS]; /* those of the body and the object */
	bool hash_body;			       /* MD5 and SHA-256 go with it, to be checked */
	const struct iovec *src, *dst;
	int n_src, n_dst;
	uint64_t dst_off;
	cfs_http_sink_fn sink;
	void *sink_arg;
};

/*
 * 0 for a status of 2xx, else a negative errno, with the cause recorded:
 * -ENOENT no such key, -ENODEV no such bucket, -EACCES, -ERANGE the range is beyond the end.
 * ret->http.status is 0 and ret->http.error "" when there was no answer.
 */
int cfs_s3_call(struct cfs_s3 *s, const struct cfs_s3_call *call, struct cfs_s3_response *ret,
		cfs_deadline_t deadline);

/* The text in <name>...</name>, or "". */
void cfs_s3_xml_value(const char *xml, const char *name, char *ret, size_t size);

/* ---- verbs with XML ---- */

int cfs_s3_list(struct cfs_object_store *o, const char *prefix, const char *after,
		cfs_object_list_fn fn, void *arg, cfs_deadline_t deadline);
int cfs_s3_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
		    cfs_deadline_t deadline);
int cfs_s3_del(struct cfs_object_store *o, const char *key, cfs_deadline_t deadline);

int cfs_object_open_s3(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		       char err[CFS_OBJECT_ERRLEN]);

#endif

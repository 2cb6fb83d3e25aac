/* SPDX-License-Identifier: Apache-2.0 */
/* Restores the secrets that a dump lacks, from options and the environment. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text/json.h"
#include "cmd/dump/load.h"

enum { KEY_MAX = 64 << 10 };

static bool is_removed(json_t *setting, const char *name)
{
	const char *v = json_string_value(json_object_get(setting, name));

	return v && !strcmp(v, "removed");
}

int load_read_key(struct load *l, char **ret)
{
	FILE *f = fopen(l->key_path, "re");
	char *text = malloc(KEY_MAX + 1);
	size_t n = 0;
	int r = f && text ? 0 : -errno;

	if (!r) {
		n = fread(text, 1, KEY_MAX, f);
		text[n] = '\0';
		if (ferror(f) || !strstr(text, "PRIVATE KEY"))
			r = -EINVAL;
	}
	if (f)
		fclose(f);
	if (r) {
		snprintf(l->err, sizeof(l->err), "%.200s is not a private key: %s", l->key_path,
			 strerror(-r));
		free(text);
		return r;
	}
	*ret = text;
	return 0;
}

/* Without its key an encrypted volume would be taken for an unencrypted one. */
static int put_key(struct load *l, json_t *setting)
{
	char *key;
	int r;

	if (!is_removed(setting, "EncryptKey"))
		return 0;
	if (!l->key_path) {
		snprintf(l->err, sizeof(l->err),
			 "the dump is without the encryption key: give it with --encrypt-key");
		return -EKEYREJECTED;
	}
	r = load_read_key(l, &key);
	if (r)
		return r;
	json_object_set_new(setting, "EncryptKey", json_string(key));
	free(key);
	return 0;
}

int load_secrets(struct load *l, char **text)
{
	static const struct {
		const char *name, *env;
	} keys[] = {{"SecretKey", "SECRET_KEY"}, {"SessionToken", "SESSION_TOKEN"}};
	json_t *setting = cfs_json_load(*text, strlen(*text), NULL);
	bool any = is_removed(setting, "EncryptKey");
	cfs_auto_free char *clear = NULL;
	struct cfs_setting *s = NULL;
	char *sealed;
	size_t i;
	int r = put_key(l, setting);

	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const char *v = getenv(keys[i].env);

		if (!is_removed(setting, keys[i].name))
			continue;
		any = true;
		l->secrets_removed |= !v;
		json_object_set_new(setting, keys[i].name, json_string(v ? v : ""));
	}
	if (r || !any)
		goto out;
	json_object_set_new(setting, "KeyEncrypted", json_false());
	clear = cfs_json_dump(setting, 0);
	r = clear ? cfs_setting_decode(clear, strlen(clear), &s, l->err) : -ENOMEM;
	if (r)
		goto out;
	s->key_encrypted = true;
	r = cfs_setting_encode(s, &sealed);
	if (!r) {
		free(*text);
		*text = sealed;
	}
out:
	cfs_setting_free(s);
	json_decref(setting);
	return r;
}

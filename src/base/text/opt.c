/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "opt.h"

#define HELP_WIDTH  100
#define HELP_COLUMN 32

struct suffix {
	const char *name;
	uint64_t factor;
};

/* Largest first: the order in which cfs_opt_show() tries them. */
static const struct suffix size_suffixes[] = {
	{"P", (uint64_t)1 << 50},
	{"T", (uint64_t)1 << 40},
	{"G", (uint64_t)1 << 30},
	{"M", (uint64_t)1 << 20},
	{"K", (uint64_t)1 << 10},
	{"B", 1},
	{NULL, 0},
};
static const struct suffix duration_suffixes[] = {
	{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}, {NULL, 0},
};

#define fail(err, ...) cfs_fail(err, -EINVAL, __VA_ARGS__)

/* A decimal number in billionths, exactly. Returns what follows it, NULL when there is none. */
static const char *parse_decimal(const char *s, unsigned __int128 *ret)
{
	const char *start = s;
	uint64_t scale = 1000000000;
	unsigned __int128 v = 0;

	for (; isdigit((unsigned char)*s); s++) {
		v = v * 10 + (unsigned)(*s - '0') * scale;
		if (v / 1000000000 > UINT64_MAX)
			return NULL;
	}
	if (s == start)
		return NULL;
	if (*s == '.') {
		if (!isdigit((unsigned char)s[1]))
			return NULL;
		for (s++; isdigit((unsigned char)*s); s++) {
			scale /= 10;
			v += (unsigned)(*s - '0') * scale;
		}
	}
	*ret = v;
	return s;
}

/* number * factor, rounded to nearest; -ERANGE when it does not fit. */
static int scale(unsigned __int128 billionths, uint64_t factor, uint64_t *ret)
{
	unsigned __int128 v;

	/* Below 2^64 * 2^30 times below 2^51: may leave 128 bits. */
	if (factor && billionths > ~(unsigned __int128)0 / 2 / factor)
		return -ERANGE;
	v = (billionths * factor + 500000000) / 1000000000;
	if (v > UINT64_MAX)
		return -ERANGE;
	*ret = (uint64_t)v;
	return 0;
}

static bool has_prefix_nocase(const char *s, const char *prefix)
{
	return strncasecmp(s, prefix, strlen(prefix)) == 0;
}

int cfs_parse_size(const char *text, uint64_t unit, uint64_t *ret)
{
	const struct suffix *sf;
	unsigned __int128 n;
	const char *s;

	s = parse_decimal(text, &n);
	if (!s)
		return -EINVAL;
	if (!*s)
		return scale(n, unit ? unit : 1, ret);
	for (sf = size_suffixes; sf->name; sf++)
		if (has_prefix_nocase(s, sf->name))
			break;
	if (!sf->name)
		return -EINVAL;
	/* K, KB and KiB are the same here, as in the tools of this field. */
	s++;
	if (sf->factor > 1 && has_prefix_nocase(s, "ib"))
		s += 2;
	else if (sf->factor > 1 && has_prefix_nocase(s, "b"))
		s++;
	return *s ? -EINVAL : scale(n, sf->factor, ret);
}

/* Terms may be joined, "1h30m", as Go programs print them. */
int cfs_parse_duration_ms(const char *text, uint64_t unit_ms, uint64_t *ret)
{
	const struct suffix *sf;
	uint64_t sum = 0, part;
	const char *s = text;
	bool single = true;
	unsigned __int128 n;
	size_t len;
	int r;

	do {
		s = parse_decimal(s, &n);
		if (!s)
			return -EINVAL;
		if (!*s && single)
			return scale(n, unit_ms ? unit_ms : 1000, ret);
		len = strcspn(s, "0123456789.");
		for (sf = duration_suffixes; sf->name; sf++)
			if (strlen(sf->name) == len && strncmp(s, sf->name, len) == 0)
				break;
		if (!sf->name)
			return -EINVAL;
		r = scale(n, sf->factor, &part);
		if (r < 0 || __builtin_add_overflow(sum, part, &sum))
			return -ERANGE;
		s += len;
		single = false;
	} while (*s);
	*ret = sum;
	return 0;
}

bool cfs_opt_same_name(const char *name, const char *given)
{
	for (; *name && *given; name++, given++)
		if ((*name == '_' ? '-' : *name) != (*given == '_' ? '-' : *given))
			return false;
	return *name == *given;
}

static const struct cfs_opt *find(const struct cfs_opt *table, const char *name)
{
	for (; table->name; table++)
		if (cfs_opt_same_name(table->name, name))
			return table;
	return NULL;
}

static const struct cfs_opt *find_letter(const struct cfs_opt *table, char letter)
{
	for (; table->name; table++)
		if (table->letter == letter)
			return table;
	return NULL;
}

/* The flag that "no-NAME" turns off. */
static const struct cfs_opt *find_negated(const struct cfs_opt *table, const char *name)
{
	const struct cfs_opt *o;

	if (strncmp(name, "no-", 3) != 0 && strncmp(name, "no_", 3) != 0)
		return NULL;
	o = find(table, name + 3);
	return o && o->kind == CFS_OPT_FLAG ? o : NULL;
}

static void *field(const struct cfs_opt *o, void *dst)
{
	return (char *)dst + o->offset;
}

static size_t field_size(const struct cfs_opt *o)
{
	switch (o->kind) {
	case CFS_OPT_FLAG:
		return sizeof(bool);
	case CFS_OPT_FRACTION:
		return sizeof(double);
	case CFS_OPT_STRING:
		return sizeof(char *);
	case CFS_OPT_CHOICE:
		return sizeof(int);
	default:
		return sizeof(uint64_t);
	}
}

static int parse_bool(const char *value, bool *ret)
{
	if (strcmp(value, "true") == 0 || strcmp(value, "1") == 0)
		*ret = true;
	else if (strcmp(value, "false") == 0 || strcmp(value, "0") == 0)
		*ret = false;
	else
		return -EINVAL;
	return 0;
}

static int parse_int(const char *value, int64_t *ret)
{
	long long v;
	char *end;

	errno = 0;
	v = strtoll(value, &end, 10);
	if (end == value || *end || isspace((unsigned char)*value))
		return -EINVAL;
	if (errno)
		return -ERANGE;
	*ret = v;
	return 0;
}

static int parse_fraction(const char *value, double *ret)
{
	unsigned __int128 n;
	const char *end;

	end = parse_decimal(value, &n);
	if (!end || *end)
		return -EINVAL;
	if (n > 1000000000)
		return -ERANGE;
	*ret = (double)n / 1e9;
	return 0;
}

static int parse_choice(const struct cfs_opt *o, const char *value, int *ret)
{
	int i;

	for (i = 0; o->choices[i]; i++) {
		if (strcmp(o->choices[i], value) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

static int in_bounds(const struct cfs_opt *o, uint64_t v)
{
	if (o->max <= 0)
		return 0;
	return v < (uint64_t)o->min || v > (uint64_t)o->max ? -ERANGE : 0;
}

/* Parses into *field; the field is untouched on failure. */
static int parse_value(const struct cfs_opt *o, void *dst, const char *value)
{
	union {
		int64_t i;
		uint64_t u;
		double d;
		char *s;
		bool b;
		int c;
	} v;
	int r = 0;

	switch (o->kind) {
	case CFS_OPT_FLAG:
		r = parse_bool(value, &v.b);
		break;
	case CFS_OPT_INT:
		r = parse_int(value, &v.i);
		if (r == 0 && (o->min || o->max) && (v.i < o->min || v.i > o->max))
			r = -ERANGE;
		break;
	case CFS_OPT_SIZE:
		r = cfs_parse_size(value, o->unit, &v.u);
		if (r == 0)
			r = in_bounds(o, v.u);
		break;
	case CFS_OPT_DURATION:
		r = cfs_parse_duration_ms(value, o->unit, &v.u);
		if (r == 0)
			r = in_bounds(o, v.u);
		break;
	case CFS_OPT_FRACTION:
		r = parse_fraction(value, &v.d);
		break;
	case CFS_OPT_STRING:
		if (o->min && !*value)
			return -EINVAL;
		v.s = strdup(value);
		if (!v.s)
			return -ENOMEM;
		free(*(char **)field(o, dst));
		break;
	case CFS_OPT_CHOICE:
		r = parse_choice(o, value, &v.c);
		break;
	}
	if (r == 0)
		memcpy(field(o, dst), &v, field_size(o));
	return r;
}

static const char *expected(const struct cfs_opt *o)
{
	switch (o->kind) {
	case CFS_OPT_FLAG:
		return "true or false";
	case CFS_OPT_INT:
		return "a whole number";
	case CFS_OPT_SIZE:
		return "a size such as 512K, 64M or 2G";
	case CFS_OPT_DURATION:
		return "a duration such as 500ms, 10s or 1h";
	case CFS_OPT_FRACTION:
		return "a number from 0 to 1";
	case CFS_OPT_STRING:
	case CFS_OPT_CHOICE:
		break;
	}
	return "what it takes"; /* never: these have words of their own */
}

static void join_choices(const struct cfs_opt *o, const char *sep, char *buf, size_t size)
{
	size_t used = 0;
	int i;

	buf[0] = 0;
	for (i = 0; o->choices[i] && used < size; i++)
		used += (size_t)snprintf(buf + used, size - used, "%s%s", i ? sep : "",
					 o->choices[i]);
}

static void show_number(const struct cfs_opt *o, int64_t value, char *buf, size_t size);

/* Writes a line that tells why the value is wrong, and which values are right. */
static int explain(const struct cfs_opt *o, const char *value, int r, char err[CFS_OPT_ERRLEN])
{
	char low[32], high[32], choices[160];

	if (o->flags & CFS_OPT_SECRET)
		value = "***";
	if (r == -ENOMEM)
		return cfs_fail(err, r, "option %s: out of memory", o->name);
	if (o->kind == CFS_OPT_CHOICE) {
		join_choices(o, ", ", choices, sizeof(choices));
		return fail(err, "option %s: '%.60s' is none of %s", o->name, value, choices);
	}
	if (o->kind == CFS_OPT_STRING)
		return fail(err, "option %s is empty", o->name);
	if (r == -ERANGE && (o->min || o->max)) {
		show_number(o, o->min, low, sizeof(low));
		show_number(o, o->max, high, sizeof(high));
		return fail(err, "option %s: '%.60s' is not within %s to %s", o->name, value, low,
			    high);
	}
	return fail(err, "option %s: '%.60s' is not %s", o->name, value, expected(o));
}

static int set(const struct cfs_opt *o, void *dst, const char *value, char err[CFS_OPT_ERRLEN])
{
	int r;

	if (!value && o->kind == CFS_OPT_FLAG)
		value = "true";
	if (!value)
		return fail(err, "option %s needs a value", o->name);
	r = parse_value(o, dst, value);
	return r < 0 ? explain(o, value, r, err) : 0;
}

int cfs_opt_set(const struct cfs_opt *table, void *dst, const char *name, const char *value,
		char err[CFS_OPT_ERRLEN])
{
	const struct cfs_opt *o;

	o = find(table, name);
	if (o)
		return set(o, dst, value, err);
	o = find_negated(table, name);
	if (!o)
		return cfs_fail(err, -ENOENT, "unknown option %.100s", name);
	if (value)
		return fail(err, "option no-%s takes no value", o->name);
	return set(o, dst, "false", err);
}

/* Like cfs_opt_set() for what other users of the machine can read in the process list. */
static int set_public(const struct cfs_opt *table, void *dst, const char *name, const char *value,
		      char err[CFS_OPT_ERRLEN])
{
	const struct cfs_opt *o = find(table, name);

	if (o && (o->flags & CFS_OPT_SECRET))
		return fail(err, "option %s is a secret: give it in the environment or in a file",
			    o->name);
	return cfs_opt_set(table, dst, name, value, err);
}

int cfs_opt_arg(const struct cfs_opt *table, void *dst, int argc, char *const *argv,
		char err[CFS_OPT_ERRLEN])
{
	const struct cfs_opt *o;
	const char *given, *eq, *value = NULL;
	int used = 1, r;
	char *name;

	if (argc < 1 || argv[0][0] != '-' || !argv[0][1] || strcmp(argv[0], "--") == 0)
		return 0;
	given = argv[0] + 2;
	if (argv[0][1] != '-') {
		o = argv[0][2] ? NULL : find_letter(table, argv[0][1]);
		if (!o)
			return cfs_fail(err, -ENOENT, "unknown option %.100s", argv[0]);
		given = o->name;
	}
	eq = strchr(given, '=');
	name = eq ? strndup(given, (size_t)(eq - given)) : strdup(given);
	if (!name)
		return cfs_fail(err, -ENOMEM, "out of memory");
	o = find(table, name);
	if (eq) {
		value = eq + 1;
	} else if (o && o->kind != CFS_OPT_FLAG && argc > 1) {
		value = argv[1];
		used = 2;
	}
	r = set_public(table, dst, name, value, err);
	free(name);
	return r < 0 ? r : used;
}

/* Cuts the first item off a list in place, un-escaping "\,". */
static char *next_item(char **list)
{
	char *item = *list, *from = item, *to = item;

	for (; *from && *from != ','; from++) {
		if (from[0] == '\\' && from[1] == ',')
			from++;
		*to++ = *from;
	}
	*list = *from ? from + 1 : NULL;
	*to = 0;
	return item;
}

int cfs_opt_list(const struct cfs_opt *table, void *dst, const char *list,
		 cfs_opt_unknown_fn unknown, void *arg, char err[CFS_OPT_ERRLEN])
{
	char *copy, *rest, *name, *value;
	int r = 0;

	copy = strdup(list);
	if (!copy)
		return cfs_fail(err, -ENOMEM, "out of memory");
	for (rest = copy; rest && r >= 0;) {
		name = next_item(&rest);
		if (!*name)
			continue;
		value = strchr(name, '=');
		if (value)
			*value++ = 0;
		r = set_public(table, dst, name, value, err);
		if (r == -ENOENT && unknown)
			r = unknown(arg, name, value);
	}
	free(copy);
	return r < 0 ? r : 0;
}

int cfs_opt_defaults(const struct cfs_opt *table, void *dst)
{
	const struct cfs_opt *o;
	int r;

	for (o = table; o->name; o++)
		memset(field(o, dst), o->flags & CFS_OPT_UNSET ? 0xff : 0, field_size(o));
	for (o = table; o->name; o++) {
		r = o->def && !(o->flags & CFS_OPT_UNSET) ? parse_value(o, dst, o->def) : 0;
		if (r < 0) {
			cfs_opt_free(table, dst);
			return r;
		}
	}
	return 0;
}

void cfs_opt_free(const struct cfs_opt *table, void *dst)
{
	char **s;

	for (; table->name; table++) {
		if (table->kind != CFS_OPT_STRING)
			continue;
		s = field(table, dst);
		free(*s);
		*s = NULL;
	}
}

/* With the largest suffix that divides the value: reads back as the same value. */
static void show_scaled(const struct suffix *sf, uint64_t value, char *buf, size_t size)
{
	if (!value) {
		snprintf(buf, size, "0");
		return;
	}
	while (value % sf->factor)
		sf++;
	snprintf(buf, size, "%llu%s", (unsigned long long)(value / sf->factor), sf->name);
}

static void show_number(const struct cfs_opt *o, int64_t value, char *buf, size_t size)
{
	if (o->kind == CFS_OPT_SIZE)
		show_scaled(size_suffixes, (uint64_t)value, buf, size);
	else if (o->kind == CFS_OPT_DURATION)
		show_scaled(duration_suffixes, (uint64_t)value, buf, size);
	else
		snprintf(buf, size, "%lld", (long long)value);
}

void cfs_opt_show(const struct cfs_opt *o, const void *src, char *buf, size_t size)
{
	const void *f = (const char *)src + o->offset;
	const char *s;
	int64_t number;

	switch (o->kind) {
	case CFS_OPT_FLAG:
		snprintf(buf, size, "%s", *(const bool *)f ? "true" : "false");
		break;
	case CFS_OPT_INT:
	case CFS_OPT_SIZE:
	case CFS_OPT_DURATION:
		memcpy(&number, f, sizeof(number));
		show_number(o, number, buf, size);
		break;
	case CFS_OPT_FRACTION:
		snprintf(buf, size, "%.9g", *(const double *)f);
		break;
	case CFS_OPT_STRING:
		s = *(char *const *)f;
		if (s && (o->flags & CFS_OPT_SECRET))
			s = "***";
		snprintf(buf, size, "%s", s ? s : "");
		break;
	case CFS_OPT_CHOICE:
		snprintf(buf, size, "%s", o->choices[*(const int *)f]);
		break;
	}
}

static void help_words(FILE *out, const char *text, int *column)
{
	size_t len;

	for (; *text; text += len) {
		text += strspn(text, " ");
		len = strcspn(text, " ");
		if (*column > HELP_COLUMN && *column + 1 + (int)len > HELP_WIDTH)
			*column = fprintf(out, "\n%*s", HELP_COLUMN, "") - 1;
		*column += fprintf(out, "%s%.*s", *column > HELP_COLUMN ? " " : "", (int)len, text);
	}
}

static void help_one(const struct cfs_opt *o, FILE *out)
{
	char left[256], choices[160], def[160], letter[8];
	int column;

	if (o->kind == CFS_OPT_FLAG) {
		snprintf(left, sizeof(left), "  --%s", o->name);
	} else if (o->kind == CFS_OPT_CHOICE && !o->arg) {
		join_choices(o, "|", choices, sizeof(choices));
		snprintf(left, sizeof(left), "  --%s %s", o->name, choices);
	} else {
		snprintf(left, sizeof(left), "  --%s %s", o->name, o->arg ? o->arg : "VALUE");
	}
	column = fprintf(out, "%-*s", HELP_COLUMN, left);
	if (column > HELP_COLUMN || strlen(left) >= HELP_COLUMN)
		column = fprintf(out, "\n%*s", HELP_COLUMN, "") - 1;
	help_words(out, o->help ? o->help : "", &column);
	if (o->letter) {
		snprintf(letter, sizeof(letter), "(-%c)", o->letter);
		help_words(out, letter, &column);
	}
	if (o->def && o->kind != CFS_OPT_FLAG) {
		snprintf(def, sizeof(def), "[%s]", o->def);
		help_words(out, def, &column);
	} else if (o->def && strcmp(o->def, "true") == 0) {
		help_words(out, "[on]", &column);
	}
	fputc('\n', out);
}

void cfs_opt_help(const struct cfs_opt *table, FILE *out)
{
	for (; table->name; table++)
		if (!(table->flags & CFS_OPT_HIDDEN))
			help_one(table, out);
}

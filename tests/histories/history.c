/* SPDX-License-Identifier: Apache-2.0 */
#include "history.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[OP_COUNT] = {
	[OP_CREATE] = "create",
	[OP_PUT] = "put",
	[OP_PUT_CREATE] = "put+",
	[OP_GET] = "get",
	[OP_STAT] = "stat",
	[OP_LINK] = "link",
	[OP_SYMLINK] = "symlink",
	[OP_READLINK] = "readlink",
	[OP_MKDIR] = "mkdir",
	[OP_UNLINK] = "unlink",
	[OP_RMDIR] = "rmdir",
	[OP_RENAME] = "rename",
	[OP_RENAME_NEW] = "rename-new",
	[OP_EXCHANGE] = "exchange",
	[OP_LIST] = "list",
	[OP_LOCK] = "lock",
	[OP_UNLOCK] = "unlock",
};
static const char *const kinds[] = {"none", "file", "dir", "link"};
static const char *const classes[] = {"posix", "flock"};

bool op_changes(const struct op *op)
{
	switch (op->kind) {
	case OP_GET:
	case OP_PUT:
	case OP_STAT:
	case OP_READLINK:
	case OP_LIST:
	case OP_LOCK:
	case OP_UNLOCK:
		return false;
	default:
		return true;
	}
}

bool op_unknown(const struct op *op)
{
	switch (op->error) {
	case EIO:
	case EINTR:
	case ENOTCONN:
	case ECONNABORTED:
	case ETIMEDOUT:
		return true;
	default:
		return false;
	}
}

static bool two_paths(enum op_kind k)
{
	return k == OP_LINK || k == OP_RENAME || k == OP_RENAME_NEW || k == OP_EXCHANGE;
}

static void print_path(FILE *to, struct path p)
{
	if (p.top < 0)
		fputs(" .", to);
	else if (p.sub < 0)
		fprintf(to, " n%d", p.top);
	else
		fprintf(to, " n%d/x%d", p.top, p.sub);
}

static void print_value(FILE *to, uint64_t v)
{
	if (v == TORN)
		fputs(" torn", to);
	else
		fprintf(to, " %" PRIu64, v);
}

void op_print(FILE *to, const struct op *op)
{
	fprintf(to, "%u %u %" PRIu64 "-%" PRIu64 " %s", op->arena, op->client, op->invoked,
		op->returned, names[op->kind]);
	if (op->kind == OP_LOCK || op->kind == OP_UNLOCK)
		fprintf(to, " %s", classes[op->value]);
	else
		print_path(to, op->a);
	if (two_paths(op->kind))
		print_path(to, op->b);
	if (op->kind == OP_PUT || op->kind == OP_PUT_CREATE || op->kind == OP_SYMLINK)
		print_value(to, op->value);
	fputs(" =", to);
	if (op->ino != NO_INODE && op->kind != OP_STAT)
		fprintf(to, " %" PRIu64, op->ino);
	if (op->error) {
		fprintf(to, " %s\n", strerrorname_np(op->error));
		return;
	}
	switch (op->kind) {
	case OP_CREATE:
	case OP_PUT:
	case OP_PUT_CREATE:
		break;
	case OP_GET:
	case OP_READLINK:
		print_value(to, op->value);
		break;
	case OP_STAT:
		fprintf(to, " %s %" PRIu64, kinds[op->node], op->ino);
		break;
	case OP_LIST:
		for (int i = 0; i < TOP_NAMES; i++)
			if (op->value >> i & 1)
				fprintf(to, " %c%d", op->a.top < 0 ? 'n' : 'x', i);
		break;
	default:
		fputs(" ok", to);
	}
	fputc('\n', to);
}

static int parse_word(const char *word, const char *const *table, int n)
{
	for (int i = 0; word && i < n; i++)
		if (!strcmp(word, table[i]))
			return i;
	return -1;
}

static bool parse_path(const char *s, struct path *p)
{
	int top, sub, n = 0;
	*p = (struct path){-1, -1};
	if (!s)
		return false;
	if (!strcmp(s, "."))
		return true;
	if (sscanf(s, "n%d/x%d%n", &top, &sub, &n) == 2 && !s[n]) {
		*p = (struct path){(int8_t)top, (int8_t)sub};
		return top >= 0 && top < TOP_NAMES && sub >= 0 && sub < SUB_NAMES;
	}
	if (sscanf(s, "n%d%n", &top, &n) == 1 && !s[n]) {
		p->top = (int8_t)top;
		return top >= 0 && top < TOP_NAMES;
	}
	return false;
}

static bool parse_number(const char *s, uint64_t *v)
{
	char *end;
	if (!s)
		return false;
	*v = strcmp(s, "torn") ? strtoull(s, &end, 10) : TORN;
	return *v == TORN || (end != s && !*end);
}

static int parse_errno(const char *s)
{
	for (int e = 1; s && e < 200; e++) {
		const char *name = strerrorname_np(e);
		if (name && !strcmp(name, s))
			return e;
	}
	return 0;
}

/* The part behind the "=". */
static bool parse_result(char **save, struct op *op)
{
	char *w = strtok_r(NULL, " \n", save);
	if (op->kind == OP_LIST && !parse_errno(w)) {
		for (op->value = 0; w; w = strtok_r(NULL, " \n", save)) {
			if (strlen(w) != 2 || w[1] < '0' || w[1] >= '0' + TOP_NAMES)
				return false;
			op->value |= 1U << (w[1] - '0');
		}
		return true;
	}
	if (w && w[0] >= '0' && w[0] <= '9') {
		if (op->kind == OP_READLINK)
			return parse_number(w, &op->value);
		if (!parse_number(w, &op->ino))
			return false;
		w = strtok_r(NULL, " \n", save);
		if (op->kind == OP_GET && w && !parse_errno(w))
			return parse_number(w, &op->value);
		op->error = parse_errno(w);
		return !w || op->error;
	}
	if (op->kind == OP_STAT && !parse_errno(w)) {
		int kind = parse_word(w, kinds, 4);
		op->node = kind < 0 ? KIND_NONE : (enum node_kind)kind;
		return kind > 0 && parse_number(strtok_r(NULL, " \n", save), &op->ino);
	}
	op->error = parse_errno(w);
	return op->error || (w && !strcmp(w, "ok"));
}

int op_parse(const char *line, struct op *ret_op)
{
	char buf[256], *save = NULL, *w;
	struct op op = {.b = {-1, -1}};
	int n = 0;
	if (sscanf(line, "%u %u %" SCNu64 "-%" SCNu64 " %n", &op.arena, &op.client, &op.invoked,
		   &op.returned, &n) != 4 ||
	    !n || strlen(line + n) >= sizeof(buf) || op.returned < op.invoked ||
	    op.client >= MAX_CLIENT)
		return -EINVAL;
	strcpy(buf, line + n);
	int kind = parse_word(strtok_r(buf, " \n", &save), names, OP_COUNT);
	if (kind < 0)
		return -EINVAL;
	op.kind = (enum op_kind)kind;
	if (op.kind == OP_LOCK || op.kind == OP_UNLOCK) {
		int class = parse_word(strtok_r(NULL, " \n", &save), classes, 2);
		if (class < 0)
			return -EINVAL;
		op.value = (uint64_t) class;
	} else if (!parse_path(strtok_r(NULL, " \n", &save), &op.a) ||
		   (op.a.top < 0 && op.kind != OP_LIST)) {
		return -EINVAL;
	}
	if (two_paths(op.kind) &&
	    (!parse_path(strtok_r(NULL, " \n", &save), &op.b) || op.b.top < 0))
		return -EINVAL;
	if ((op.kind == OP_PUT || op.kind == OP_PUT_CREATE || op.kind == OP_SYMLINK) &&
	    !parse_number(strtok_r(NULL, " \n", &save), &op.value))
		return -EINVAL;
	w = strtok_r(NULL, " \n", &save);
	if (!w || strcmp(w, "=") || !parse_result(&save, &op))
		return -EINVAL;
	*ret_op = op;
	return 0;
}

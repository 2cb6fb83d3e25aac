/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judges histories that tests/histories/drive has recorded, or that were written by hand (history.h).
 *
 *     judge [--faults] [--deaths] FILE...
 *
 * --faults  parts of the system were stopped: EIO, EINTR, ENOTCONN, ECONNABORTED and ETIMEDOUT do
 *           not say whether the operation was done
 * --deaths  processes of mounts were killed: as --faults, and docs/posix.md names the removals
 *           and renames that are answered with success although another mount was first
 *
 * A failure is shrunk to the operations that matter: those that change nothing are left out, and of
 * the others that are left out it is assumed that they may have happened or not. The printed
 * history cannot be explained however the operations that are left out ended.
 *
 * Exit status: 0 explained, 1 not, 2 usage, or a history that cannot be read.
 */
#include "judge.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef void judge_fn(const struct op *, size_t, const struct rules *, struct verdict *);

static judge_fn *const judges[] = {judge_names, judge_data, judge_locks};
static const char *const parts[] = {"names", "data", "locks"};

struct total {
	uint64_t ops, arenas, failed, gave_up, steps, unknown, stale;
};

static bool fails(judge_fn *judge, const struct op *ops, size_t n, const struct rules *rules)
{
	struct verdict v;
	judge(ops, n, rules, &v);
	return v.op != NULL;
}

/* Weakens runs of operations, halved again and again, as long as the rest still fails. */
static void weaken(judge_fn *judge, struct op *ops, size_t n, const struct rules *rules,
		   bool changes)
{
	struct op *tried = malloc(n * sizeof(*tried));
	struct rules quick = *rules;
	quick.most = 1000;
	for (size_t run = n / 8 + 1; tried && run; run /= 2) {
		for (size_t at = 0; at < n; at += run) {
			size_t end = at + run < n ? at + run : n;
			memcpy(tried, ops, n * sizeof(*ops));
			for (size_t i = at; i < end; i++)
				tried[i].weak |= (op_changes(&ops[i]) && !ops[i].error) == changes;
			if (memcmp(tried, ops, n * sizeof(*ops)) && fails(judge, tried, n, &quick))
				memcpy(ops, tried, n * sizeof(*ops));
		}
	}
	free(tried);
}

/* Operations that change nothing go first: they add no branch. */
static void shrink(judge_fn *judge, struct op *ops, size_t n, const struct rules *rules)
{
	weaken(judge, ops, n, rules, false);
	weaken(judge, ops, n, rules, true);
	weaken(judge, ops, n, rules, false);
}

static void report(const char *file, int part, const struct op *ops, size_t n,
		   const struct rules *rules, const struct verdict *v)
{
	struct op *kept = malloc(n * sizeof(*kept));
	size_t count = 0;
	printf("%s: arena %u, %s: %s:\n    ", file, ops[0].arena, parts[part], v->why);
	op_print(stdout, v->op);
	if (!kept)
		return;
	/* Nothing after the failure matters. */
	for (size_t i = 0; i < n; i++)
		if (ops[i].invoked <= v->op->returned)
			kept[count++] = ops[i];
	shrink(judges[part], kept, count, rules);
	puts("smallest history that fails:");
	for (size_t i = 0; i < count; i++) {
		if (kept[i].weak)
			continue;
		fputs("    ", stdout);
		op_print(stdout, &kept[i]);
	}
	free(kept);
}

static void judge_arena(const char *file, const struct op *ops, size_t n, const struct rules *rules,
			struct total *t)
{
	t->arenas++;
	for (size_t i = 0; i < n; i++) {
		t->unknown += op_unknown(&ops[i]);
		t->stale += ops[i].error == ESTALE;
	}
	for (int part = 0; part < 3; part++) {
		struct verdict v;
		judges[part](ops, n, rules, &v);
		t->steps += v.steps;
		t->gave_up += v.gave_up;
		if (!v.op)
			continue;
		t->failed++;
		report(file, part, ops, n, rules, &v);
	}
}

static int by_arena(const void *a, const void *b)
{
	const struct op *x = a, *y = b;
	if (x->arena != y->arena)
		return x->arena < y->arena ? -1 : 1;
	if (x->invoked != y->invoked)
		return x->invoked < y->invoked ? -1 : 1;
	return x->client < y->client ? -1 : x->client > y->client;
}

static int judge_file(const char *file, const struct rules *rules, struct total *t)
{
	FILE *f = fopen(file, "r");
	char line[256];
	struct op *ops = NULL;
	size_t n = 0, room = 0, number = 0;
	int r = 0;
	if (!f) {
		perror(file);
		return 2;
	}
	while (!r && fgets(line, sizeof(line), f)) {
		number++;
		if (line[0] == '#' || line[0] == '\n')
			continue;
		if (n == room) {
			room = room ? 2 * room : 4096;
			struct op *more = realloc(ops, room * sizeof(*ops));
			if (!more)
				abort();
			ops = more;
		}
		if (op_parse(line, &ops[n]) < 0) {
			fprintf(stderr, "%s:%zu: not an operation: %s", file, number, line);
			r = 2;
		}
		n++;
	}
	fclose(f);
	if (!r && n) {
		qsort(ops, n, sizeof(*ops), by_arena);
		for (size_t at = 0, end; at < n; at = end) {
			for (end = at; end < n && ops[end].arena == ops[at].arena; end++)
				ops[end].id = (uint32_t)(end - at);
			judge_arena(file, ops + at, end - at, rules, t);
		}
	}
	t->ops += n;
	free(ops);
	return r;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"faults", no_argument, NULL, 'f'}, {"deaths", no_argument, NULL, 'd'}, {0}};
	struct rules rules = {0};
	struct total t = {0};
	int c, r = 0;
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == '?')
			return 2;
		rules.faults = true;
		rules.deaths |= c == 'd';
	}
	if (optind == argc) {
		fputs("usage: judge [--faults] [--deaths] FILE...\n", stderr);
		return 2;
	}
	for (; optind < argc && !r; optind++)
		r = judge_file(argv[optind], &rules, &t);
	printf("operations=%" PRIu64 " arenas=%" PRIu64 " failed=%" PRIu64 " not_judged=%" PRIu64
	       " steps=%" PRIu64 " unknown=%" PRIu64 " stale=%" PRIu64 "\n",
	       t.ops, t.arenas, t.failed, t.gave_up, t.steps, t.unknown, t.stale);
	return r ? r : t.failed ? 1 : 0;
}

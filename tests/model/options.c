/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

struct options conf = {
	.seed = 1, .n_ops = 2000, .max_size = 8 << 20, .max_io = 256 << 10, .n_files = 3};

static uint64_t parse_size(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 0);

	switch (*end) {
	case 'k':
	case 'K':
		return n << 10;
	case 'm':
	case 'M':
		return n << 20;
	case 'g':
	case 'G':
		return n << 30;
	default:
		return n;
	}
}

__attribute__((noreturn)) static void usage(int code)
{
	fprintf(code ? stderr : stdout,
		"cfsx [options] DIR [DIR2...]\n"
		"  --seed N        which run (1)\n"
		"  --ops N         how long (2000)\n"
		"  --files N       1..16 (3)\n"
		"  --size BYTES    longest file, k m g allowed (8m)\n"
		"  --io BYTES      longest transfer (256k)\n"
		"  --allocate --punch --zero --copy   these operations too\n"
		"  --clone PROGRAM clone files too; PROGRAM is the cachefs command\n"
		"  --mixed         handles with O_DIRECT and mappings that stay, too\n"
		"  --no-mmap       without mapped reads and writes\n"
		"  --progress FILE keep count there of what was begun and what was synced\n"
		"  --verify        do nothing, check what an earlier run with the same options "
		"left\n"
		"  --verbose       print each operation\n");
	exit(code);
}

void parse_options(int argc, char **argv)
{
	enum {
		SEED = 256,
		OPS,
		FILES,
		SIZE,
		IO,
		ALLOCATE,
		PUNCH,
		ZERO,
		COPY,
		CLONE,
		MIXED,
		NO_MMAP,
		PROGRESS,
		VERIFY
	};
	static const struct option opts[] = {
		{"seed", required_argument, NULL, SEED},
		{"ops", required_argument, NULL, OPS},
		{"files", required_argument, NULL, FILES},
		{"size", required_argument, NULL, SIZE},
		{"io", required_argument, NULL, IO},
		{"allocate", no_argument, NULL, ALLOCATE},
		{"punch", no_argument, NULL, PUNCH},
		{"zero", no_argument, NULL, ZERO},
		{"copy", no_argument, NULL, COPY},
		{"clone", required_argument, NULL, CLONE},
		{"mixed", no_argument, NULL, MIXED},
		{"no-mmap", no_argument, NULL, NO_MMAP},
		{"progress", required_argument, NULL, PROGRESS},
		{"verify", no_argument, NULL, VERIFY},
		{"verbose", no_argument, NULL, 'v'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	unsigned i;
	int c;

	for (i = 0; i < OP_COUNT; i++)
		conf.enabled[i] = i < OP_ALLOCATE;
	while ((c = getopt_long(argc, argv, "vh", opts, NULL)) != -1) {
		switch (c) {
		case SEED:
			conf.seed = strtoull(optarg, NULL, 0);
			break;
		case OPS:
			conf.n_ops = strtoull(optarg, NULL, 0);
			break;
		case FILES:
			conf.n_files = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case SIZE:
			conf.max_size = parse_size(optarg);
			break;
		case IO:
			conf.max_io = parse_size(optarg);
			break;
		case ALLOCATE:
		case PUNCH:
		case ZERO:
		case COPY:
			conf.enabled[OP_ALLOCATE + (c - ALLOCATE)] = true;
			break;
		case CLONE:
			conf.enabled[OP_CLONE] = true;
			conf.clone_program = optarg;
			break;
		case MIXED:
			conf.mixed = true;
			break;
		case NO_MMAP:
			conf.enabled[OP_MAPWRITE] = conf.enabled[OP_MAPREAD] = false;
			break;
		case PROGRESS:
			conf.progress_path = optarg;
			break;
		case VERIFY:
			conf.verify = true;
			break;
		case 'v':
			conf.verbose = true;
			break;
		case 'h':
			usage(0);
		default:
			usage(2);
		}
	}
	for (; optind < argc && conf.n_dirs < MAX_DIRS; optind++)
		conf.dirs[conf.n_dirs++] = argv[optind];
	if (!conf.n_dirs || !conf.n_files || conf.n_files > MAX_FILES || !conf.max_size ||
	    !conf.max_io || (conf.clone_program && conf.progress_path))
		usage(2);
}

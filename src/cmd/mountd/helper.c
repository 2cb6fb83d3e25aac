/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.cachefs(8): the contract of mount(8), section EXTERNAL HELPERS:
 *	mount.cachefs SPEC DIR [-sfnvrw] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
 * in any order.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/access/cmd.h"
#include "cmd/mountd/mount.h"
#include "cmd/mountd/options/mountfile.h"

static void usage(FILE *out)
{
	fputs("usage: mount.cachefs META-URL|NAME DIR [-sfnvrw] [-o OPTIONS] [-t cachefs]\n\n"
	      "Called by mount(8) for `mount -t cachefs` and fstab lines. -f checks everything "
	      "but\n"
	      "does not mount, -s turns unknown options into warnings, -v is verbose.\n\n"
	      "Options for -o:\n",
	      out);
	cfs_opt_help(mount_table, out);
}

int cmd_mount_helper(int argc, char **argv)
{
	bool sloppy = false, verbose = false;
	char err[CFS_OPT_ERRLEN] = "";
	struct mount_opts o = {0};
	int c, r = CMD_USAGE;

	mount_opts_defaults(&o);
	/* -s may stand behind the -o that it applies to, so it is looked for first. */
	opterr = optind = 0;
	while ((c = getopt(argc, argv, "sfnvrwhN:o:t:")) != -1) {
		if (c == 's')
			sloppy = true;
	}
	optind = 0;
	opterr = 1;
	while ((c = getopt(argc, argv, "sfnvrwhN:o:t:")) != -1) {
		switch (c) {
		case 's':
		case 'n':
		case 'w':
			break;
		case 'f':
			o.fake = true;
			break;
		case 'v':
			verbose = true;
			break;
		case 'r':
			o.ro = true;
			break;
		case 'N':
			cmd_error("mounting in another namespace (-N) is not supported; use "
				  "nsenter(1)");
			goto out;
		case 'o':
			if (mount_opts_list(&o, optarg, sloppy, err) < 0) {
				cmd_error("%s", err);
				goto out;
			}
			break;
		case 't':
			if (strcmp(optarg, "cachefs") && strcmp(optarg, "fuse.cachefs")) {
				cmd_error("not a cachefs type: '%s'", optarg);
				goto out;
			}
			break;
		case 'h':
			usage(stdout);
			r = CMD_OK;
			goto out;
		default:
			goto out;
		}
	}
	if (argc - optind == 1 && !strcmp(argv[optind], "--help")) {
		usage(stdout);
		r = CMD_OK;
		goto out;
	}
	if (argc > optind &&
	    mount_file_run(o.config, argc, argv, optind, argc - optind > 1, cmd_mount_helper, &r))
		goto out;
	if (argc - optind != 2) {
		usage(stderr);
		goto out;
	}
	r = mount_volume(argv[optind], argv[optind + 1], &o, verbose);
out:
	mount_opts_free(&o);
	return r;
}

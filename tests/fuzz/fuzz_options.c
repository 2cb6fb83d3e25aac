/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options and files that a person writes for a mount. The first byte of an input says which text the rest is:
 *
 *	0	options, as of fstab, mount(8) or a command line
 *	1	cachefs.conf, with a section [v]
 *	2	a file of credentials
 *	3	numbers: sizes, durations, owners
 */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/access/volume.h"
#include "cmd/mountd/options/mountfile.h"
#include "cmd/mountd/options/mountopts.h"
#include "fuzz.h"

static __attribute__((constructor)) void log_nothing(void)
{
	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
}

/* The printed form of an option is read back as it was. */
static void show_again(const struct mount_opts *o)
{
	const struct cfs_opt *opt;
	char shown[4096], again[4096], err[CFS_OPT_ERRLEN];
	struct mount_opts copy = {0};

	for (opt = mount_table; opt->name; opt++) {
		cfs_opt_show(opt, o, shown, sizeof(shown));
		check(strlen(shown) < sizeof(shown));
		if (opt->kind == CFS_OPT_STRING || opt->kind == CFS_OPT_FRACTION || !*shown)
			continue;
		if (cfs_opt_set(mount_table, &copy, opt->name, shown, err) < 0)
			continue; /* the default may lie beyond what a user may give */
		cfs_opt_show(opt, &copy, again, sizeof(again));
		check(!strcmp(shown, again));
	}
	mount_opts_free(&copy);
}

static void options(const char *list)
{
	struct mount_opts o = {0};
	char err[CFS_OPT_ERRLEN] = "";
	int r;

	mount_opts_defaults(&o);
	r = mount_opts_list(&o, list, false, err);
	check(r <= 0 && (r == 0 || *err));
	if (r == 0)
		show_again(&o);
	mount_opts_free(&o);
}

/* A memory file with this text; its name. */
static const char *file_of(const char *text, size_t len)
{
	static char path[64];
	static int fd = -1;

	if (fd < 0) {
		fd = memfd_create("options", MFD_CLOEXEC);
		check(fchmod(fd, 0600) == 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	check(ftruncate(fd, 0) == 0 && pwrite(fd, text, len, 0) == (ssize_t)len);
	return path;
}

static void config(const char *text, size_t len)
{
	char *argv[] = {(char *)"mount.cachefs", (char *)"v", (char *)"/mnt", NULL};
	char err[CFS_OPT_ERRLEN], **args;
	int n, r;

	r = mount_file_args(file_of(text, len), 3, argv, 1, true, &n, &args, err);
	check(r != 0 && (r > 0 || *err));
	if (r > 0)
		mount_file_free(n, args);
}

static void credentials(const char *text, size_t len)
{
	char err[256] = "";

	check(volume_read_credentials(file_of(text, len), err) == 0 || *err);
}

static void numbers(const char *text)
{
	char err[CFS_OPT_ERRLEN];
	uint32_t uid, gid;
	uint64_t v;
	int mask;

	cfs_parse_size(text, 1 << 20, &v);
	cfs_parse_duration_ms(text, 1000, &v);
	if (mount_opts_squash("all-squash", text, &uid, &gid, err) == 0)
		check(uid < UINT32_MAX && gid < UINT32_MAX);
	if (mount_opts_umask(text, &mask, err) == 0)
		check(mask >= 0 && mask <= 0777);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = {data, size};
	uint8_t what = fuzz_u8(&in) % 4;
	size_t len = in.left;
	char *text = fuzz_text(&in, len);

	if (what == 0)
		options(text);
	else if (what == 1)
		config(text, len);
	else if (what == 2)
		credentials(text, len);
	else
		numbers(text);
	free(text);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "agreement.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/fuse.h>

#include "base/bytes.h"
#include "fuse-internal.h"

typedef bool wanted_fn(const struct cfs_fuse_conf *conf);

static bool always(const struct cfs_fuse_conf *conf)
{
	return true;
}

static bool with_locks(const struct cfs_fuse_conf *conf)
{
	return !conf->local_locks;
}

static bool with_writeback(const struct cfs_fuse_conf *conf)
{
	return conf->writeback_cache;
}

static bool with_acl(const struct cfs_fuse_conf *conf)
{
	return conf->posix_acl;
}

static bool drops_set_id(const struct cfs_fuse_conf *conf)
{
	return conf->drops_set_id;
}

static bool over_io_uring(const struct cfs_fuse_conf *conf)
{
	return conf->io_uring == CFS_IO_URING_ON;
}

/* The kernel ignores passthrough with the write-back cache. */
static bool passes_through(const struct cfs_fuse_conf *conf)
{
	return conf->passthrough && !conf->writeback_cache;
}

#define BIT(n) (1ULL << (n))

/* By bit, as include/uapi/linux/fuse.h of Linux 6.18 has them; reserved bits are left out. */
static const struct {
	const char *name;
	uint64_t flag;
	uint64_t cap;	   /* libfuse's number for it; 0: none that each version has */
	wanted_fn *wanted; /* NULL: never */
} table[] = {
	{"ASYNC_READ", BIT(0), FUSE_CAP_ASYNC_READ, always},
	{"POSIX_LOCKS", BIT(1), FUSE_CAP_POSIX_LOCKS, with_locks},
	{"FILE_OPS", BIT(2), 0, NULL},
	{"ATOMIC_O_TRUNC", BIT(3), FUSE_CAP_ATOMIC_O_TRUNC, always},
	{"EXPORT_SUPPORT", BIT(4), FUSE_CAP_EXPORT_SUPPORT, always},
	{"BIG_WRITES", BIT(5), 0, always},
	/* The umask must not be applied where the parent has a default ACL. */
	{"DONT_MASK", BIT(6), FUSE_CAP_DONT_MASK, always},
	/* Requests arrive in memory and replies leave from pinned pages: pipes would add copies. */
	{"SPLICE_WRITE", BIT(7), FUSE_CAP_SPLICE_WRITE, NULL},
	{"SPLICE_MOVE", BIT(8), FUSE_CAP_SPLICE_MOVE, NULL},
	{"SPLICE_READ", BIT(9), FUSE_CAP_SPLICE_READ, NULL},
	{"FLOCK_LOCKS", BIT(10), FUSE_CAP_FLOCK_LOCKS, with_locks},
	{"HAS_IOCTL_DIR", BIT(11), FUSE_CAP_IOCTL_DIR, always},
	/* A write of another client shows as a newer mtime, on which the kernel drops its pages. */
	{"AUTO_INVAL_DATA", BIT(12), FUSE_CAP_AUTO_INVAL_DATA, always},
	/*
	 * Listings always carry attributes: otherwise each stat after one is a metadata round trip,
	 * and the kernel's heuristic (auto) asks for them in the first part only.
	 */
	{"DO_READDIRPLUS", BIT(13), FUSE_CAP_READDIRPLUS, always},
	{"READDIRPLUS_AUTO", BIT(14), FUSE_CAP_READDIRPLUS_AUTO, NULL},
	{"ASYNC_DIO", BIT(15), FUSE_CAP_ASYNC_DIO, always},
	{"WRITEBACK_CACHE", BIT(16), FUSE_CAP_WRITEBACK_CACHE, with_writeback},
	{"NO_OPEN_SUPPORT", BIT(17), FUSE_CAP_NO_OPEN_SUPPORT, NULL},
	/* libfuse 3.14 takes the capability and does not send the flag. */
	{"PARALLEL_DIROPS", BIT(18), FUSE_CAP_PARALLEL_DIROPS, always},
	/* Without it the kernel clears setuid and setgid by setattr, only where they are set. */
	{"HANDLE_KILLPRIV", BIT(19), FUSE_CAP_HANDLE_KILLPRIV, NULL},
	/* The kernel checks ACLs, and turns on default_permissions. */
	{"POSIX_ACL", BIT(20), FUSE_CAP_POSIX_ACL, with_acl},
	{"ABORT_ERROR", BIT(21), 0, NULL},
	{"MAX_PAGES", BIT(22), 0, always},
	{"CACHE_SYMLINKS", BIT(23), FUSE_CAP_CACHE_SYMLINKS, always},
	{"NO_OPENDIR_SUPPORT", BIT(24), FUSE_CAP_NO_OPENDIR_SUPPORT, NULL},
	{"EXPLICIT_INVAL_DATA", BIT(25), FUSE_CAP_EXPLICIT_INVAL_DATA, NULL},
	{"MAP_ALIGNMENT", BIT(26), 0, NULL},
	{"SUBMOUNTS", BIT(27), 0, NULL},
	/* The mount, which knows the attributes, clears setuid and setgid. */
	{"HANDLE_KILLPRIV_V2", BIT(28), 0, drops_set_id},
	/* It makes the request longer, which not every libfuse knows. */
	{"SETXATTR_EXT", BIT(29), 0, NULL},
	{"INIT_EXT", BIT(30), 0, always},
	{"SECURITY_CTX", BIT(32), 0, NULL},
	{"HAS_INODE_DAX", BIT(33), 0, NULL},
	{"CREATE_SUPP_GROUP", BIT(34), 0, NULL},
	{"HAS_EXPIRE_ONLY", INIT_HAS_EXPIRE_ONLY, 0, NULL},
	{"DIRECT_IO_ALLOW_MMAP", BIT(36), 0, NULL},
	{"PASSTHROUGH", INIT_PASSTHROUGH, 0, passes_through},
	{"NO_EXPORT_SUPPORT", BIT(38), 0, NULL},
	{"HAS_RESEND", INIT_HAS_RESEND, 0, always},
	{"ALLOW_IDMAP", BIT(40), 0, NULL},
	{"OVER_IO_URING", INIT_OVER_IO_URING, 0, over_io_uring},
	{"REQUEST_TIMEOUT", BIT(42), 0, NULL},
};

static bool is_wanted(size_t i, const struct cfs_fuse_conf *conf)
{
	return table[i].wanted && table[i].wanted(conf);
}

uint64_t agreement_wanted(const struct cfs_fuse_conf *conf)
{
	uint64_t flags = 0;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(table); i++)
		flags |= is_wanted(i, conf) ? table[i].flag : 0;
	return flags;
}

void agreement_caps(const struct cfs_fuse_conf *conf, uint64_t *ret_on, uint64_t *ret_off)
{
	uint64_t on = 0, off = 0;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(table); i++)
		*(is_wanted(i, conf) ? &on : &off) |= table[i].cap;
	*ret_on = on;
	*ret_off = off;
}

/* ---- as text ---- */

static const char *yes_no(uint64_t flags, uint64_t flag)
{
	return flags & flag ? "yes" : "no";
}

int cfs_fuse_print_agreement(int fd, FILE *out)
{
	struct cfs_agreement a;
	uint64_t known = 0;
	size_t i;
	int r = cfs_handoff_read_agreement(fd, &a);

	if (r < 0)
		return r;
	if (!a.minor)
		return -ENODATA;
	fprintf(out, "%-20s %3s %-7s %-6s %s\n", "flag", "bit", "offered", "wanted", "sent");
	for (i = 0; i < CFS_ARRAY_SIZE(table); i++) {
		known |= table[i].flag;
		fprintf(out, "%-20s %3d %-7s %-6s %s\n", table[i].name,
			__builtin_ctzll(table[i].flag), yes_no(a.asked, table[i].flag),
			yes_no(a.wanted, table[i].flag), yes_no(a.sent, table[i].flag));
	}
	fprintf(out,
		"unknown flags offered: %#" PRIx64 "\n"
		"minor: %" PRIu32 "\n"
		"max_write: %" PRIu32 "\n"
		"max_readahead: %" PRIu32 "\n"
		"max_pages: %" PRIu32 "\n"
		"max_background: %" PRIu32 "\n"
		"congestion_threshold: %" PRIu32 "\n"
		"time_gran: %" PRIu32 "\n"
		"max_stack_depth: %" PRIu32 "\n",
		a.asked & ~known, a.minor, a.max_write, a.max_readahead, a.max_pages,
		a.max_background, a.congestion_threshold, a.time_gran_ns, a.max_stack_depth);
	return 0;
}

static uint64_t uses_ring(void *agreement)
{
	return !!(((const struct cfs_agreement *)agreement)->sent & INIT_OVER_IO_URING);
}

#define M(n, l, h, field) CFS_METRIC(struct cfs_agreement, n, l, h, field)
static const struct cfs_metric metrics[] = {
	M("fuse_init_flags", "of=\"kernel\"",
	  "Flags of FUSE_INIT that the kernel offered, that the mount wants, and that were sent, "
	  "as a number",
	  asked),
	M("fuse_init_flags", "of=\"mount\"", NULL, wanted),
	M("fuse_init_flags", "of=\"reply\"", NULL, sent),
	CFS_METRIC_READ("fuse_io_uring",
			"1 when requests come through io_uring, 0 when through the device",
			uses_ring),
	M("fuse_max_pages", NULL, "Pages in the largest request of the kernel", max_pages),
	M("fuse_max_background", NULL, "Background requests that the kernel has under way at most",
	  max_background),
};

const struct cfs_metric_table cfs_fuse_metrics = CFS_METRIC_TABLE(metrics);

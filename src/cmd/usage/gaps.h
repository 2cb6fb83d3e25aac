/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gaps between the usage that clients have counted and what is there.
 *
 * Clients count in memory and write the counters of the volume and the statistics of directories
 * within a second, quotas within three. So on a volume in use there are gaps at every moment that
 * are none a moment later, and to add one of them would count it twice. A gap is damage when it is
 * the same after a pause that is longer than what any client waits, and nothing that it is measured
 * by has changed in between. What changes in every pause is not judged.
 *
 * A mount that is stopped has not counted either what it is going to count when it goes on. So
 * nothing is believed before each live session has given a sign of life after the gap was seen
 * (beats.h), and with one that gives none nothing is judged.
 */
#ifndef CFS_CMD_GAPS_H
#define CFS_CMD_GAPS_H

#include "cmd/access/admin.h"

enum gap_kind { GAP_VOLUME, GAP_DIR_STAT, GAP_QUOTA };

struct gap {
	enum gap_kind kind;
	struct cfs_quota quota; /* GAP_QUOTA: its row; GAP_DIR_STAT: only the key, an inode */
	struct cfs_dir_stat counted, there; /* length: of GAP_DIR_STAT only */
	uint64_t mark;			    /* struct cfs_sums */
	bool told, repaired;
};

struct gaps {
	struct gap *v;
	size_t n, cap;
};

/* 0 or -ENOMEM. */
int gaps_add(struct gaps *g, const struct gap *gap);
/* NULL: there is none. */
struct gap *gaps_find(const struct gaps *g, enum gap_kind kind, enum cfs_quota_kind quota,
		      uint64_t key);

/*
 * measure() adds the gaps that there are at this moment: all it knows of when `last` is NULL, else
 * at least those that are in `last`. damage() is called for each that is believed, once; with
 * repair, for which the volume's lease is taken, it has been filled. *ret_open: how many were left
 * that could not be judged.
 */
typedef int (*gaps_measure_fn)(void *arg, const struct gaps *last, struct gaps *ret);
typedef int (*gaps_damage_fn)(void *arg, const struct gap *gap);
int gaps_settle(struct admin *a, bool repair, gaps_measure_fn measure, gaps_damage_fn damage,
		void *arg, size_t *ret_open);
/* Says on stderr what was not judged. */
void gaps_note_open(size_t n);

#endif

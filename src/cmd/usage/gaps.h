/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds gaps between the usage that clients have counted and the real usage.
 *
 * Clients count in memory. They write the counters of the volume and the statistics of directories
 * within a second, quotas within three. On a volume in use, gaps therefore exist at every moment
 * and close a moment later; correcting one of them would count it twice. A gap is damage when it is
 * the same after a pause that is longer than any client waits, and nothing that it is measured by
 * has changed meanwhile. Numbers that change in every pause are not judged.
 *
 * A mount that is stopped writes its counts when it goes on. So no gap is believed until each live
 * session has sent a heartbeat after the gap was seen (heartbeats.h). While one sends none, nothing
 * is judged.
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
 * measure() adds the gaps of this moment: all of them when `last` is NULL, else at least those that
 * are in `last`. damage() is called once for each gap that is believed; with repair, which takes
 * the volume's lease, it has been corrected. *ret_open: how many gaps could not be judged.
 */
typedef int (*gaps_measure_fn)(void *arg, const struct gaps *last, struct gaps *ret);
typedef int (*gaps_damage_fn)(void *arg, const struct gap *gap);
int gaps_settle(struct admin *a, bool repair, gaps_measure_fn measure, gaps_damage_fn damage,
		void *arg, size_t *ret_open);
/* Reports on stderr the numbers that were not judged. */
void gaps_note_open(size_t n);

#endif

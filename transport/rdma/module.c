/* SPDX-License-Identifier: Apache-2.0 */
/* The entry of the module "rdma". */
#include "base/module.h"
#include "verbs.h"

CFS_MODULE_EXPORT(&cfs_rdma_verbs);

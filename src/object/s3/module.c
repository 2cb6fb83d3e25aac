/* SPDX-License-Identifier: Apache-2.0 */
#include "base/module.h"
#include "s3.h"

static const struct cfs_object_module module = {.open = cfs_object_open_s3};

CFS_MODULE_EXPORT(&module);

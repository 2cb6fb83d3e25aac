/* SPDX-License-Identifier: Apache-2.0 */
/*
 * liburcu is not built for ThreadSanitizer, which therefore does not see its ordering. These tell
 * it: what happened before a RELEASE of an address happened before a later ACQUIRE of it.
 */
#ifndef CFS_TSAN_H
#define CFS_TSAN_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CFS_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define CFS_TSAN 1
#endif

#ifdef CFS_TSAN
#include <sanitizer/tsan_interface.h>
#define CFS_TSAN_RELEASE(addr) __tsan_release(addr)
#define CFS_TSAN_ACQUIRE(addr) __tsan_acquire(addr)
#else
#define CFS_TSAN_RELEASE(addr) ((void)(addr))
#define CFS_TSAN_ACQUIRE(addr) ((void)(addr))
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The begin and end of each request, and the table of handlers. A handler runs on the thread that
 * received the request. Other threads take over only requests that are queued (admission.c) and
 * waits for file locks (ops-lock.c).
 */
#include "fuse-internal.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "base/activity.h"
#include "base/clock.h"

static bool interrupted(void *arg)
{
	fuse_req_t req = arg;
	const struct cfs_fuse *f = fuse_req_userdata(req);

	return fuse_req_interrupted(req) ||
	       atomic_load_explicit(&f->stopping, memory_order_relaxed);
}

void call_begin(struct call *c, fuse_req_t req, const char *op)
{
	const struct fuse_ctx *who = fuse_req_ctx(req);
	const struct cfs_request *rq = request_of(req);

	c->req = req;
	c->id = rq->id;
	c->fuse = fuse_req_userdata(req);
	c->vfs = c->fuse->vfs;
	c->umask = c->fuse->conf.umask >= 0 ? (mode_t)c->fuse->conf.umask : who->umask;
	c->record = NULL;
	c->killable = killable_begin(c->fuse, rq);
	c->op = op;
	c->timed = true;
	c->logged = cfs_vfs_logging(c->vfs);
	c->start_ns = cfs_now_ns();
	c->ctx = cfs_vfs_ctx(c->vfs, who->uid, rq->gid, who->pid);
	c->ctx.check &= !mapped_is_writer(c->fuse, who->pid);
	c->ctx.interrupted = interrupted;
	c->ctx.interrupted_arg = req;
}

void call_begin_once(struct call *c, fuse_req_t req, const char *op)
{
	call_begin(c, req, op);
	c->record = cfs_handoff_begin_request(c->fuse->conf.handoff, request_number(&c->id),
					      request_is_resent(&c->id), &c->ctx.replay);
	c->ctx.record = c->record;
}

void call_drop(struct call *c)
{
	fuse_reply_none(c->req);
	killable_end(c->fuse, c->killable, 0);
	cfs_handoff_end_request(c->record);
	call_leave();
}

void call_set_args(struct call *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->args, sizeof(c->args), fmt, ap);
	va_end(ap);
}

void call_end(struct call *c, int r)
{
	const struct cfs_vfs_request req = {
		.op = c->op,
		.ino = c->ino,
		.pid = c->ctx.pid,
		.start_ns = c->start_ns,
	};
	uint64_t now_ns = cfs_now_ns();

	killable_end(c->fuse, c->killable, c->ino);
	cfs_handoff_end_request(c->record);
	if (c->timed)
		cfs_vfs_ended(c->vfs, &req, r, now_ns);
	if (c->logged)
		cfs_vfs_log(c->vfs, &c->ctx, c->op, c->args, r, now_ns - c->start_ns);
	call_leave();
}

void call_take(const struct call *c)
{
	cfs_activity_request(c->op, c->ino, c->ctx.pid, c->start_ns / 1000000);
}

void call_leave(void)
{
	cfs_activity_request_end();
}

const struct fuse_lowlevel_ops fuse_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.symlink = op_symlink,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.rename = op_rename,
	.link = op_link,
	.access = op_access,
	.statfs = op_statfs,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write_buf = op_write_buf,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.fallocate = op_fallocate,
	.copy_file_range = op_copy_file_range,
	.lseek = op_lseek,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.fsyncdir = op_fsyncdir,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.setxattr = op_setxattr,
	.removexattr = op_removexattr,
	.ioctl = op_ioctl,
	.getlk = op_getlk,
	.setlk = op_setlk,
	.flock = op_flock,
};

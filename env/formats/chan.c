/* SPDX-License-Identifier: Apache-2.0 */

/* See chan.h. */

#include "env/formats/chan.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "store/base/err.h"
#include "store/base/os.h"

#define HEADER 8
#define OUT_BYTES (HEADER + 8 + RECORD_DATA_MAX) /* as much as a record of content */
#define DIRECT_BYTES (16u << 10)		 /* from here on a copy costs more than a call */
#define IN_BYTES (2 * OUT_BYTES)

void chan_release(struct chan *c)
{
	free(c->in);
	free(c->out);
	c->in = c->out = NULL;
}

/* ---- bytes ---- */

static int wait_for(struct chan *c, short events)
{
	struct pollfd p = { .fd = c->fd, .events = events };

	for (;;) {
		int n, r = c->look ? c->look(c->arg) : 0;

		if (r != 0)
			return r;
		n = poll(&p, 1, c->look ? CHAN_LOOK_MS : -1);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

/* As many of them as are not empty, one behind the other. */
static int send_all(struct chan *c, struct iovec *parts, size_t n_parts)
{
	struct msghdr msg = { .msg_iov = parts, .msg_iovlen = n_parts };

	for (;;) {
		ssize_t n;
		int r = 0;

		for (; msg.msg_iovlen > 0 && msg.msg_iov->iov_len == 0; msg.msg_iovlen--)
			msg.msg_iov++;
		if (msg.msg_iovlen == 0)
			return 0;
		n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN)
			r = wait_for(c, POLLOUT);
		else if (n < 0 && errno != EINTR)
			r = errno == ECONNRESET ? -EPIPE : -errno;
		if (r != 0)
			return r;
		for (struct iovec *v = msg.msg_iov; n > 0; v++) {
			size_t k = MIN((size_t)n, v->iov_len);

			v->iov_base = (uint8_t *)v->iov_base + k;
			v->iov_len -= k;
			n -= (ssize_t)k;
		}
	}
}

int chan_flush(struct chan *c)
{
	struct iovec all = { .iov_base = c->out, .iov_len = c->out_len };

	c->out_len = 0;
	return send_all(c, &all, 1);
}

int chan_put(struct chan *c, enum record_kind kind, const void *head, size_t head_len,
	     const void *tail, size_t tail_len)
{
	size_t len = HEADER + head_len + tail_len;
	uint8_t start[HEADER], *p;
	int r;

	if (len - HEADER > RECORD_MAX)
		return -ENAMETOOLONG; /* names alone have no limit of their own */
	if (!c->out && !(c->out = os_malloc(OUT_BYTES)))
		return -ENOMEM;
	put_le32(start, kind);
	put_le32(start + 4, (uint32_t)(len - HEADER));
	if (len > DIRECT_BYTES) {
		struct iovec parts[] = {
			{ .iov_base = c->out, .iov_len = c->out_len },
			{ .iov_base = start, .iov_len = HEADER },
			{ .iov_base = (void *)head, .iov_len = head_len }, /* only read */
			{ .iov_base = (void *)tail, .iov_len = tail_len },
		};

		c->out_len = 0;
		return send_all(c, parts, ARRAY_SIZE(parts));
	}
	if (c->out_len + len > OUT_BYTES) {
		r = chan_flush(c);
		if (r < 0)
			return r;
	}
	p = c->out + c->out_len;
	memcpy(p, start, HEADER);
	if (head_len > 0)
		memcpy(p + HEADER, head, head_len);
	if (tail_len > 0)
		memcpy(p + HEADER + head_len, tail, tail_len);
	c->out_len += len;
	return 0;
}

bool chan_ready(const struct chan *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };

	return c->in_at < c->in_len || poll(&p, 1, 0) > 0;
}

/* So many bytes at c->in + c->in_at. */
static int have(struct chan *c, size_t want)
{
	while (c->in_len - c->in_at < want) {
		ssize_t n;
		int r = 0;

		if (c->in_at > 0) {
			memmove(c->in, c->in + c->in_at, c->in_len - c->in_at);
			c->in_len -= c->in_at;
			c->in_at = 0;
		}
		if (c->in_cap < MAX(want, (size_t)IN_BYTES)) {
			size_t cap = MAX(want, (size_t)IN_BYTES);
			uint8_t *p = os_realloc(c->in, cap);

			if (!p)
				return -ENOMEM;
			c->in = p;
			c->in_cap = cap;
		}
		n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return END;
		if (n < 0 && errno == EAGAIN)
			r = wait_for(c, POLLIN);
		else if (n < 0 && errno != EINTR)
			r = -errno;
		if (r != 0)
			return r;
		c->in_len += (size_t)MAX(n, (ssize_t)0);
	}
	return 0;
}

int chan_get(struct chan *c, struct record *ret)
{
	size_t len;
	int r;

	r = have(c, HEADER);
	if (r != 0)
		return r;
	ret->kind = get_le32(c->in + c->in_at);
	len = get_le32(c->in + c->in_at + 4);
	if (ret->kind < REC_HELLO || ret->kind > REC_END || len > RECORD_MAX)
		return -EPROTO;
	r = have(c, HEADER + len);
	if (r != 0)
		return r;
	ret->data = c->in + c->in_at + HEADER;
	ret->len = len;
	c->in_at += HEADER + len;
	return 0;
}

/* ---- what is in them ---- */

#define TIME_BYTES 12
#define MEMBER_FIXED (3 * 4 + 2 * 8 + 4 * TIME_BYTES + 3 * 4)
#define NO_STRING UINT32_MAX

static uint8_t *put_time(uint8_t *p, struct timens t)
{
	put_le64(p, (uint64_t)t.sec);
	put_le32(p + 8, t.nsec);
	return p + TIME_BYTES;
}

static bool get_time(const uint8_t **p, struct timens *ret)
{
	ret->sec = (int64_t)get_le64(*p);
	ret->nsec = get_le32(*p + 8);
	*p += TIME_BYTES;
	return ret->nsec < 1000000000;
}

int chan_put_member(struct chan *c, const struct member *m)
{
	const char *const texts[] = { m->path, m->link, m->target };
	const struct inode *i = &m->inode;
	size_t len = MEMBER_FIXED;
	uint8_t *all, *p;
	int r;

	for (size_t n = 0; n < ARRAY_SIZE(texts); n++)
		len += texts[n] ? strlen(texts[n]) + 1 : 0;
	if (len > RECORD_MAX)
		return -ENAMETOOLONG;
	all = p = os_malloc(len);
	if (!all)
		return -ENOMEM;
	put_le32(p, i->mode);
	put_le32(p + 4, i->uid);
	put_le32(p + 8, i->gid);
	put_le64(p + 12, i->rdev);
	put_le64(p + 20, i->size);
	p += 28;
	p = put_time(p, i->atime);
	p = put_time(p, i->mtime);
	p = put_time(p, i->ctime);
	p = put_time(p, i->btime);
	for (size_t n = 0; n < ARRAY_SIZE(texts); n++, p += 4)
		put_le32(p, texts[n] ? (uint32_t)strlen(texts[n]) : NO_STRING);
	for (size_t n = 0; n < ARRAY_SIZE(texts); n++)
		if (texts[n])
			p = (uint8_t *)stpcpy((char *)p, texts[n]) + 1;
	r = chan_put(c, REC_MEMBER, all, len, NULL, 0);
	free(all);
	return r;
}

bool record_member(const struct record *r, struct member *ret)
{
	const char **const texts[] = { &ret->path, &ret->link, &ret->target };
	const uint8_t *p = r->data, *lens, *end = p + r->len;
	struct inode *i = &ret->inode;

	if (r->len < MEMBER_FIXED)
		return false;
	*ret = (struct member){ 0 };
	i->mode = get_le32(p);
	i->uid = get_le32(p + 4);
	i->gid = get_le32(p + 8);
	i->rdev = get_le64(p + 12);
	i->size = get_le64(p + 20);
	p += 28;
	if (!get_time(&p, &i->atime) || !get_time(&p, &i->mtime) || !get_time(&p, &i->ctime) ||
	    !get_time(&p, &i->btime))
		return false;
	lens = p;
	p += 4 * ARRAY_SIZE(texts);
	for (size_t n = 0; n < ARRAY_SIZE(texts); n++) {
		uint32_t len = get_le32(lens + 4 * n);

		if (len == NO_STRING)
			continue;
		if (len >= (size_t)(end - p) || p[len] != '\0' || memchr(p, '\0', len))
			return false;
		*texts[n] = (const char *)p;
		p += len + 1;
	}
	return p == end && ret->path;
}

int chan_put_xattr(struct chan *c, const char *name, const void *value, size_t len)
{
	return chan_put(c, REC_XATTR, name, strlen(name) + 1, value, len);
}

bool record_xattr(const struct record *r, const char **ret_name, const void **ret_value,
		  size_t *ret_len)
{
	const uint8_t *nul = memchr(r->data, '\0', r->len);

	if (!nul)
		return false;
	*ret_name = (const char *)r->data;
	*ret_value = nul + 1;
	*ret_len = r->len - (size_t)(nul + 1 - r->data);
	return true;
}

int chan_put_run(struct chan *c, enum record_kind kind, uint64_t a, uint64_t b)
{
	uint8_t both[16];

	put_le64(both, a);
	put_le64(both + 8, b);
	return chan_put(c, kind, both, sizeof(both), NULL, 0);
}

bool record_run(const struct record *r, uint64_t *ret_a, uint64_t *ret_b)
{
	if (r->len != 16)
		return false;
	*ret_a = get_le64(r->data);
	*ret_b = get_le64(r->data + 8);
	return true;
}

int chan_put_data(struct chan *c, uint64_t off, const void *data, size_t len)
{
	const uint8_t *p = data;
	uint8_t at[8];

	while (len > 0) {
		size_t n = MIN(len, (size_t)RECORD_DATA_MAX);
		int r;

		put_le64(at, off);
		r = chan_put(c, REC_DATA, at, sizeof(at), p, n);
		if (r < 0)
			return r;
		p += n;
		off += n;
		len -= n;
	}
	return 0;
}

bool record_data(const struct record *r, uint64_t *ret_off, const void **ret_data, size_t *ret_len)
{
	if (r->len <= 8)
		return false;
	*ret_off = get_le64(r->data);
	*ret_data = r->data + 8;
	*ret_len = r->len - 8;
	return true;
}

int record_failed(const struct record *r, char **ret_text)
{
	uint32_t code = r->len < 4 ? 0 : get_le32(r->data);

	*ret_text = r->len <= 4 ? NULL : strndup((const char *)r->data + 4, r->len - 4);
	/* err_str has a sentence for all that there are */
	return code == 0 || code > INT32_MAX ? -ERR_SOURCE : -(int)code;
}

void record_text(const struct record *r, char *ret, size_t size)
{
	size_t n = MIN(r->len, size - 1);

	memcpy(ret, r->data, n);
	ret[n] = '\0';
}

#define SIDES_BYTES 20
enum { OLD_THERE = 1, NEW_THERE = 2, BINARY = 4, COUNT = 8 };

int chan_put_sides(struct chan *c, const struct sides *s)
{
	uint8_t all[SIDES_BYTES];

	put_le32(all, (s->old_there ? OLD_THERE : 0) | (s->new_there ? NEW_THERE : 0) |
			      (s->binary ? BINARY : 0) | (s->count ? COUNT : 0));
	put_le64(all + 4, s->old_len);
	put_le64(all + 12, s->new_len);
	return chan_put(c, REC_SIDES, all, sizeof(all), NULL, 0);
}

bool record_sides(const struct record *r, struct sides *ret)
{
	uint32_t flags;

	if (r->len != SIDES_BYTES)
		return false;
	flags = get_le32(r->data);
	*ret = (struct sides){
		.old_there = flags & OLD_THERE,
		.new_there = flags & NEW_THERE,
		.binary = flags & BINARY,
		.count = flags & COUNT,
		.old_len = get_le64(r->data + 4),
		.new_len = get_le64(r->data + 12),
	};
	return true;
}

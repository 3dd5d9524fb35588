/* A stand-in for libibverbs: queue pairs of one process, connected with each other, whose wire is memcpy.
 *
 * Built by the tests from the system's header, so its layouts are those of the real library. Stricter than a NIC where that
 * finds mistakes: nothing moves before a queue is polled, in steps of random length; payload is read when its turn comes;
 * a slot of the send queue is free only once a completion behind it was polled; completions of destroyed queue pairs stay.
 * Counts what a test asserts on, and fails what a test wants failed. Its devices say what they are in their names.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#define DEVICES 2
#define KEYS 65536
#define QPS 65536
#define GIDS 8
#define LOG 65536
#define PATIENCE 20000
#define EXPORT __attribute__((visibility("default")))

struct counters {
	uint64_t doorbells, sends, signalled, inline_sends, completions, receives, receiver_not_ready, overruns, starved,
		queue_pairs, regions, completion_queues, domains, contexts, modifications, failures;
};
struct log_entry { uint64_t local, remote; uint32_t bytes, opcode, flags, qp_num; };

struct my_mr { struct ibv_mr mr; uint64_t iova; unsigned access; void *mapped; };
struct my_context { struct verbs_context whole; int device; };
struct entry { struct ibv_wc wc; struct my_qp *qp; uint32_t qp_num; uint64_t position; };
struct my_cq { struct ibv_cq cq; struct entry *entries; unsigned head, count, size; int armed; };
struct send { struct send *next; struct ibv_send_wr wr; struct ibv_sge sge; uint64_t position; unsigned attempts; uint8_t data[]; };
struct receive { uint64_t wr_id; struct ibv_sge sge; };
struct my_qp {
	struct ibv_qp qp; struct my_qp *next; struct ibv_qp_cap cap; int state; uint32_t peer; unsigned access;
	struct send *first, **last; uint64_t posted, freed;
	struct receive *receives; unsigned receive_head, receive_count;
	uint32_t fail_after; int fail_status;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct counters now;
static struct my_mr *keys[KEYS];
static struct my_qp *by_number[QPS], *all;
static uint32_t next_key = 1, next_number = 17;
static uint64_t seed = 88172645463325252ull;
static struct log_entry entries[LOG];
static uint64_t logged;
/* Options that tests set. */
static uint64_t pace = 8, inline_max = 256, has_dma_buf = 1, has_thread_domains = 1, port_is_down, silent, corrupts, flushes_first;

static uint64_t draw(uint64_t below) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed % below; }

EXPORT void stand_in_counters(struct counters *to) { pthread_mutex_lock(&lock); *to = now; pthread_mutex_unlock(&lock); }
EXPORT void stand_in_set(int option, uint64_t value)
{
	uint64_t *options[] = { &pace, &inline_max, &has_dma_buf, &has_thread_domains, &port_is_down, &silent, &corrupts, &flushes_first };
	pthread_mutex_lock(&lock); *options[option] = value; pthread_mutex_unlock(&lock);
}
/* The send after `after` others of this queue pair fails with `status`. */
EXPORT void stand_in_fail(uint32_t number, uint32_t after, int status)
{
	pthread_mutex_lock(&lock);
	if (by_number[number % QPS]) { by_number[number % QPS]->fail_after = after + 1; by_number[number % QPS]->fail_status = status; }
	pthread_mutex_unlock(&lock);
}
/* Copies the sends logged from `from` on; returns how many were ever logged. */
EXPORT uint64_t stand_in_log(uint64_t from, struct log_entry *to, uint64_t room)
{
	pthread_mutex_lock(&lock);
	for (uint64_t at = from; at < logged && at - from < room; at++) to[at - from] = entries[at % LOG];
	uint64_t all_of_them = logged;
	pthread_mutex_unlock(&lock);
	return all_of_them;
}

static struct ibv_device devices[DEVICES];

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(DEVICES + 1, sizeof *list);
	pthread_mutex_lock(&lock);
	for (int at = 0; at < DEVICES; at++) {
		snprintf(devices[at].name, sizeof devices[at].name, "stand-in%d", at);
		snprintf(devices[at].ibdev_path, sizeof devices[at].ibdev_path, "/nonexistent/stand-in%d", at);
		devices[at].node_type = IBV_NODE_CA;
		list[at] = &devices[at];
	}
	pthread_mutex_unlock(&lock);
	if (count) *count = DEVICES;
	return list;
}
EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list); }
EXPORT __be64 ibv_get_device_guid(struct ibv_device *device) { return (__be64)(device - devices + 1); }
EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status) { (void)status; return "stand-in status"; }
EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) { (void)context; (void)event; errno = EAGAIN; return -1; }
EXPORT void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t bytes)
{
	struct ibv_port_attr all_of_it = {
		.state = port_is_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096,
		.gid_tbl_len = GIDS, .max_msg_sz = 1u << 30, .link_layer = IBV_LINK_LAYER_ETHERNET,
	};
	(void)context;
	if (port != 1) return EINVAL;
	memcpy(attr, &all_of_it, bytes < sizeof all_of_it ? bytes : sizeof all_of_it);
	return 0;
}
#undef ibv_query_port
EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	return query_port(context, port, (struct ibv_port_attr *)attr, 48);
}
EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t bytes)
{
	int device = ((struct my_context *)((char *)context - offsetof(struct my_context, whole.context)))->device;
	(void)flags;
	if (port != 1 || bytes != sizeof *entry) return EINVAL;
	if (index > 2) return ENODATA;
	memset(entry, 0, sizeof *entry);
	entry->gid_index = index;
	entry->port_num = port;
	entry->gid_type = index == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
	if (index < 2) { entry->gid.raw[0] = 0xfe; entry->gid.raw[1] = 0x80; entry->gid.raw[15] = (uint8_t)(device + 1); }
	else { entry->gid.raw[10] = entry->gid.raw[11] = 0xff; entry->gid.raw[12] = 10; entry->gid.raw[15] = (uint8_t)(device + 1); }
	return 0;
}
EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	memset(attr, 0, sizeof *attr);
	attr->max_qp = 1000; attr->max_qp_wr = 16384; attr->max_cqe = 1 << 20; attr->max_mr = KEYS; attr->max_mr_size = ~0ull;
	attr->max_qp_rd_atom = 16; attr->max_qp_init_rd_atom = 16; attr->phys_port_cnt = 1; attr->max_sge = 1;
	return 0;
}

static int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int poll_cq(struct ibv_cq *, int, struct ibv_wc *);
static int req_notify_cq(struct ibv_cq *, int);

static struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	(void)attr;
	if (!has_thread_domains) { errno = EOPNOTSUPP; return NULL; }
	struct ibv_td *td = calloc(1, sizeof *td);
	td->context = context;
	return td;
}
static int dealloc_td(struct ibv_td *td) { free(td); return 0; }
EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	pd->context = context;
	pthread_mutex_lock(&lock); now.domains++; pthread_mutex_unlock(&lock);
	return pd;
}
EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	pthread_mutex_lock(&lock); now.domains--; pthread_mutex_unlock(&lock);
	free(pd);
	return 0;
}
static struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	if (!attr->pd || attr->comp_mask) { errno = EINVAL; return NULL; }
	return ibv_alloc_pd(context);
}
EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct my_context *context = calloc(1, sizeof *context);
	struct verbs_context *whole = &context->whole;
	context->device = (int)(device - devices);
	whole->sz = sizeof *whole;
	whole->query_port = query_port;
	whole->alloc_td = alloc_td;
	whole->dealloc_td = dealloc_td;
	whole->alloc_parent_domain = alloc_parent_domain;
	whole->context.device = device;
	whole->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	whole->context.async_fd = eventfd(0, EFD_CLOEXEC);
	whole->context.ops.post_send = post_send;
	whole->context.ops.post_recv = post_recv;
	whole->context.ops.poll_cq = poll_cq;
	whole->context.ops.req_notify_cq = req_notify_cq;
	pthread_mutex_lock(&lock); now.contexts++; pthread_mutex_unlock(&lock);
	return &whole->context;
}
EXPORT int ibv_close_device(struct ibv_context *context)
{
	close(context->async_fd);
	pthread_mutex_lock(&lock); now.contexts--; pthread_mutex_unlock(&lock);
	free((char *)context - offsetof(struct my_context, whole.context));
	return 0;
}

static struct ibv_mr *keep(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned access, void *mapped)
{
	if ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)) { errno = EINVAL; return NULL; }
	struct my_mr *mr = calloc(1, sizeof *mr);
	pthread_mutex_lock(&lock);
	uint32_t at = next_key++ % KEYS;
	while (at == 0 || keys[at]) at = next_key++ % KEYS;
	keys[at] = mr;
	/* A reused slot has another key. */
	mr->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = bytes, .lkey = at | (next_key / KEYS) << 16, .rkey = at | (next_key / KEYS) << 16 };
	mr->iova = iova; mr->access = access; mr->mapped = mapped;
	now.regions++;
	pthread_mutex_unlock(&lock);
	return &mr->mr;
}
#undef ibv_reg_mr
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	if ((unsigned)access & IBV_ACCESS_OPTIONAL_RANGE) { errno = EINVAL; return NULL; }
	return keep(pd, addr, bytes, (uintptr_t)addr, (unsigned)access, NULL);
}
EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned access)
{
	return keep(pd, addr, bytes, iova, access & ~IBV_ACCESS_OPTIONAL_RANGE, NULL);
}
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
	if (!has_dma_buf) { errno = EOPNOTSUPP; return NULL; }
	if (fcntl(fd, F_GETFD) < 0) { errno = EBADF; return NULL; }
	if (offset % 4096 != iova % 4096) { errno = EINVAL; return NULL; }
	uint64_t page = offset / 4096 * 4096;
	char *mapped = mmap(NULL, bytes + (offset - page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)page);
	if (mapped == MAP_FAILED) return NULL;
	return keep(pd, mapped + (offset - page), bytes, iova, (unsigned)access, mapped);
}
EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct my_mr *mine = (struct my_mr *)mr;
	pthread_mutex_lock(&lock);
	keys[mr->lkey % KEYS] = NULL;
	now.regions--;
	pthread_mutex_unlock(&lock);
	if (mine->mapped) munmap(mine->mapped, mr->length + (size_t)((char *)mr->addr - (char *)mine->mapped));
	free(mine);
	return 0;
}
/* The bytes that a key and an address name, if the access is allowed. */
static void *find(uint32_t key, uint64_t addr, uint64_t bytes, unsigned access)
{
	struct my_mr *mr = keys[key % KEYS];
	if (!mr || mr->mr.lkey != key || (mr->access & access) != access) return NULL;
	if (addr < mr->iova || bytes > mr->mr.length || addr - mr->iova > mr->mr.length - bytes) return NULL;
	return (char *)mr->mr.addr + (addr - mr->iova);
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
	channel->context = context;
	channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	return channel;
}
EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) { close(channel->fd); free(channel); return 0; }
EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *user, struct ibv_comp_channel *channel, int vector)
{
	struct my_cq *cq = calloc(1, sizeof *cq);
	(void)vector;
	cq->cq = (struct ibv_cq){ .context = context, .channel = channel, .cq_context = user, .cqe = size };
	cq->size = (unsigned)size;
	cq->entries = calloc(cq->size, sizeof *cq->entries);
	pthread_mutex_lock(&lock); now.completion_queues++; pthread_mutex_unlock(&lock);
	return &cq->cq;
}
EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	pthread_mutex_lock(&lock); now.completion_queues--; pthread_mutex_unlock(&lock);
	free(((struct my_cq *)cq)->entries);
	free(cq);
	return 0;
}
EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user)
{
	struct { uint64_t one; } word;
	if (read(channel->fd, &word, sizeof word) != sizeof word) return -1;
	/* One queue per channel here: its address travels in the channel. */
	*cq = (struct ibv_cq *)(uintptr_t)0;
	*user = NULL;
	return 0;
}
EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) { (void)cq; (void)count; }
static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	(void)solicited;
	pthread_mutex_lock(&lock); ((struct my_cq *)cq)->armed = 1; pthread_mutex_unlock(&lock);
	return 0;
}

static void complete(struct my_cq *cq, struct my_qp *qp, struct ibv_wc wc, uint64_t position)
{
	if (cq->count == cq->size) { now.overruns++; return; }
	wc.qp_num = qp->qp.qp_num;
	if (wc.status != IBV_WC_SUCCESS) now.failures++;
	cq->entries[(cq->head + cq->count++) % cq->size] = (struct entry){ wc, qp, qp->qp.qp_num, position };
	if (cq->armed) {
		uint64_t one = 1;
		cq->armed = 0;
		if (cq->cq.channel && write(cq->cq.channel->fd, &one, sizeof one) != sizeof one) abort();
	}
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	if (attr->cap.max_inline_data > inline_max || attr->qp_type != IBV_QPT_RC || attr->cap.max_send_sge > 1) { errno = EINVAL; return NULL; }
	struct my_qp *qp = calloc(1, sizeof *qp);
	qp->cap = attr->cap;
	qp->last = &qp->first;
	qp->receives = calloc(attr->cap.max_recv_wr, sizeof *qp->receives);
	pthread_mutex_lock(&lock);
	while (!next_number || by_number[next_number % QPS]) next_number++;
	uint32_t number = next_number++ % QPS;
	qp->qp = (struct ibv_qp){ .context = pd->context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq, .qp_num = number, .qp_type = IBV_QPT_RC };
	by_number[number] = qp;
	qp->next = all;
	all = qp;
	now.queue_pairs++;
	pthread_mutex_unlock(&lock);
	return &qp->qp;
}
static void flush_receives(struct my_qp *qp)
{
	for (; qp->receive_count; qp->receive_count--) {
		struct receive *receive = &qp->receives[qp->receive_head];
		qp->receive_head = (qp->receive_head + 1) % qp->cap.max_recv_wr;
		complete((struct my_cq *)qp->qp.recv_cq, qp, (struct ibv_wc){ .wr_id = receive->wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV }, 0);
	}
}
static void to_error(struct my_qp *qp)
{
	if (qp->state == IBV_QPS_ERR) return;
	qp->state = IBV_QPS_ERR;
	if (silent == 1) return;
	for (struct send *send = qp->first, *next; send; send = next) {
		next = send->next;
		complete((struct my_cq *)qp->qp.send_cq, qp, (struct ibv_wc){ .wr_id = send->wr.wr_id, .status = IBV_WC_WR_FLUSH_ERR }, send->position);
		free(send);
	}
	qp->first = NULL;
	qp->last = &qp->first;
	if (!silent) flush_receives(qp);
}
EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct my_qp *mine = (struct my_qp *)qp, **link = &all;
	pthread_mutex_lock(&lock);
	while (*link != mine) link = &(*link)->next;
	*link = mine->next;
	by_number[qp->qp_num % QPS] = NULL;
	for (struct send *send = mine->first, *next; send; send = next) { next = send->next; free(send); }
	now.queue_pairs--;
	pthread_mutex_unlock(&lock);
	free(mine->receives);
	free(mine);
	return 0;
}
EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct my_qp *mine = (struct my_qp *)qp;
	const int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int to_rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	int result = 0;
	pthread_mutex_lock(&lock);
	now.modifications++;
	if (attr->qp_state == IBV_QPS_INIT && mine->state == IBV_QPS_RESET && mask == to_init && attr->port_num == 1) {
		mine->state = IBV_QPS_INIT;
		mine->access = attr->qp_access_flags;
	} else if (attr->qp_state == IBV_QPS_RTR && mine->state == IBV_QPS_INIT && mask == to_rtr && attr->ah_attr.is_global && attr->ah_attr.grh.hop_limit > 1 && attr->ah_attr.grh.sgid_index == 2) {
		mine->state = IBV_QPS_RTR;
		mine->peer = attr->dest_qp_num;
	} else if (attr->qp_state == IBV_QPS_RTS && mine->state == IBV_QPS_RTR && mask == to_rts && attr->rnr_retry < 7) {
		mine->state = IBV_QPS_RTS;
	} else if (attr->qp_state == IBV_QPS_ERR && mask == IBV_QP_STATE) {
		to_error(mine);
	} else {
		result = EINVAL;
	}
	qp->state = (enum ibv_qp_state)mine->state;
	pthread_mutex_unlock(&lock);
	return result;
}
EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	(void)pd;
	if (!attr->is_global || attr->port_num != 1) { errno = EINVAL; return NULL; }
	return calloc(1, sizeof(struct ibv_ah));
}
EXPORT int ibv_destroy_ah(struct ibv_ah *ah) { free(ah); return 0; }

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct my_qp *mine = (struct my_qp *)qp;
	int result = 0;
	pthread_mutex_lock(&lock);
	for (; wr && !result; wr = result ? wr : wr->next) {
		if (mine->receive_count == mine->cap.max_recv_wr || mine->state == IBV_QPS_RESET || wr->num_sge != 1) {
			result = EINVAL;
			*bad = wr;
		} else if (mine->state == IBV_QPS_ERR) {
			if (!silent) complete((struct my_cq *)qp->recv_cq, mine, (struct ibv_wc){ .wr_id = wr->wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV }, 0);
		} else {
			mine->receives[(mine->receive_head + mine->receive_count++) % mine->cap.max_recv_wr] = (struct receive){ wr->wr_id, wr->sg_list[0] };
			now.receives++;
		}
	}
	pthread_mutex_unlock(&lock);
	return result;
}
static int post_one(struct my_qp *qp, struct ibv_send_wr *wr)
{
	int is_inline = wr->send_flags & IBV_SEND_INLINE;
	if ((qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) || wr->num_sge != 1) return EINVAL;
	if (is_inline && (wr->sg_list[0].length > qp->cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ)) return EINVAL;
	if (qp->posted - qp->freed == qp->cap.max_send_wr) { now.starved++; return ENOMEM; }
	struct send *send = calloc(1, sizeof *send + (is_inline ? wr->sg_list[0].length : 0));
	send->wr = *wr;
	send->sge = wr->sg_list[0];
	send->position = ++qp->posted;
	if (is_inline) memcpy(send->data, (void *)(uintptr_t)send->sge.addr, send->sge.length);
	now.sends++;
	now.signalled += !!(wr->send_flags & IBV_SEND_SIGNALED);
	now.inline_sends += !!is_inline;
	entries[logged++ % LOG] = (struct log_entry){ send->sge.addr, wr->wr.rdma.remote_addr, send->sge.length, wr->opcode, wr->send_flags, qp->qp.qp_num };
	if (qp->state == IBV_QPS_ERR) {
		if (silent != 1) complete((struct my_cq *)qp->qp.send_cq, qp, (struct ibv_wc){ .wr_id = wr->wr_id, .status = IBV_WC_WR_FLUSH_ERR }, send->position);
		free(send);
	} else {
		*qp->last = send;
		qp->last = &send->next;
	}
	return 0;
}
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int result = 0;
	pthread_mutex_lock(&lock);
	now.doorbells++;
	for (; wr; wr = wr->next) {
		result = post_one((struct my_qp *)qp, wr);
		if (result) { *bad = wr; break; }
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* Carries out the first send of a queue pair. Returns a status, or -1 to try again later. */
static int carry_out(struct my_qp *qp, struct send *send)
{
	struct my_qp *peer = by_number[qp->peer % QPS];
	if (qp->fail_after && !--qp->fail_after) return qp->fail_status;
	if (!peer || peer->state == IBV_QPS_ERR || peer->state < IBV_QPS_RTR || peer->peer != qp->qp.qp_num)
		return ++send->attempts > PATIENCE ? IBV_WC_RETRY_EXC_ERR : -1;
	uint32_t bytes = send->sge.length;
	int reads = send->wr.opcode == IBV_WR_RDMA_READ;
	void *local = send->wr.send_flags & IBV_SEND_INLINE ? send->data : find(send->sge.lkey, send->sge.addr, bytes, reads ? IBV_ACCESS_LOCAL_WRITE : 0);
	if (!local) return IBV_WC_LOC_PROT_ERR;
	if (send->wr.opcode == IBV_WR_SEND) {
		if (!peer->receive_count) { now.receiver_not_ready++; return ++send->attempts > PATIENCE ? IBV_WC_RNR_RETRY_EXC_ERR : -1; }
		struct receive receive = peer->receives[peer->receive_head];
		void *to = find(receive.sge.lkey, receive.sge.addr, receive.sge.length, IBV_ACCESS_LOCAL_WRITE);
		if (!to || bytes > receive.sge.length) { to_error(peer); return IBV_WC_REM_INV_REQ_ERR; }
		memcpy(to, local, bytes);
		if (corrupts) ((uint8_t *)to)[draw(8)] ^= 0x80;
		peer->receive_head = (peer->receive_head + 1) % peer->cap.max_recv_wr;
		peer->receive_count--;
		complete((struct my_cq *)peer->qp.recv_cq, peer, (struct ibv_wc){ .wr_id = receive.wr_id, .opcode = IBV_WC_RECV, .byte_len = bytes }, 0);
		return IBV_WC_SUCCESS;
	}
	void *remote = find(send->wr.wr.rdma.rkey, send->wr.wr.rdma.remote_addr, bytes, reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
	if (!remote) { to_error(peer); return IBV_WC_REM_ACCESS_ERR; }
	memcpy(reads ? local : remote, reads ? remote : local, bytes);
	return IBV_WC_SUCCESS;
}
static void progress(struct my_qp *qp)
{
	for (uint64_t steps = draw(pace + 1); steps && qp->first && qp->state == IBV_QPS_RTS; steps--) {
		struct send *send = qp->first;
		int status = carry_out(qp, send);
		/* The peer may have been this one's own end of the world. */
		if (status < 0 || qp->first != send) return;
		qp->first = send->next;
		if (!qp->first) qp->last = &qp->first;
		if (flushes_first && status != IBV_WC_SUCCESS) flush_receives(qp);
		if (status != IBV_WC_SUCCESS || send->wr.send_flags & IBV_SEND_SIGNALED)
			complete((struct my_cq *)qp->qp.send_cq, qp, (struct ibv_wc){ .wr_id = send->wr.wr_id, .status = (enum ibv_wc_status)status, .opcode = IBV_WC_SEND }, send->position);
		free(send);
		if (status != IBV_WC_SUCCESS) to_error(qp);
	}
}
static int poll_cq(struct ibv_cq *queue, int room, struct ibv_wc *to)
{
	struct my_cq *cq = (struct my_cq *)queue;
	int count = 0;
	pthread_mutex_lock(&lock);
	for (struct my_qp *qp = all; qp; qp = qp->next)
		if (qp->qp.send_cq == queue || qp->qp.recv_cq == queue) progress(qp);
	for (; count < room && cq->count; count++) {
		struct entry *entry = &cq->entries[cq->head];
		to[count] = entry->wc;
		/* Only now the slots of the send queue up to this one are free. */
		if (by_number[entry->qp_num % QPS] == entry->qp && entry->position > entry->qp->freed) entry->qp->freed = entry->position;
		cq->head = (cq->head + 1) % cq->size;
		cq->count--;
	}
	now.completions += (uint64_t)count;
	pthread_mutex_unlock(&lock);
	return count;
}

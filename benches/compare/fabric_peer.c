/* What libfabric can do: writes of one process to another's memory by its provider tcp;ofi_rxm, over the loopback device.
 *
 * Each write is complete in the other's memory before the next one starts, as a put of ours is when it returns. The other process
 * makes progress, and nothing else. */
#define _GNU_SOURCE
#include "sample.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct meeting {
    atomic_int there, over;
    char name[2][128];
    uint64_t key, base;
};

static struct meeting *shared;
static struct fid_cq *queue;
static struct fid_ep *endpoint;
static struct fid_mr *region;

static void must(int outcome, const char *what) {
    if (outcome == 0) return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror(-outcome));
    exit(2);
}

static struct fi_info *loopback(void) {
    struct fi_info *hints = fi_allocinfo(), *list = NULL;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
    must(fi_getinfo(FI_VERSION(1, 11), NULL, NULL, 0, hints, &list), "fi_getinfo");
    while (list && (strcmp(list->domain_attr->name, "lo") || list->addr_format != FI_SOCKADDR_IN)) list = list->next;
    if (!list) must(-FI_ENODATA, "no loopback device");
    return list;
}

static fi_addr_t join(int me, char *heap) {
    struct fi_info *info = loopback();
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fi_cq_attr of_queue = {.size = 1024, .format = FI_CQ_FORMAT_MSG};
    struct fi_av_attr of_addresses = {.type = FI_AV_TABLE, .count = 2};
    must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    must(fi_cq_open(domain, &of_queue, &queue, NULL), "fi_cq_open");
    must(fi_av_open(domain, &of_addresses, &addresses, NULL), "fi_av_open");
    must(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
    must(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
    must(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_enable(endpoint), "fi_enable");
    const uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    must(fi_mr_reg(domain, heap, max_bytes, access, 0, 1, 0, &region, NULL), "fi_mr_reg");
    size_t len = sizeof shared->name[me];
    must(fi_getname(&endpoint->fid, shared->name[me], &len), "fi_getname");
    if (me == 1) {
        shared->key = fi_mr_key(region);
        shared->base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)heap : 0;
    }
    atomic_fetch_add(&shared->there, 1);
    while (atomic_load(&shared->there) < 2) sched_yield();
    fi_addr_t peer;
    if (fi_av_insert(addresses, shared->name[1 - me], 1, &peer, 0, NULL) != 1) must(-FI_EINVAL, "fi_av_insert");
    return peer;
}

/* How many operations have completed. */
static int completed(void) {
    struct fi_cq_msg_entry entries[8];
    const ssize_t read = fi_cq_read(queue, entries, 8);
    if (read < 0 && read != -FI_EAGAIN) must((int)read, "fi_cq_read");
    return read < 0 ? 0 : (int)read;
}

/* Posts a write to this place, and counts what has completed meanwhile. */
static int post(fi_addr_t peer, char *src, size_t at, size_t bytes, struct fi_context2 *context) {
    struct iovec from = {src, bytes};
    struct fi_rma_iov to = {shared->base + at, bytes, shared->key};
    void *descriptor = fi_mr_desc(region);
    const struct fi_msg_rma message = {&from, &descriptor, 1, peer, &to, 1, context, 0};
    ssize_t posted;
    int done = 0;
    while ((posted = fi_writemsg(endpoint, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION)) == -FI_EAGAIN) {
        done += completed();
    }
    must((int)posted, "fi_writemsg");
    return done;
}

static void put(fi_addr_t peer, char *src, size_t bytes) {
    static struct fi_context2 context;
    int done = post(peer, src, 0, bytes, &context);
    while (done < 1) done += completed();
}

static void tokens(fi_addr_t peer, char *src, int told) {
    static struct fi_context2 contexts[TOKENS];
    const size_t places = max_bytes / TOKEN;
    const int n = 20;
    const double start = now_ns();
    for (int i = 0; i < n; i++) {
        int done = 0;
        for (size_t token = 0; token < TOKENS; token++) {
            const size_t from = token % places * TOKEN, to = token * APART % places * TOKEN;
            done += post(peer, src + from, to, TOKEN, &contexts[token]);
        }
        while (done < TOKENS) done += completed();
    }
    if (told) emit("tokens", TOKEN, (now_ns() - start) / n / TOKENS);
}

static void time_of(fi_addr_t peer, char *src, size_t bytes, int told) {
    const int n = rounds(bytes);
    const double start = now_ns();
    for (int i = 0; i < n; i++) put(peer, src, bytes);
    if (told) emit("put", bytes, (now_ns() - start) / n);
}

int main(int argc, char **argv) {
    read_arguments(argc, argv);
    const int prot = PROT_READ | PROT_WRITE;
    shared = mmap(NULL, sizeof *shared, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    const pid_t parent = getpid(), child = fork();
    if (child < 0) return 2;
    const int me = child == 0;
    /* A PE that waits for a dead one would spin for ever. */
    if (me == 1 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) return 2;
    /* Each on a core of its own, as all that is compared. */
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(me, &core);
    if (sched_setaffinity(0, sizeof core, &core) != 0) return 2;
    char *heap = malloc(max_bytes);
    if (!heap) return 2;
    memset(heap, 1 + me, max_bytes);
    const fi_addr_t peer = join(me, heap);
    if (me == 1) {
        while (!atomic_load(&shared->over)) completed();
        return heap[0] == 1 ? 0 : 3;
    }
    for (int r = 0; r <= repeats; r++) {
        time_of(peer, heap, 8, r > 0);
        for (size_t bytes = SMALLEST_BULK; bytes <= max_bytes; bytes *= 4) time_of(peer, heap, bytes, r > 0);
        if (max_bytes >= TOKEN) tokens(peer, heap, r > 0);
    }
    atomic_store(&shared->over, 1);
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

/* Holds every packet of a netfilter queue for some time, then lets it go, in order.
 *
 *     delay QUEUE MILLISECONDS
 *
 * A kernel without netem has this left.  Packets stay in the kernel: only their numbers come here
 * (NFQNL_COPY_META), and one verdict is for all up to a number.  Prints "ready" once it is bound. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { HELD = 1 << 20, BATCH = 1024, RECEIVE_BYTES = 64 << 20 };

static struct {
    double due;
    uint32_t number;
} held[HELD]; /* a ring: [first, last) wait, the oldest first */

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static int put(char *at, int type, const void *data, int size) {
    struct nlattr head = {.nla_len = sizeof head + size, .nla_type = type};
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, data, size);
    return NLMSG_ALIGN(sizeof head + size);
}

static void tell(int link, int queue, int kind, const char *attributes, int size) {
    char message[256] = {0};
    struct nlmsghdr head = {
        .nlmsg_len = NLMSG_LENGTH(sizeof(struct nfgenmsg)) + size,
        .nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | kind,
        .nlmsg_flags = NLM_F_REQUEST,
    };
    struct nfgenmsg about = {.res_id = htons(queue)};
    memcpy(message, &head, sizeof head);
    memcpy(message + NLMSG_HDRLEN, &about, sizeof about);
    memcpy(message + NLMSG_LENGTH(sizeof about), attributes, size);
    if (send(link, message, head.nlmsg_len, 0) < 0) {
        perror("delay: send");
        exit(1);
    }
}

static int bind_queue(int queue) {
    int link = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    int room = RECEIVE_BYTES, yes = 1;
    char at[64];
    if (link < 0 || bind(link, (void *)&address, sizeof address) < 0) {
        perror("delay: netlink");
        exit(1);
    }
    setsockopt(link, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    setsockopt(link, SOL_NETLINK, NETLINK_NO_ENOBUFS, &yes, sizeof yes);
    struct nfqnl_msg_config_cmd bound = {NFQNL_CFG_CMD_BIND, 0, htons(AF_INET)};
    tell(link, queue, NFQNL_MSG_CONFIG, at, put(at, NFQA_CFG_CMD, &bound, sizeof bound));
    struct nfqnl_msg_config_params copied = {htonl(0), NFQNL_COPY_META};
    /* The structure is packed to 5 bytes. */
    tell(link, queue, NFQNL_MSG_CONFIG, at, put(at, NFQA_CFG_PARAMS, &copied, 5));
    uint32_t most = htonl(HELD), flags = htonl(NFQA_CFG_F_FAIL_OPEN | NFQA_CFG_F_GSO);
    tell(link, queue, NFQNL_MSG_CONFIG, at, put(at, NFQA_CFG_QUEUE_MAXLEN, &most, sizeof most));
    int size = put(at, NFQA_CFG_MASK, &flags, sizeof flags);
    size += put(at + size, NFQA_CFG_FLAGS, &flags, sizeof flags);
    tell(link, queue, NFQNL_MSG_CONFIG, at, size);
    return link;
}

static uint32_t number_of(const char *message) {
    struct nfqnl_msg_packet_hdr packet;
    memcpy(&packet, message + NLMSG_LENGTH(sizeof(struct nfgenmsg)) + NLA_HDRLEN, sizeof packet);
    return packet.packet_id;
}

int main(int count, char **words) {
    if (count != 3) {
        fputs("usage: delay QUEUE MILLISECONDS\n", stderr);
        return 2;
    }
    int queue = atoi(words[1]), link = bind_queue(queue);
    double delay = atof(words[2]) / 1e3;
    uint64_t first = 0, last = 0;
    struct pollfd arrivals = {link, POLLIN, 0};
    puts("ready");
    fflush(stdout);
    for (;;) {
        double wait = first == last ? 1.0 : held[first % HELD].due - now();
        struct timespec limit = {0, 999999999};
        if (wait < 1.0) limit.tv_nsec = wait > 0 ? (long)(wait * 1e9) : 0;
        ppoll(&arrivals, 1, &limit, 0);
        double came = now();
        for (int i = 0; i < BATCH && last - first < HELD; i++) {
            char message[4096];
            if (recv(link, message, sizeof message, MSG_DONTWAIT) <= 0) break;
            struct nlmsghdr head;
            memcpy(&head, message, sizeof head);
            if (head.nlmsg_type != (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET)) continue;
            held[last % HELD].due = came + delay;
            held[last++ % HELD].number = number_of(message);
        }
        uint32_t until = 0;
        int any = 0;
        for (double at = now(); first != last && held[first % HELD].due <= at; any = 1)
            until = held[first++ % HELD].number;
        if (any) {
            char at[64];
            struct nfqnl_msg_verdict_hdr verdict = {htonl(1 /* NF_ACCEPT */), until};
            tell(link, queue, NFQNL_MSG_VERDICT_BATCH, at,
                 put(at, NFQA_VERDICT_HDR, &verdict, sizeof verdict));
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TANDEM_PLUGIN_TRANSPORT_H_
#define TANDEM_PLUGIN_TRANSPORT_H_

#include <stdint.h>

/*
 * The transport interface, version 0: pure C11, may still change until it is frozen as version 1.
 *
 * A transport moves bytes between two ranks of a group. It knows nothing of tensors or attention. A plugin exports one
 * symbol, tandem_transport_query_v0 (a static one adds "_<name>"), of type tandem_transport_query_fn.
 *
 * There are two kinds. A host-driven transport moves bytes when post is called and reports each transfer through its
 * completion function. A stream-ordered one (TANDEM_CAP_STREAM_ORDERED) enqueues: post takes a stream, the transfers
 * take part in the stream's order, nothing is reported to the host, and streams wait for arrivals by themselves (wait,
 * wait_sent), so that a whole operation can be captured in a graph and replayed.
 *
 *   A flag is a number below flag_limit that says that something from one peer is here: flag 3 from rank 1 and flag 3
 *   from rank 2 are different ones. The receiver chooses it for a receive, and both sides of a transfer give the same.
 *   It is reset when the receive is posted and raised when the bytes are there. Transfers that follow each other in a
 *   post, to or from the same peer, may share one: it is raised after the last of them. Waiting does not reset it, so
 *   any number of streams may wait.
 *
 *   A lane (below lane_limit) is a set of flags that are used by one operation after the other. Each operation begins
 *   with one post (`begin`) on the lane, which has all its receives, or none: on its stream the flags of the receives
 *   and the lane's `sent` words of all peers are reset, then the peers in it are told that this rank is ready. All
 *   other posts of the operation have sends only. They are ordered behind the beginning, by their stream, and those of
 *   a post with `first` wait for their receiver to have begun, and take that news back, so that the next operation's
 *   wait anew. What the host promises in return: of one lane, a flag belongs to one receive of an operation; an
 *   operation begins only behind all arrivals of the one before, and behind every reader of its bytes and every wait
 *   for its flags; and every peer that has sends on a lane's operation has a matching receive there, and the reverse.
 *
 *   A stream-ordered transport need not be one-sided: then receives have buffers, and regions and offsets mean nothing.
 *   One that has to start sends and receives together (NCCL) may hold back what is posted until `flush`, which the host
 *   calls once for each operation, behind its last post. What it then starts keeps the order of `round`: transfers of a
 *   round are under way together, those of a smaller one are started before. Matching transfers have the same round,
 *   and so have those that share a flag. Within a round what two ranks exchange is in the order of its flags, and where
 *   they share one in that of the posts: sends may have been posted in another order than the receives.
 *
 *   Nothing that a stream waits for may depend on later work of that stream, whatever queues streams share: a transport
 *   waits for a receiver and copies on streams of its own, one for each peer, behind an event of the stream that post
 *   was given.
 *
 * Rules. Structs begin with struct_size, set by whoever fills them, and only grow at the end; a reader looks at no
 * field beyond it. Sizes are 64-bit. No exception crosses the border. Function pointers may be null where "optional" is
 * said. Unless said otherwise a function may be called from any thread, never blocks on a peer, and is not called after
 * close.
 */
#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_TRANSPORT_ABI 0u

/* Values equal tandem::ErrorCode; in_progress is none of them. */
typedef int32_t tandem_status;
enum { TANDEM_OK = 0, TANDEM_IN_PROGRESS = -1 };

enum { TANDEM_SEND = 0, TANDEM_RECEIVE = 1 };

enum {
  TANDEM_CAP_STREAM_ORDERED = 1u << 0, /* post takes a stream; completion is visible to streams */
  TANDEM_CAP_ZERO_SM = 1u << 1,        /* uses no multiprocessor of a GPU */
  TANDEM_CAP_DEVICE_MEMORY = 1u << 2,  /* buffers may be device memory */
  TANDEM_CAP_GRAPH_CAPTURE = 1u << 3,
  TANDEM_CAP_NEEDS_PROGRESS = 1u << 4, /* the host must call progress(); otherwise the plugin has a thread of its own */
  TANDEM_CAP_ONE_SIDED = 1u << 5       /* sends write into regions of the receiver: see allocate */
};

enum { TANDEM_LOG_ERROR = 0, TANDEM_LOG_WARN = 1, TANDEM_LOG_INFO = 2, TANDEM_LOG_DEBUG = 3 };

/* What the host gives a plugin. Valid until close returns. Functions may be called from any thread. */
typedef struct tandem_host_services {
  uint64_t struct_size;
  void* user;
  void (*log)(void* user, int32_t level, const char* message);
  /* A peer can no longer be reached. Called once per peer at most, from a thread of the plugin or inside progress. */
  void (*peer_failed)(void* user, int32_t peer, const char* reason);
} tandem_host_services;

typedef struct tandem_option {
  const char* key;
  const char* value;
} tandem_option;

typedef struct tandem_open_params {
  uint64_t struct_size;
  int32_t rank;
  int32_t size;
  uint8_t group[16]; /* equal on all ranks of the group and on no other group */
  const tandem_option* options;
  uint64_t option_count;
  int32_t cuda_device; /* ordinal of the rank's GPU, or -1: all memory is the host's */
} tandem_open_params;

/* One matched transfer. A send to peer p and p's receive from this rank match by tag; those of equal tag match in the
 * order they were posted. Both sides must give the same number of bytes: if not, both fail with invalid_usage. */
typedef struct tandem_transfer {
  uint64_t struct_size;
  int32_t peer; /* never this rank */
  int32_t direction;
  void* buffer;   /* must stay valid until completion */
  uint64_t bytes; /* 0 is legal and still matches */
  uint64_t tag;
  uint64_t remote_region; /* of a send, one-sided transports only: where it lands at the receiver */
  uint64_t remote_offset;
  uint32_t flag; /* stream-ordered transports only, as `stream`, `lane` and what follows there */
  uint64_t round;
} tandem_transfer;

/* Called exactly once for each transfer of a post that returned ok, when its buffer is no longer used: from a thread of
 * the plugin, or inside progress, abort or close, never inside post. Must not block, may post. */
typedef void (*tandem_completion_fn)(void* user, uint64_t index, tandem_status status, const char* message);

typedef struct tandem_post_params {
  uint64_t struct_size;
  const tandem_transfer* transfers; /* copied before post returns; started in this order as far as peers allow */
  uint64_t count;
  void* stream; /* STREAM_ORDERED: a cudaStream_t, where 0 is the legacy default stream; else null */
  tandem_completion_fn on_complete; /* null if STREAM_ORDERED */
  void* user;
  uint32_t lane;
  uint32_t first; /* 1: the first sends of the lane's operation to each of their peers, which wait for the receiver */
  uint32_t begin; /* 1: begins an operation on the lane: all its receives, count may be 0. 0: sends only */
  uint32_t last;  /* 1: the last sends of the lane's operation to each of their peers: see sent */
} tandem_post_params;

typedef struct tandem_transport_context tandem_transport_context; /* the plugin's own */

typedef struct tandem_transport {
  uint64_t struct_size;
  uint32_t abi;
  uint32_t capabilities;
  const char* name;
  const char* description; /* one line */
  const char* option_help; /* "key: meaning (default)\n" for each option, or "" */
  uint64_t max_message;    /* bytes of one transfer, UINT64_MAX if unbounded */

  /* Fails with invalid_argument for an unknown option or a bad value; the message goes to host->log at level error. */
  tandem_status (*open)(const tandem_host_services* host, const tandem_open_params* params,
                        tandem_transport_context** out);
  /* Writes this rank's address, an opaque blob that the host brings to every peer. In: *bytes is the capacity; out: the
   * size. out_of_memory if it does not fit. At most 4096 bytes. */
  tandem_status (*address)(tandem_transport_context* context, void* out, uint64_t* bytes);
  /* Starts to connect to every peer: addresses[p] and address_bytes[p], p in [0, size), own included. Called once. */
  tandem_status (*connect)(tandem_transport_context* context, const void* const* addresses,
                           const uint64_t* address_bytes);
  /* ok: connected to `peer`; in_progress; or an error. */
  tandem_status (*connect_test)(tandem_transport_context* context, int32_t peer);
  /* Never blocks; transfers to a peer whose connection failed or was closed complete with an error. If it does not
   * return ok, no transfer was started and no completion will be called. */
  tandem_status (*post)(tandem_transport_context* context, const tandem_post_params* params);
  /* Optional, only with NEEDS_PROGRESS: moves things on, up to timeout_us if there is nothing to do. */
  tandem_status (*progress)(tandem_transport_context* context, uint64_t timeout_us);
  /* Fails everything pending and later with aborted. May be called from any thread, more than once. STREAM_ORDERED: it
   * releases every stream that waits, by words that the CPU writes, for a device operation could stand in a hardware
   * queue behind the wait that it should end; and no host memory is touched any more when it returns. */
  void (*abort)(tandem_transport_context* context, const char* reason);
  /* Completes what is pending with aborted, joins threads, closes sockets, frees the context, and regions that were not
   * released. When it returns no memory is touched any more. No other call runs. */
  void (*close)(tandem_transport_context* context);

  /* What follows may be missing (struct_size) unless the capability says otherwise. */

  /* STREAM_ORDERED: makes `stream` wait until the receive from `peer` that has `flag` is complete. */
  tandem_status (*wait)(tandem_transport_context* context, void* stream, int32_t peer, uint32_t flag);
  /* STREAM_ORDERED: makes `stream` wait until the buffers of all sends posted so far have been read. */
  tandem_status (*wait_sent)(tandem_transport_context* context, void* stream);
  /* STREAM_ORDERED: 1 if the flag is raised, 0 if not. For watchdogs: no device call, any thread, also while a stream
   * is being captured. */
  int32_t (*arrived)(tandem_transport_context* context, int32_t peer, uint32_t flag);

  /* ONE_SIDED: memory of this rank that peers can be given access to. Regions are numbered from 0 in the order of these
   * calls, which must be the same on all ranks; sizes may differ, and may be 0. A call that fails takes a number, too,
   * which it writes to *region. The memory is aligned to 256 bytes and usable here at once. */
  tandem_status (*allocate)(tandem_transport_context* context, uint64_t bytes, void** base, uint64_t* region);
  /* ONE_SIDED: an opaque blob about the region for the peers, like address(). */
  tandem_status (*describe)(tandem_transport_context* context, uint64_t region, void* out, uint64_t* bytes);
  /* ONE_SIDED: makes the region of every peer writable from here, given their blobs. May block for some seconds while a
   * peer's transport answers; it needs nothing of the peer's callers. */
  tandem_status (*attach)(tandem_transport_context* context, uint64_t region, const void* const* blobs,
                          const uint64_t* blob_bytes);
  /* ONE_SIDED: gives it back, here and in the peers' view. Nobody may use it any more. */
  void (*release)(tandem_transport_context* context, uint64_t region);

  uint32_t flag_limit; /* STREAM_ORDERED */
  uint32_t lane_limit;

  /* STREAM_ORDERED, optional: 1 if the buffers of everything that the lane's operation sends to `peer` have been read:
   * a word for each lane and peer that the beginning resets, and that the transport raises after the sends of a post
   * with `last`. Called like arrived. Without it a host thread takes sends for done when they are posted. */
  int32_t (*sent)(tandem_transport_context* context, int32_t peer, uint32_t lane);

  /* STREAM_ORDERED, optional: nothing more will be posted for the lane's operation. Behind everything that `stream` did
   * so far, and behind the posts. */
  tandem_status (*flush)(tandem_transport_context* context, void* stream, uint32_t lane);

  /* Optional: why connect_test gave an error for `peer`, as text without an end mark; like address(). A transport that
   * has it lets connect succeed when only some peers are out of reach, so that the host can reach those by another. */
  tandem_status (*connect_error)(tandem_transport_context* context, int32_t peer, void* out, uint64_t* bytes);

  /* Optional, needs no context: why the transport cannot be used on this machine, as when a library is missing that it
   * loads at run time; null if nothing is known against it. Valid until the thread calls it again. */
  const char* (*unavailable)(void);
} tandem_transport;

typedef const tandem_transport* (*tandem_transport_query_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_PLUGIN_TRANSPORT_H_ */

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
  TANDEM_CAP_NEEDS_PROGRESS = 1u << 4 /* the host must call progress(); otherwise the plugin has a thread of its own */
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
  uint64_t remote_region; /* one-sided transports only; two-sided ones ignore both */
  uint64_t remote_offset;
} tandem_transfer;

/* Called exactly once for each transfer of a post that returned ok, when its buffer is no longer used: from a thread of
 * the plugin, or inside progress, abort or close, never inside post. Must not block, may post. */
typedef void (*tandem_completion_fn)(void* user, uint64_t index, tandem_status status, const char* message);

typedef struct tandem_post_params {
  uint64_t struct_size;
  const tandem_transfer* transfers; /* copied before post returns; started in this order as far as peers allow */
  uint64_t count;
  void* stream; /* null unless STREAM_ORDERED */
  tandem_completion_fn on_complete;
  void* user;
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
  /* Fails everything pending and later with aborted. May be called from any thread, more than once. */
  void (*abort)(tandem_transport_context* context, const char* reason);
  /* Completes what is pending with aborted, joins threads, closes sockets, frees the context. No other call runs. */
  void (*close)(tandem_transport_context* context);
} tandem_transport;

typedef const tandem_transport* (*tandem_transport_query_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_PLUGIN_TRANSPORT_H_ */

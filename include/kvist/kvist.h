/* kvist/kvist.h: Kvist's C interface: reading and writing KV blocks from an engine process, in C or whatever speaks C.
 *
 *   kvist_error error;
 *   kvist_client* client = NULL;
 *   if (kvist_client_connect(NULL, KVIST_DEFAULT_TIMEOUT, &client, &error) != KVIST_OK) die(error.message);
 *
 *   kvist_identity identity = KVIST_IDENTITY_INIT;            // what makes blocks interchangeable
 *   identity.alias = "my-model";
 *   identity.model = "meta-llama/Llama-3.1-8B";
 *   kvist_space* space = NULL;
 *   kvist_space_open(client, &identity, KVIST_DEFAULT_TIMEOUT, &space, &error);
 *
 *   kvist_space_digests(space, keys, count, digests);         // names, once a key
 *   kvist_chain chain = KVIST_CHAIN_INIT;
 *   chain.positions = digests;
 *   chain.count = count;
 *   kvist_prefix* prefix = NULL;
 *   kvist_space_longest_prefix(space, &chain, NULL, KVIST_MS(5), &prefix, &error);   // pinned, no message to the node
 *   ... kvist_prefix_blocks(prefix, &blocks) ... use the bytes in place ...
 *   kvist_prefix_free(prefix);                                // gives the room back
 *
 *   kvist_space_put(space, &chain, sources, NULL, results, KVIST_DEFAULT_TIMEOUT);   // one copy, one message a batch
 *
 * docs/c.md is the guide, examples/c a program that runs. It is the same client as kvist/client.h, whose comments hold
 * here as well.
 *
 * Words. A *space* is a namespace: all that must be equal for two blocks to be interchangeable. A *chain* is the blocks of
 * one prefix in order. A position has one *digest*, and a block for each *part* that the space declares. A *pin* keeps a
 * block where it is while it is read.
 *
 * Errors. A call that can fail returns a kvist_status and, where `error` is not NULL, writes code and text there: into
 * memory of the caller, so that a text can neither be overwritten by another thread nor get lost when a green thread moves.
 * On KVIST_OK the code is KVIST_OK and the text empty. Calls about many blocks return how many were done and say of each
 * block how it went, in results[i] (a kvist_status in a byte): one bad key does not fail its batch. `results` may be NULL
 * where the number is enough, but not for submitted calls. No call throws or exits.
 *
 * Time. Every call that can take long takes `timeout_ns`, nanoseconds from the call: KVIST_DEFAULT_TIMEOUT (or anything
 * negative) is two seconds, 0 does not wait, more than a day is a day. KVIST_MS(5) is five milliseconds. Calls without it
 * never wait for the node.
 *
 * Memory. Handles are made by the call that has `kvist_x** out` last, and freed by kvist_x_free() (kvist_client_close(),
 * kvist_space_close()), each of which takes NULL. *out is NULL when nothing was made. Handles may be freed in any order:
 * what was made from a client keeps what it needs. Nothing that you pass in is kept after the call, but where a submitted
 * call says so. Text is UTF-8 or any bytes, NUL-terminated; where bytes may be 0, there is a length. NULL text is "".
 *
 * Threads. A kvist_client and a kvist_space may be used from any thread at once, but freed once, when no call uses them. A
 * kvist_prefix, kvist_pinned or kvist_batch belongs to one thread at a time. Fork: handles do not survive it; in a child
 * calls return KVIST_FAILED_PRECONDITION, "reopen after fork", and freeing does nothing.
 *
 * Versions. Structs that you fill begin with `struct_size`: initialise them with their KVIST_..._INIT, and a program that
 * was built with this header goes on to work with later libraries, which take fields that it does not know of as zero. A
 * library that is older than the program refuses a field that it does not know, if it is not zero, with
 * KVIST_UNIMPLEMENTED. Structs without it, those that stand in arrays, never change. Constants never change their value;
 * more may come, so have a default. Functions never change: the library's symbols are versioned (KVIST_1.0, KVIST_1.1). */
#ifndef KVIST_KVIST_H
#define KVIST_KVIST_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVIST_API __attribute__((visibility("default")))
#else
#define KVIST_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- versions ----------------------------------------------------------------------------------------------------- */

/* Of this header: major << 16 | minor << 8 | patch. */
#define KVIST_VERSION_NUMBER 0x000100

/* Of the library that is linked at run time, "0.1.0". */
KVIST_API const char* kvist_version(void);
/* The same as a number that can be compared with KVIST_VERSION_NUMBER. */
KVIST_API uint32_t kvist_version_number(void);

/* ---- errors ------------------------------------------------------------------------------------------------------- */

/* The canonical codes (those of gRPC), with their numbers. */
typedef enum kvist_status {
  KVIST_OK = 0,
  KVIST_CANCELLED = 1,           /* the caller withdrew the call */
  KVIST_UNKNOWN = 2,             /* the node answered something that this version does not know */
  KVIST_INVALID_ARGUMENT = 3,    /* the call can never work as it was made */
  KVIST_DEADLINE_EXCEEDED = 4,   /* the time was up first; what was sent may still take effect */
  KVIST_NOT_FOUND = 5,           /* a miss: never put, evicted, being put, or on a disk that is not read now */
  KVIST_ALREADY_EXISTS = 6,      /* put of a block that is there: nothing was written */
  KVIST_PERMISSION_DENIED = 7,   /* refused by credentials or mode of the socket */
  KVIST_RESOURCE_EXHAUSTED = 8,  /* a bound was reached: pool full of pinned blocks, or this client over its quota */
  KVIST_FAILED_PRECONDITION = 9, /* namespace flushed (open it again), absent parent under `strict`, handle after fork */
  KVIST_ABORTED = 10,            /* lost a race; trying again may work */
  KVIST_OUT_OF_RANGE = 11,       /* a block is longer or shorter than the memory for it */
  KVIST_UNIMPLEMENTED = 12,      /* node, library or program is too old for the other */
  KVIST_INTERNAL = 13,           /* a defect of Kvist */
  KVIST_UNAVAILABLE = 14,        /* no node now; the client connects again by itself */
  KVIST_DATA_LOSS = 15,          /* bytes failed their verification; they were not handed out */
  KVIST_UNAUTHENTICATED = 16,    /* no token, or a wrong one */
  KVIST_STATUS_MAX_ = 0x7fffffff /* an int, whatever the compiler's flags; not a status */
} kvist_status;

/* "OK", "NOT_FOUND", ...; "UNKNOWN" for a number outside the list. Static. */
KVIST_API const char* kvist_status_name(int status);

#define KVIST_MESSAGE_BYTES 1020
typedef struct kvist_error {
  int32_t code;                      /* a kvist_status */
  char message[KVIST_MESSAGE_BYTES]; /* what is wrong and what to do; cut to fit, always NUL-terminated */
} kvist_error;

/* ---- time --------------------------------------------------------------------------------------------------------- */

#define KVIST_DEFAULT_TIMEOUT (INT64_C(-1))
#define KVIST_MS(ms) ((int64_t)(ms)*INT64_C(1000000))

/* ---- values ------------------------------------------------------------------------------------------------------- */

/* The name of a position: 128 bits. As 16 bytes it is big-endian, `hi` first. All zero names nothing. */
typedef struct kvist_digest {
  uint64_t hi, lo;
} kvist_digest;

typedef struct kvist_bytes {
  const void* data;
  size_t size;
} kvist_bytes;

/* One block's bytes as pieces of the caller's memory, in order; the sizes add up to the block's. Any alignment. */
typedef struct kvist_range {
  void* data;
  size_t size;
} kvist_range;
typedef struct kvist_scatter { /* where a block is written to */
  const kvist_range* pieces;
  size_t count;
} kvist_scatter;
typedef struct kvist_gather { /* where a block is taken from */
  const kvist_bytes* pieces;
  size_t count;
} kvist_gather;

/* A block in place: `data` points into the pool, read-only: a store is a crash. Valid as long as its prefix or pinned. */
typedef struct kvist_block {
  const void* data;
  uint32_t size;     /* bytes */
  uint32_t position; /* index into the call's positions */
  uint16_t part;
  uint16_t reserved[3];
} kvist_block;

/* A stretch of positions that a look-up found in one place. */
#define KVIST_SOURCE_DRAM 0
#define KVIST_SOURCE_DISK 1 /* some of it is on disk only */
typedef struct kvist_run {
  uint32_t begin, end; /* indices into the call's positions: [begin, end) */
  uint64_t part_mask;  /* bit p: part p is there at each of them */
  uint8_t source;      /* KVIST_SOURCE_... */
  uint8_t reserved[3];
  uint32_t predicted_us; /* microseconds until the bytes could be had */
} kvist_run;

/* A finished submitted call. */
typedef struct kvist_completion {
  uint64_t ticket;
  uint8_t code; /* KVIST_OK when the call ran; the results it was given say what of each block */
  uint8_t reserved[3];
  uint32_t done; /* blocks read or stored */
} kvist_completion;

/* ---- clients ------------------------------------------------------------------------------------------------------ */

typedef struct kvist_client kvist_client;
typedef struct kvist_space kvist_space;
typedef struct kvist_prefix kvist_prefix;
typedef struct kvist_pinned kvist_pinned;
typedef struct kvist_batch kvist_batch;

/* Whether reads compare a block's checksum before they hand it out. */
#define KVIST_VERIFY_SAMPLED 0 /* one read in 64 */
#define KVIST_VERIFY_ALWAYS 1
#define KVIST_VERIFY_NEVER 2

typedef struct kvist_client_options {
  size_t struct_size;
  const char* socket;    /* NULL: $KVIST_SOCKET, $XDG_RUNTIME_DIR/kvist.sock, /run/kvist/node.sock: the first there is */
  const char* domain;    /* the tenant's pool; NULL: the node's default one */
  const char* token;     /* where the node asks for one */
  const char* name;      /* shown by `kvist clients`; NULL: the program's name */
  uint64_t stock_bytes;  /* empty slots kept ready for puts, at most; 0: 64 MiB */
  uint32_t pins;         /* blocks that this client may hold pinned at once; 0: 16384 */
  uint8_t verify;        /* KVIST_VERIFY_... */
  uint8_t wait_for_node; /* 1: without a node, make a client that connects by itself when one appears */
  uint8_t reserved[2];
} kvist_client_options;
#define KVIST_CLIENT_OPTIONS_INIT                                              \
  {                                                                            \
    sizeof(kvist_client_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, { 0, 0 } \
  }

/* Connects to the node of this host. `options` NULL: all defaults. KVIST_UNAVAILABLE: nobody listens (the text says where
 * was looked and how to start a node); KVIST_UNAUTHENTICATED, KVIST_PERMISSION_DENIED; KVIST_UNIMPLEMENTED: node and
 * library have no protocol version in common (the text names both). */
KVIST_API kvist_status kvist_client_connect(const kvist_client_options* options, int64_t timeout_ns, kvist_client** out,
                                            kvist_error* error);

typedef struct kvist_embedded_options {
  size_t struct_size;
  uint64_t memory_bytes; /* 0: 1 GiB */
  uint32_t max_blocks;   /* 0: one for each 16 KiB */
  uint32_t pins;         /* 0: 16384 */
  uint8_t verify;
  uint8_t reserved[7];
} kvist_embedded_options;
#define KVIST_EMBEDDED_OPTIONS_INIT                                     \
  {                                                                     \
    sizeof(kvist_embedded_options), 0, 0, 0, 0, { 0, 0, 0, 0, 0, 0, 0 } \
  }

/* A pool in this process, without a node: for tests, tools and engines of one process. */
KVIST_API kvist_status kvist_client_embedded(const kvist_embedded_options* options, kvist_client** out, kvist_error* error);

/* Lets go of the client. The node hears of it once everything made from it is freed too. */
KVIST_API void kvist_client_close(kvist_client* client);

/* 1 while there is a node. */
KVIST_API int kvist_client_connected(const kvist_client* client);

typedef struct kvist_client_stats {
  size_t struct_size;
  uint64_t hits, misses, bytes_got, bytes_put, blocks_put, already_there;
  uint64_t verified, corrupt, pins_refused, put_refused, unavailable, deadline_exceeded, reconnects;
  uint64_t reports_dropped; /* blocks that failed their verification, and of which the node was not told */
  uint64_t brought;         /* blocks that a read waited for while they came from disk */
  uint64_t bring_failed;    /* and that it did not get: lost, late, no room, or a disk that is not read */
} kvist_client_stats;
#define KVIST_CLIENT_STATS_INIT \
  { sizeof(kvist_client_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* What this client counted since it was made. Fills the fields that stats->struct_size covers; bytes beyond those that this
 * library knows become zero. */
KVIST_API kvist_status kvist_client_get_stats(const kvist_client* client, kvist_client_stats* stats);

#define KVIST_REPORT_NODE 0
#define KVIST_REPORT_CLIENTS 1
#define KVIST_REPORT_SPACES 2
/* What the node says of itself, of its clients, of its namespaces: JSON text, NUL-terminated, to be freed by kvist_free().
 * `bytes` (may be NULL): its length without the NUL. Pins are those of its last count, at most a tick (a second) ago. */
KVIST_API kvist_status kvist_client_report(kvist_client* client, int what, int64_t timeout_ns, char** text, size_t* bytes,
                                           kvist_error* error);
KVIST_API void kvist_free(void* memory);

/* ---- submitted calls ---------------------------------------------------------------------------------------------- */

/* Takes out finished submitted calls, at most `capacity`; waits for the first until the time is up. Returns how many. */
KVIST_API size_t kvist_client_poll(kvist_client* client, kvist_completion* out, size_t capacity, int64_t timeout_ns);
/* A descriptor for poll(2) or epoll(7): readable while kvist_client_poll() has something to give. Owned by the client; do
 * not read or close it. -1 when none can be made. */
KVIST_API int kvist_client_completion_fd(kvist_client* client);
/* How many calls may be submitted and not taken out yet. */
#define KVIST_MAX_SUBMITTED 64

/* ---- regions ------------------------------------------------------------------------------------------------------ */

/* Where in this process the node's blocks lie, for engines that register host memory with a device. What each change
 * means, what may be registered when, and what a callback may do: kvist/regions.h. In short: register what is populated;
 * leave it registered on RETIRED; unregister on GONE, before the callback returns, for then it is unmapped. */
#define KVIST_REGION_ADDED 0
#define KVIST_REGION_POPULATED 1
#define KVIST_REGION_RETIRED 2
#define KVIST_REGION_GONE 3

typedef struct kvist_stretch {
  uint64_t offset, bytes;
} kvist_stretch;
typedef struct kvist_region {
  size_t struct_size;    /* set by the library: fields beyond it are not there */
  uint64_t id;           /* never the same twice in one client */
  const void* read_only; /* blocks lie here ... */
  void* writable;        /* ... and rooms of batches here: the same memory, mapped twice */
  uint64_t bytes;        /* of each mapping */
  uint64_t page_bytes;
  const kvist_stretch* populated; /* what has memory; ascending; valid during the callback */
  size_t populated_count;
  uint8_t retired;
  uint8_t reserved[7];
} kvist_region;

/* `region` is valid during the call. Called by one thread at a time, of the client's own or that of whoever lets go of the
 * last block of a region. Must not call this client. */
typedef void (*kvist_region_callback)(int change, const kvist_region* region, void* user);

/* Calls `callback` with KVIST_REGION_ADDED for each region that there is, before it returns. */
KVIST_API kvist_status kvist_client_regions(kvist_client* client, kvist_region_callback callback, void* user,
                                            kvist_error* error);
/* The same, and from then on with every change, until it is called again, perhaps with NULL: when that call returns, the
 * old callback is not running and will not run again (unless the call came from itself). It may be called after
 * kvist_client_close(), as long as a prefix, pinned or batch of the client is not freed: free these, or set NULL, before
 * `user` ends. */
KVIST_API kvist_status kvist_client_watch_regions(kvist_client* client, kvist_region_callback callback, void* user,
                                                  kvist_error* error);

/* ---- spaces ------------------------------------------------------------------------------------------------------- */

/* Which positions must have a part for a prefix to be usable. */
#define KVIST_NEED_ALL 0    /* each: full attention */
#define KVIST_NEED_WINDOW 1 /* the last `window`: sliding-window attention */
#define KVIST_NEED_LAST 2   /* the last: recurrent state */

typedef struct kvist_part {
  const char* name;     /* 1 to 64 bytes, unique in the space */
  uint32_t block_bytes; /* size of each of its blocks, which then get slots of exactly that size; 0: sizes vary */
  uint32_t need;        /* KVIST_NEED_... */
  uint32_t window;      /* positions, with KVIST_NEED_WINDOW only */
  uint32_t reserved;
} kvist_part;

typedef struct kvist_pair {
  const char* key;
  const char* value;
} kvist_pair;

#define KVIST_KEYS_CHAINED 0   /* a key commits to its whole prefix: equal key, equal prefix */
#define KVIST_KEYS_OPAQUE 1    /* a key says nothing about other positions */
#define KVIST_KEY_HASHED 0     /* keys are any bytes, 1 to 4096 */
#define KVIST_KEY_BLOCK_HASH 1 /* keys are cryptographic hashes of at least 16 bytes already */

/* What must be equal for two blocks to be interchangeable: all fields but alias and secret. */
typedef struct kvist_identity {
  size_t struct_size;
  const char* alias; /* the name under which the node lists the space; 1 to 256 bytes */
  const char* model; /* required */
  const char* revision;
  const char* weights_epoch; /* changes with every weight update of a running engine */
  const char* kv_dtype;
  const char* quantization;
  const char* layout;
  const char* hash_algorithm;
  const char* hash_seed;
  const kvist_part* parts;   /* a block's part is its index here; none: one part, "kv", whose sizes vary */
  size_t part_count;         /* at most 64 */
  const kvist_pair* extra;   /* anything else that tells blocks apart, in any order */
  size_t extra_count;        /* at most 64 */
  kvist_bytes tenant_secret; /* makes digests unguessable to other tenants; never stored, never logged */
  uint32_t block_tokens;     /* tokens a position; 0: not stated */
  uint8_t key_kind;          /* KVIST_KEYS_... */
  uint8_t key_form;          /* KVIST_KEY_... */
  uint8_t reserved[2];
} kvist_identity;
#define KVIST_IDENTITY_INIT                                                                                               \
  {                                                                                                                       \
    sizeof(kvist_identity), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0, {NULL, 0}, 0, 0, 0, { \
      0, 0                                                                                                                \
    }                                                                                                                     \
  }

/* Opens a namespace, at the epoch of this moment: after a flush every call answers KVIST_FAILED_PRECONDITION until it is
 * opened again. KVIST_FAILED_PRECONDITION here: the alias is in use for another identity; the text names the field. */
KVIST_API kvist_status kvist_space_open(kvist_client* client, const kvist_identity* identity, int64_t timeout_ns,
                                        kvist_space** out, kvist_error* error);
/* The same from an identity record (docs/formats.md), as kvist_space_record() and the SPACES report give it. */
KVIST_API kvist_status kvist_space_open_record(kvist_client* client, const char* alias, kvist_bytes record,
                                               kvist_bytes tenant_secret, int64_t timeout_ns, kvist_space** out,
                                               kvist_error* error);
KVIST_API void kvist_space_close(kvist_space* space);

/* SHA-256 of the record, under the tenant secret if there is one. */
KVIST_API void kvist_space_id(const kvist_space* space, uint8_t id[32]);
/* The identity record. Valid as long as the space. */
KVIST_API kvist_bytes kvist_space_record(const kvist_space* space);

/* The names of `count` keys. A key that cannot be a name gives the zero digest, which every call answers with
 * KVIST_INVALID_ARGUMENT. About 0.1 us a key. */
KVIST_API void kvist_space_digests(const kvist_space* space, const kvist_bytes* keys, size_t count, kvist_digest* out);
/* 32 lower-case hexadecimal digits and a NUL. */
KVIST_API void kvist_digest_hex(const kvist_digest* digest, char text[33]);

/* ---- reading ------------------------------------------------------------------------------------------------------ */

/* The blocks of a chain that a call is about. positions[i] names chain position first + i. */
typedef struct kvist_chain {
  size_t struct_size;
  const kvist_digest* positions;
  size_t count;
  kvist_digest parent; /* of positions[0]; zero: none known. Needed to link a chain that does not begin at 0 */
  uint32_t first;      /* depth of positions[0]; the engine itself holds what lies before */
  uint32_t reserved;
} kvist_chain;
#define KVIST_CHAIN_INIT \
  { sizeof(kvist_chain), NULL, 0, {0, 0}, 0, 0 }

#define KVIST_ON_DISK_BRING 0 /* blocks on disk are wanted in DRAM */
#define KVIST_ON_DISK_LEAVE 1 /* they stay where they are */
typedef struct kvist_prefix_options {
  size_t struct_size;
  uint64_t parts; /* bit p: part p is wanted; 0: all that the space declares */
  uint32_t from;  /* index into positions from which blocks are wanted; the engine has the ones before */
  uint8_t hint;   /* 1: say what is there, pin and touch nothing; 0: pin it, so that it stays */
  uint8_t reserved[3];
  uint8_t on_disk; /* KVIST_ON_DISK_... */
  uint8_t reserved_too[7];
} kvist_prefix_options;
#define KVIST_PREFIX_OPTIONS_INIT                                                \
  {                                                                              \
    sizeof(kvist_prefix_options), 0, 0, 0, {0, 0, 0}, 0, { 0, 0, 0, 0, 0, 0, 0 } \
  }

/* The longest run of positions, from options->from on, that can be read now: a position counts only with all the parts
 * that the space declares. A hole ends the run, whatever lies behind it. About 60 ns a block, and no message to the node
 * where all blocks are in DRAM. `options` NULL: all parts, from 0, pinned.
 *
 * Blocks on disk: a pinned prefix waits for them until the time is up, or ends before the first of them
 * (KVIST_ON_DISK_LEAVE). A hint counts them either way and never waits; with KVIST_ON_DISK_BRING it has the node begin to
 * read the first of them, up to 64 MiB or 256 blocks.
 *
 * KVIST_OK: an ordinary hole, or the end of the chain. Else why there is no more: KVIST_FAILED_PRECONDITION (flushed; after
 * fork), KVIST_UNAVAILABLE, KVIST_RESOURCE_EXHAUSTED (no more pins, or no room for what is on disk), KVIST_DATA_LOSS (the
 * next block failed its verification), KVIST_DEADLINE_EXCEEDED (what was not looked at, not verified, or not read from disk
 * in time), KVIST_INVALID_ARGUMENT. Either way *out, where it is not NULL, is what was found before that. */
KVIST_API kvist_status kvist_space_longest_prefix(const kvist_space* space, const kvist_chain* chain,
                                                  const kvist_prefix_options* options, int64_t timeout_ns,
                                                  kvist_prefix** out, kvist_error* error);
/* Positions usable, counted from `from`. 0 for NULL. */
KVIST_API size_t kvist_prefix_length(const kvist_prefix* prefix);
/* Of the usable positions' blocks, how many came from disk (pinned) or are there (a hint). */
KVIST_API size_t kvist_prefix_on_disk(const kvist_prefix* prefix);
/* The blocks of a pinned prefix, position by position, part by part within one: *blocks points to as many as it returns,
 * valid as long as the prefix. */
KVIST_API size_t kvist_prefix_blocks(const kvist_prefix* prefix, const kvist_block** blocks);
/* The usable runs first, then (hints only) what lies behind holes. */
KVIST_API size_t kvist_prefix_runs(const kvist_prefix* prefix, const kvist_run** runs);
/* Unpins. What is pinned cannot be evicted: do not keep a prefix longer than the copy it is for (an asynchronous device
 * copy: until its event). */
KVIST_API void kvist_prefix_free(kvist_prefix* prefix);

/* Pins positions[i] for each i, independent of each other. No message to the node but for what is on disk, which is waited
 * for. What was not looked at in time (verifying reads all bytes), or did not come from disk in time, has the result
 * KVIST_DEADLINE_EXCEEDED. */
KVIST_API kvist_status kvist_space_pin(const kvist_space* space, const kvist_digest* positions, size_t count, uint16_t part,
                                       int64_t timeout_ns, kvist_pinned** out, kvist_error* error);
KVIST_API size_t kvist_pinned_count(const kvist_pinned* pinned); /* as many as were asked for */
KVIST_API size_t kvist_pinned_hits(const kvist_pinned* pinned);
/* NULL when it missed; kvist_pinned_result() says why. Valid as long as `pinned`. */
KVIST_API const kvist_block* kvist_pinned_block(const kvist_pinned* pinned, size_t i);
KVIST_API kvist_status kvist_pinned_result(const kvist_pinned* pinned, size_t i);
KVIST_API void kvist_pinned_free(kvist_pinned* pinned);

/* Which are there now, in DRAM or on disk: a hint; touches nothing. results[i]: KVIST_OK or KVIST_NOT_FOUND. Returns how
 * many are. */
KVIST_API size_t kvist_space_contains(const kvist_space* space, const kvist_digest* positions, size_t count, uint16_t part,
                                      uint8_t* results);

/* Copies block i into destinations[i]. A block longer or shorter than its pieces: KVIST_OUT_OF_RANGE, nothing written. On
 * KVIST_DATA_LOSS the pieces hold garbage. sizes (may be NULL) receives the blocks' lengths. Returns how many were copied.
 * What is on disk is read ahead, in this order, and copied as it comes; what has not come in time has the result
 * KVIST_DEADLINE_EXCEEDED. */
KVIST_API size_t kvist_space_get(const kvist_space* space, const kvist_digest* positions, const kvist_scatter* destinations,
                                 size_t count, uint16_t part, uint8_t* results, uint32_t* sizes, int64_t timeout_ns);

/* get, returning at once with a ticket that comes out of kvist_client_poll(). Positions, the destinations' bytes and
 * results must stay as they are until then; the kvist_scatter and kvist_range arrays need not.
 * KVIST_RESOURCE_EXHAUSTED: KVIST_MAX_SUBMITTED are under way; poll first. */
KVIST_API kvist_status kvist_space_submit_get(const kvist_space* space, const kvist_digest* positions,
                                              const kvist_scatter* destinations, size_t count, uint16_t part,
                                              uint8_t* results, int64_t timeout_ns, uint64_t* ticket, kvist_error* error);

/* ---- writing ------------------------------------------------------------------------------------------------------ */

typedef struct kvist_put_options {
  size_t struct_size;
  const char* session; /* the conversation this belongs to, at most 255 bytes; kept for retention */
  const char* stop;    /* why the engine stopped ("tool_use", ...), at most 255 bytes */
  uint16_t part;
  uint8_t strict;    /* 1: refuse blocks whose parent is not in the pool, instead of remembering it as absent */
  uint8_t unchained; /* 1: the positions are independent blocks, not a chain (opaque keys) */
  uint8_t reserved[4];
} kvist_put_options;
#define KVIST_PUT_OPTIONS_INIT                                     \
  {                                                                \
    sizeof(kvist_put_options), NULL, NULL, 0, 0, 0, { 0, 0, 0, 0 } \
  }

/* Stores block i from sources[i], unless it is there: chain->count of them. Returns how many were stored. The sources may
 * be reused when it returns. `options` NULL: part 0 of a chain. Where the pool has no room because all of it is pinned or
 * being filled, it waits for some (what continues a chain: a tenth of a second at most), and then says
 * KVIST_RESOURCE_EXHAUSTED. */
KVIST_API size_t kvist_space_put(const kvist_space* space, const kvist_chain* chain, const kvist_gather* sources,
                                 const kvist_put_options* options, uint8_t* results, int64_t timeout_ns);

/* put, returning as soon as its sources are copied, for which it may have to wait for the node, with a ticket that comes
 * out of kvist_client_poll(). Positions and results must stay as they are until then. Waits for room some milliseconds
 * only. */
KVIST_API kvist_status kvist_space_submit_put(const kvist_space* space, const kvist_chain* chain,
                                              const kvist_gather* sources, const kvist_put_options* options,
                                              uint8_t* results, int64_t timeout_ns, uint64_t* ticket, kvist_error* error);

/* Room in the pool itself for the blocks that are absent: lengths[i] bytes for positions[i], or lengths[0] for all if
 * length_count is 1. Fill it in place or by kvist_batch_copy(), then commit. */
KVIST_API kvist_status kvist_space_reserve(const kvist_space* space, const kvist_chain* chain, const uint32_t* lengths,
                                           size_t length_count, const kvist_put_options* options, int64_t timeout_ns,
                                           kvist_batch** out, kvist_error* error);
KVIST_API size_t kvist_batch_count(const kvist_batch* batch);
/* Writable room of *size bytes, or NULL when block i needs none: see its result. */
KVIST_API void* kvist_batch_room(const kvist_batch* batch, size_t i, size_t* size);
/* KVIST_OK: has room (or, after commit, is stored); else why it has none. */
KVIST_API kvist_status kvist_batch_result(const kvist_batch* batch, size_t i);
/* Copies the pieces into block i's room and keeps their checksum. */
KVIST_API kvist_status kvist_batch_copy(kvist_batch* batch, size_t i, kvist_gather source, kvist_error* error);
/* Makes all filled blocks readable. Returns how many were stored; kvist_batch_result() says what of each. */
KVIST_API size_t kvist_batch_commit(kvist_batch* batch, int64_t timeout_ns);
/* Gives back what was not committed, and ends the batch. */
KVIST_API void kvist_batch_free(kvist_batch* batch);

/* ---- the rest ----------------------------------------------------------------------------------------------------- */

/* Records a use of the chain whose last position is positions[count - 1]. With a session id or stop reason one message,
 * else none. */
KVIST_API kvist_status kvist_space_touch(const kvist_space* space, const kvist_digest* positions, size_t count,
                                         uint16_t part, const char* session, const char* stop, int64_t timeout_ns,
                                         kvist_error* error);

/* Takes blocks away, for every client. results[i]: KVIST_OK or KVIST_NOT_FOUND. Readers that have one pinned finish in
 * peace. Returns how many went. */
KVIST_API size_t kvist_space_remove(const kvist_space* space, const kvist_digest* positions, size_t count, uint16_t part,
                                    uint8_t* results, int64_t timeout_ns);

/* Ends the namespace's epoch: all its blocks are unreachable when this returns, and commits that are under way anywhere
 * will be refused. *blocks (may be NULL): how many went. Every handle then needs to be opened again. */
KVIST_API kvist_status kvist_space_flush(const kvist_space* space, int64_t timeout_ns, uint64_t* blocks, kvist_error* error);

typedef struct kvist_listing {
  kvist_digest position, parent;
  uint32_t size, depth, children;
  uint16_t part;
  uint8_t resident; /* 1: has its bytes in DRAM */
  uint8_t on_disk;  /* 1: a copy of them is on disk. Neither: known only as somebody's parent */
} kvist_listing;

/* The blocks of a space, a page of at most `capacity` at a time: *cursor is 0 to begin, and 0 again at the end. */
KVIST_API kvist_status kvist_space_list(const kvist_space* space, uint64_t* cursor, kvist_listing* out, size_t capacity,
                                        int64_t timeout_ns, size_t* count, kvist_error* error);

#ifdef __cplusplus
}
#endif

#endif /* KVIST_KVIST_H */

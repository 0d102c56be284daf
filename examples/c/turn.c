/* A turn of a conversation, as an engine would run it: look up what is known of the context, read that in place, compute
 * the rest, store it, and read one block back by copying it.
 *
 *   turn              with the node that is found by KVIST_SOCKET or in the usual places
 *   turn --embedded   with a pool in this process
 *
 * Run it twice: the second time everything is there already. docs/c.md walks through it. */
#include <kvist/kvist.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlocks = 32, kBlockBytes = 65536, kKeyBytes = 32 };

static void die(const char* what, const kvist_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, kvist_status_name(error->code), error->message);
  exit(1);
}

/* Stands for the model: the bytes of the KV block for position i of the context. */
static void compute(size_t i, unsigned char* bytes) {
  for (size_t at = 0; at < kBlockBytes; ++at) bytes[at] = (unsigned char)(i * 131 + at * 7);
}

/* [connect] */
static kvist_client* connect_client(int embedded) {
  kvist_client* client = NULL;
  kvist_error error;
  if (embedded) {
    kvist_embedded_options options = KVIST_EMBEDDED_OPTIONS_INIT;
    options.memory_bytes = 64 << 20;
    if (kvist_client_embedded(&options, &client, &error) != KVIST_OK) die("pool", &error);
  } else {
    kvist_client_options options = KVIST_CLIENT_OPTIONS_INIT;
    options.name = "example";
    if (kvist_client_connect(&options, KVIST_DEFAULT_TIMEOUT, &client, &error) != KVIST_OK) die("connect", &error);
  }
  return client;
}
/* [/connect] */

/* [open] */
static kvist_space* open_space(kvist_client* client) {
  kvist_part part = {"kv", kBlockBytes, KVIST_NEED_ALL, 0, 0};
  kvist_identity identity = KVIST_IDENTITY_INIT;
  identity.alias = "example-c";
  identity.model = "example/model";
  identity.kv_dtype = "bfloat16";
  identity.block_tokens = 16;
  identity.parts = &part;
  identity.part_count = 1;
  kvist_space* space = NULL;
  kvist_error error;
  if (kvist_space_open(client, &identity, KVIST_DEFAULT_TIMEOUT, &space, &error) != KVIST_OK) die("open", &error);
  return space;
}
/* [/open] */

/* [prefix] */
static size_t read_prefix(kvist_space* space, const kvist_chain* chain) {
  kvist_prefix* prefix = NULL;
  kvist_error error;
  if (kvist_space_longest_prefix(space, chain, NULL, KVIST_DEFAULT_TIMEOUT, &prefix, &error) != KVIST_OK) {
    fprintf(stderr, "the prefix ends early: %s\n", error.message); /* what was found before that is good */
  }
  const kvist_block* blocks = NULL;
  const size_t count = kvist_prefix_blocks(prefix, &blocks);
  static unsigned char expected[kBlockBytes];
  for (size_t i = 0; i < count; ++i) {
    compute(blocks[i].position, expected); /* an engine would copy blocks[i].data to its device here */
    if (blocks[i].size != kBlockBytes || memcmp(blocks[i].data, expected, kBlockBytes) != 0) abort();
  }
  const size_t length = kvist_prefix_length(prefix);
  kvist_prefix_free(prefix); /* unpins: the pointers above end here */
  return length;
}
/* [/prefix] */

/* [put] */
static size_t put_rest(kvist_space* space, const kvist_digest* digests, size_t known) {
  static unsigned char bytes[kBlocks][kBlockBytes];
  kvist_bytes pieces[kBlocks];
  kvist_gather sources[kBlocks];
  uint8_t results[kBlocks];
  const size_t count = kBlocks - known;
  for (size_t i = 0; i < count; ++i) {
    compute(known + i, bytes[i]);
    pieces[i].data = bytes[i];
    pieces[i].size = kBlockBytes;
    sources[i].pieces = &pieces[i]; /* one piece here; a paged engine gives many */
    sources[i].count = 1;
  }
  kvist_chain rest = KVIST_CHAIN_INIT;
  rest.positions = digests + known;
  rest.count = count;
  rest.first = (uint32_t)known;
  if (known > 0) rest.parent = digests[known - 1];
  kvist_put_options options = KVIST_PUT_OPTIONS_INIT;
  options.session = "conversation-1";
  const size_t stored = kvist_space_put(space, &rest, sources, &options, results, KVIST_DEFAULT_TIMEOUT);
  for (size_t i = 0; i < count; ++i) {
    if (results[i] != KVIST_OK && results[i] != KVIST_ALREADY_EXISTS) {
      fprintf(stderr, "block %zu: %s\n", known + i, kvist_status_name(results[i]));
    }
  }
  return stored;
}
/* [/put] */

/* [get] */
static void get_last(kvist_space* space, const kvist_digest* digest) {
  static unsigned char bytes[kBlockBytes], expected[kBlockBytes];
  kvist_range halves[2] = {{bytes, kBlockBytes / 2}, {bytes + kBlockBytes / 2, kBlockBytes / 2}};
  kvist_scatter destination = {halves, 2};
  uint8_t result = KVIST_UNKNOWN;
  kvist_space_get(space, digest, &destination, 1, 0, &result, NULL, KVIST_MS(100));
  compute(kBlocks - 1, expected);
  if (result != KVIST_OK || memcmp(bytes, expected, kBlockBytes) != 0) {
    fprintf(stderr, "get: %s\n", kvist_status_name(result));
    exit(1);
  }
}
/* [/get] */

/* [main] */
int main(int argc, char** argv) {
  kvist_client* client = connect_client(argc > 1 && strcmp(argv[1], "--embedded") == 0);
  kvist_space* space = open_space(client);

  char keys[kBlocks][kKeyBytes]; /* an engine has block hashes, each of which covers the whole prefix */
  kvist_bytes views[kBlocks];
  kvist_digest digests[kBlocks];
  for (size_t i = 0; i < kBlocks; ++i) {
    views[i].data = keys[i];
    views[i].size = (size_t)snprintf(keys[i], kKeyBytes, "system prompt, block %zu", i);
  }
  kvist_space_digests(space, views, kBlocks, digests);
  kvist_chain chain = KVIST_CHAIN_INIT;
  chain.positions = digests;
  chain.count = kBlocks;

  const size_t known = read_prefix(space, &chain);
  const size_t stored = put_rest(space, digests, known);
  get_last(space, &digests[kBlocks - 1]);
  printf("%zu of %d blocks were there, %zu stored, %zu now\n", known, kBlocks, stored, read_prefix(space, &chain));

  kvist_space_close(space);
  kvist_client_close(client);
  return 0;
}
/* [/main] */

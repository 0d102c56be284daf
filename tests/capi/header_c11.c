/* kvist.h as a C11 compiler sees it: it stands alone, warns of nothing, and every INIT fits its struct. */
#include "kvist/kvist.h"

size_t kvist_header_sizes(void);

size_t kvist_header_sizes(void) {
  const kvist_client_options client = KVIST_CLIENT_OPTIONS_INIT;
  const kvist_embedded_options embedded = KVIST_EMBEDDED_OPTIONS_INIT;
  const kvist_client_stats stats = KVIST_CLIENT_STATS_INIT;
  const kvist_identity identity = KVIST_IDENTITY_INIT;
  const kvist_chain chain = KVIST_CHAIN_INIT;
  const kvist_prefix_options prefix = KVIST_PREFIX_OPTIONS_INIT;
  const kvist_put_options put = KVIST_PUT_OPTIONS_INIT;
  return client.struct_size + embedded.struct_size + stats.struct_size + identity.struct_size + chain.struct_size +
         prefix.struct_size + put.struct_size;
}

// kvist.h: versions, errors, clients, polling, regions.
#include <cstdlib>
#include <new>

#include "capi/handles.h"

using namespace kvist;
using namespace kvist::capi;

static_assert(KVIST_VERSION_NUMBER == (KVIST_VERSION_MAJOR << 16 | KVIST_VERSION_MINOR << 8 | KVIST_VERSION_PATCH),
              "kvist.h and CMakeLists.txt tell different versions");

namespace {

Verify verify_of(uint8_t verify) {
  return verify == KVIST_VERIFY_ALWAYS ? Verify::kAlways : verify == KVIST_VERIFY_NEVER ? Verify::kNever : Verify::kSampled;
}

Status check_verify(uint8_t verify) {
  return verify <= KVIST_VERIFY_NEVER ? ok_status() : invalid_argument("verify is none of KVIST_VERIFY_...");
}

kvist_status hand_out(StatusOr<Client> client, kvist_client** out, kvist_error* error) {
  if (!client.ok()) return answer(error, client.status());
  *out = new kvist_client{std::make_shared<Shared>(*std::move(client))};
  return answer(error, ok_status());
}

void show(kvist_region_callback callback, void* user, RegionChange change, const Region& region) {
  kvist_region shown = {};
  shown.struct_size = sizeof(shown);
  shown.id = region.id;
  shown.read_only = region.read_only;
  shown.writable = region.writable;
  shown.bytes = region.bytes;
  shown.page_bytes = region.page_bytes;
  shown.populated = reinterpret_cast<const kvist_stretch*>(region.populated.data());
  shown.populated_count = region.populated.size();
  shown.retired = region.retired ? 1 : 0;
  callback(static_cast<int>(change), &shown, user);
}

}  // namespace

extern "C" {

const char* kvist_version(void) { return KVIST_VERSION; }
uint32_t kvist_version_number(void) { return KVIST_VERSION_NUMBER; }

const char* kvist_status_name(int status) {
  // A view of a literal, so that there is a NUL behind it.
  return status_code_name(status >= 0 && status <= 255 ? static_cast<StatusCode>(status) : StatusCode::kUnknown).data();
}

kvist_status kvist_client_connect(const kvist_client_options* options, int64_t timeout_ns, kvist_client** out,
                                  kvist_error* error) {
  if (out == nullptr) return null_error(error, "out is NULL");
  *out = nullptr;
  return guarded(error, [&] {
    kvist_client_options given;
    if (Status status = take(options, "KVIST_CLIENT_OPTIONS_INIT", &given); !status.ok()) return answer(error, status);
    if (Status status = check_verify(given.verify); !status.ok()) return answer(error, status);
    ClientOptions wanted;
    wanted.socket = text_of(given.socket);
    wanted.domain = text_of(given.domain);
    wanted.token = text_of(given.token);
    wanted.name = text_of(given.name);
    wanted.verify = verify_of(given.verify);
    if (given.pins != 0) wanted.pins = given.pins;
    if (given.stock_bytes != 0) wanted.stock_bytes = given.stock_bytes;
    wanted.wait_for_node = given.wait_for_node != 0;
    return hand_out(Client::connect(wanted, deadline_of(timeout_ns)), out, error);
  });
}

kvist_status kvist_client_embedded(const kvist_embedded_options* options, kvist_client** out, kvist_error* error) {
  if (out == nullptr) return null_error(error, "out is NULL");
  *out = nullptr;
  return guarded(error, [&] {
    kvist_embedded_options given;
    if (Status status = take(options, "KVIST_EMBEDDED_OPTIONS_INIT", &given); !status.ok()) return answer(error, status);
    if (Status status = check_verify(given.verify); !status.ok()) return answer(error, status);
    EmbeddedOptions wanted;
    if (given.memory_bytes != 0) wanted.memory_bytes = given.memory_bytes;
    if (given.pins != 0) wanted.pins = given.pins;
    wanted.max_blocks = given.max_blocks;
    wanted.verify = verify_of(given.verify);
    return hand_out(Client::embedded(wanted), out, error);
  });
}

void kvist_client_close(kvist_client* client) { delete client; }

int kvist_client_connected(const kvist_client* client) { return client != nullptr && client->shared->client.connected(); }

kvist_status kvist_client_get_stats(const kvist_client* client, kvist_client_stats* stats) {
  if (client == nullptr || stats == nullptr) return KVIST_INVALID_ARGUMENT;
  const size_t size = stats->struct_size;
  if (size < kFirstSize<kvist_client_stats> || size > 4096) return KVIST_INVALID_ARGUMENT;
  const ClientStats now = client->shared->client.stats();
  const kvist_client_stats filled = {size,
                                     now.hits,
                                     now.misses,
                                     now.bytes_got,
                                     now.bytes_put,
                                     now.blocks_put,
                                     now.already_there,
                                     now.verified,
                                     now.corrupt,
                                     now.pins_refused,
                                     now.put_refused,
                                     now.unavailable,
                                     now.deadline_exceeded,
                                     now.reconnects,
                                     now.reports_dropped,
                                     now.brought,
                                     now.bring_failed};
  std::memset(static_cast<void*>(stats), 0, size);
  std::memcpy(static_cast<void*>(stats), &filled, size < sizeof(filled) ? size : sizeof(filled));
  return KVIST_OK;
}

kvist_status kvist_client_report(kvist_client* client, int what, int64_t timeout_ns, char** text, size_t* bytes,
                                 kvist_error* error) {
  if (client == nullptr || text == nullptr) return null_error(error, "client or text is NULL");
  *text = nullptr;
  if (bytes != nullptr) *bytes = 0;
  if (what < KVIST_REPORT_NODE || what > KVIST_REPORT_SPACES) return null_error(error, "what is none of KVIST_REPORT_...");
  return guarded(error, [&] {
    const StatusOr<std::string> report =
        client->shared->client.report(static_cast<Client::Report>(what), deadline_of(timeout_ns));
    if (!report.ok()) return answer(error, report.status());
    auto* copy = static_cast<char*>(std::malloc(report->size() + 1));
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, report->c_str(), report->size() + 1);
    *text = copy;
    if (bytes != nullptr) *bytes = report->size();
    return answer(error, ok_status());
  });
}

void kvist_free(void* memory) { std::free(memory); }

size_t kvist_client_poll(kvist_client* client, kvist_completion* out, size_t capacity, int64_t timeout_ns) {
  if (client == nullptr || out == nullptr) return 0;
  const std::span<Completion> completions(reinterpret_cast<Completion*>(out), capacity);
  const size_t count = client->shared->client.poll(completions, deadline_of(timeout_ns));
  // They are out, whatever happens here: what a lack of memory keeps from being noted is let go with the client.
  if (count > 0) (void)guarded_count({}, [&]() -> size_t { return client->shared->polled(completions.first(count)), 0; });
  return count;
}

int kvist_client_completion_fd(kvist_client* client) {
  return client == nullptr ? -1 : client->shared->client.completion_fd();
}

kvist_status kvist_client_regions(kvist_client* client, kvist_region_callback callback, void* user, kvist_error* error) {
  if (client == nullptr || callback == nullptr) return null_error(error, "client or callback is NULL");
  return guarded(error, [&] {
    for (const Region& region : client->shared->client.regions()) show(callback, user, RegionChange::kAdded, region);
    return answer(error, ok_status());
  });
}

kvist_status kvist_client_watch_regions(kvist_client* client, kvist_region_callback callback, void* user,
                                        kvist_error* error) {
  if (client == nullptr) return null_error(error, "client is NULL");
  return guarded(error, [&] {
    RegionWatcher watcher;
    if (callback != nullptr) {
      watcher = [callback, user](RegionChange change, const Region& region) { show(callback, user, change, region); };
    }
    return answer(error, client->shared->client.watch_regions(std::move(watcher)));
  });
}

}  // extern "C"

// Any bytes as a packet of the local wire, through every decoder of either side.
//
// Beyond "no over-read" it holds the decoders to what they promise: what was accepted fits in the packet, and the texts that
// come out are views into it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "wire/local.h"

namespace kvist::wire {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void require_within(std::span<const std::byte> body, std::string_view text) {
  const char* begin = reinterpret_cast<const char*>(body.data());
  require(text.empty() || (text.data() >= begin && text.data() + text.size() <= begin + body.size()));
}

void decode_requests(std::span<const std::byte> body) {
  if (HelloMessage hello; decode(body, &hello)) {
    for (const std::string_view text : {hello.token, hello.domain, hello.name}) require_within(body, text);
  }
  if (OpenSpaceMessage open; decode(body, &open)) {
    require_within(body, open.alias);
    require_within(body, open.record);
  }
  if (CommitMessage commit; decode(body, &commit)) {
    require(commit.items.size() == commit.fixed.count && commit.items.size() * sizeof(CommitItem) <= body.size());
    require_within(body, commit.session);
    require_within(body, commit.stop);
  }
  if (GiveBackMessage give_back; decode(body, &give_back)) require(give_back.items.size() * 8 <= body.size());
  if (RemoveMessage remove; decode(body, &remove)) require(remove.digests.size() * sizeof(Digest) <= body.size());
  if (FetchMessage fetch; decode(body, &fetch)) {
    require(fetch.digests.size() == fetch.fixed.count && fetch.digests.size() <= kMaxFetched &&
            fetch.digests.size() * sizeof(Digest) <= body.size());
  }
  if (NoteUseMessage note; decode(body, &note)) {
    require_within(body, note.session);
    require_within(body, note.stop);
  }
  if (std::string_view alias; decode_flush(body, &alias)) require_within(body, alias);
}

void decode_answers(std::span<const std::byte> body) {
  if (CommittedMessage committed; decode(body, &committed)) {
    require(committed.grants.size() * sizeof(GrantItem) + committed.codes.size() <= body.size());
  }
  std::vector<GrantItem> grants;
  uint8_t stop = 0;
  if (decode_granted(body, &grants, &stop)) require(grants.size() * sizeof(GrantItem) <= body.size());
  std::vector<uint8_t> codes;
  if (decode_codes(body, &codes)) require(codes.size() <= body.size());
  Listed listed;
  std::vector<ListItem> items;
  if (decode_listed(body, &listed, &items))
    require(items.size() == listed.count && items.size() * sizeof(ListItem) <= body.size());
}

}  // namespace
}  // namespace kvist::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvist::wire;
  const std::span<const std::byte> packet(reinterpret_cast<const std::byte*>(data), size);
  Header header;
  std::span<const std::byte> body;
  if (open_packet(packet, &header, &body)) {
    require(body.size() == header.body_bytes && body.size() + sizeof(Header) == size);
  } else {
    body = packet;  // the header's checks must not hide the decoders behind them
  }
  decode_requests(body);
  decode_answers(body);
  return 0;
}

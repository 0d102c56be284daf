#include "client/node_memory.h"

#include <string>

namespace kvist::client {
namespace {

Status does_not_fit(const std::string& what) {
  return failed_precondition("the node's shared memory cannot be used: " + what);
}

Status check_control(const NodeMemory& memory, const wire::Welcome& welcome, ControlLayout* layout) {
  const std::byte* base = memory.control_map.data();
  if (const uint32_t version = ControlView::layout_version(base, memory.control_map.size());
      version != 0 && version != kLayoutVersion) {
    return unimplemented("the node's shared memory has layout version " + std::to_string(version) +
                         ", this client reads version " + std::to_string(kLayoutVersion) + ": upgrade the older one");
  }
  if (const char* wrong = ControlView::check(base, memory.control_map.size(), layout); wrong != nullptr) {
    return does_not_fit(std::string("control memory: ") + wrong);
  }
  const auto* header = reinterpret_cast<const ControlHeader*>(base);
  if (header->incarnation[0] != welcome.incarnation[0] || header->incarnation[1] != welcome.incarnation[1]) {
    return does_not_fit("control memory is of another run of the node");
  }
  if (header->arena_bytes != welcome.arena_bytes || header->extent_bytes != welcome.extent_bytes) {
    return does_not_fit("control memory and welcome tell different sizes of the arena");
  }
  if (welcome.touch_bytes < (uint64_t{layout->max_entries} + 1) * sizeof(uint32_t)) {
    return does_not_fit("there is not a touch word for each entry");
  }
  return ok_status();
}

Status check_pins(const NodeMemory& memory, const wire::Welcome& welcome) {
  if (welcome.pin_capacity == 0 || welcome.pin_capacity > kMaxPins ||
      welcome.pins_bytes < PinTable::bytes_for(welcome.pin_capacity)) {
    return does_not_fit("the pin table is smaller than announced");
  }
  const auto* table = reinterpret_cast<const PinTable*>(memory.pins_map.data());
  return table->magic == kPinsMagic ? ok_status() : does_not_fit("the pin table does not begin with its magic");
}

struct Wanted {
  Mapping NodeMemory::*mapping;
  size_t descriptor;
  uint64_t bytes;
  Access access;
};

}  // namespace

StatusOr<NodeMemory> map_node_memory(const wire::Welcome& welcome, const std::array<FileDescriptor, 4>& descriptors) {
  NodeMemory memory;
  const Wanted wanted[] = {
      {&NodeMemory::control_map, 0, welcome.control_bytes, Access::kRead},
      {&NodeMemory::touch_map, 1, welcome.touch_bytes, Access::kReadWrite},
      {&NodeMemory::read_map, 2, welcome.arena_bytes, Access::kRead},
      {&NodeMemory::write_map, 2, welcome.arena_bytes, Access::kReadWrite},
      {&NodeMemory::pins_map, 3, welcome.pins_bytes, Access::kReadWrite},
  };
  for (const Wanted& each : wanted) {
    if (each.bytes == 0) return does_not_fit("a part of it has no size");
    StatusOr<Mapping> mapping = Mapping::map(descriptors[each.descriptor].get(), each.bytes, each.access);
    if (!mapping.ok()) return mapping.status();
    memory.*each.mapping = *std::move(mapping);
  }
  ControlLayout layout;
  if (Status status = check_control(memory, welcome, &layout); !status.ok()) return status;
  if (Status status = check_pins(memory, welcome); !status.ok()) return status;
  memory.reader =
      Reader(ControlView::over(memory.control_map.data(), layout),
             reinterpret_cast<std::atomic<uint32_t>*>(memory.touch_map.data()), memory.read_map.data(), welcome.arena_bytes);
  memory.writable = memory.write_map.data();
  memory.arena_bytes = welcome.arena_bytes;
  memory.extent_bytes = welcome.extent_bytes;
  memory.page_bytes = page_bytes_of(descriptors[2].get());
  memory.pins = reinterpret_cast<PinTable*>(memory.pins_map.data());
  memory.pin_capacity = welcome.pin_capacity;
  memory.reader.set_closed(&memory.pins->closed);
  if ((welcome.features & wire::kClientCounts) != 0 && welcome.pins_bytes >= bytes_with_counts(welcome.pin_capacity)) {
    memory.counts = reinterpret_cast<ClientCounts*>(memory.pins_map.data() + client_counts_at(welcome.pin_capacity));
  }
  return memory;
}

}  // namespace kvist::client

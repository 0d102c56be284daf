#include "client/region_book.h"

#include <algorithm>
#include <utility>

namespace kvist::client {
namespace {

uint64_t populated_bytes(const Region& region) {
  uint64_t bytes = 0;
  for (const Region::Stretch& stretch : region.populated) bytes += stretch.bytes;
  return bytes;
}

}  // namespace

Region RegionBook::describe(const Page& page) {
  const NodeMemory& memory = *page.memory;
  Region region;
  region.id = page.id;
  region.read_only = memory.reader.arena();
  region.writable = memory.writable;
  region.bytes = memory.arena_bytes;
  region.page_bytes = memory.page_bytes;
  region.retired = page.retired;
  for (uint32_t extent = 0; extent < memory.extents(); ++extent) {
    if (!memory.extent_ready(extent)) continue;
    const uint64_t offset = extent * memory.extent_bytes;
    const uint64_t bytes = memory.extent_bytes;
    if (!region.populated.empty() && region.populated.back().offset + region.populated.back().bytes == offset) {
      region.populated.back().bytes += bytes;
      continue;
    }
    try {
      region.populated.push_back({offset, bytes});
    } catch (...) {
      break;  // no memory for the list: what is told later is more, never wrong. A region's end must be told in any case
    }
  }
  return region;
}

RegionBook::Page* RegionBook::find(uint64_t id) {
  const auto found = std::find_if(pages_.begin(), pages_.end(), [id](const Page& page) { return page.id == id; });
  return found == pages_.end() ? nullptr : &*found;
}

// Under telling_.
void RegionBook::tell(RegionChange change, const Region& region) {
  const std::shared_ptr<RegionWatcher> watcher = watcher_;  // it may be replaced from within
  if (watcher == nullptr) return;
  try {
    (*watcher)(change, region);
  } catch (...) {  // the watcher's, and documented: none of the threads that call it could do anything with it
  }
}

uint64_t RegionBook::add(const NodeMemory& memory) {
  const std::lock_guard telling(telling_);
  Region region;
  {
    const std::lock_guard lock(mutex_);
    Page page{.id = next_id_++, .memory = &memory, .told = true};
    region = describe(page);
    page.told_bytes = populated_bytes(region);
    pages_.push_back(page);
  }
  tell(RegionChange::kAdded, region);
  return region.id;
}

bool RegionBook::refresh(uint64_t id) {
  const std::lock_guard telling(telling_);
  Region region;
  uint64_t now = 0;
  {
    const std::lock_guard lock(mutex_);
    Page* page = find(id);
    if (page == nullptr) return true;
    region = describe(*page);
    now = populated_bytes(region);
    if (!page->told || now == page->told_bytes) return now == region.bytes;
    page->told_bytes = now;
  }
  tell(RegionChange::kPopulated, region);
  return now == region.bytes;
}

void RegionBook::retire(uint64_t id) {
  const std::lock_guard telling(telling_);
  Region region;
  {
    const std::lock_guard lock(mutex_);
    Page* page = find(id);
    if (page == nullptr) return;
    page->retired = true;
    if (!page->told || std::exchange(page->told_retired, true)) return;
    region = describe(*page);
  }
  tell(RegionChange::kRetired, region);
}

void RegionBook::remove(uint64_t id) {
  retire(id);
  const std::lock_guard telling(telling_);
  Region region;
  bool told = false;
  {
    const std::lock_guard lock(mutex_);
    Page* page = find(id);
    if (page == nullptr) return;
    region = describe(*page);
    told = page->told;
    pages_.erase(pages_.begin() + (page - pages_.data()));
  }
  if (told) tell(RegionChange::kGone, region);
}

std::vector<Region> RegionBook::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<Region> regions;
  regions.reserve(pages_.size());
  for (const Page& page : pages_) regions.push_back(describe(page));
  return regions;
}

// The watcher may let go of the last object of a region, of the one that it hears of or of another: each is looked up anew.
void RegionBook::watch(RegionWatcher watcher) {
  const std::lock_guard telling(telling_);
  watcher_ = watcher ? std::make_shared<RegionWatcher>(std::move(watcher)) : nullptr;
  std::vector<uint64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    for (Page& page : pages_) {
      page.told = page.told_retired = false;
      ids.push_back(page.id);
    }
  }
  for (const uint64_t id : ids) {
    Region region;
    bool retired = false;
    {
      const std::lock_guard lock(mutex_);
      Page* page = find(id);
      if (page == nullptr || page->told) continue;  // gone by now, or told by a watch() from within
      region = describe(*page);
      retired = std::exchange(region.retired, false);
      page->told = true;
      page->told_bytes = populated_bytes(region);
    }
    tell(RegionChange::kAdded, region);
    if (retired) retire(id);
  }
}

}  // namespace kvist::client

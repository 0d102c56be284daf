// python/module/views.h: reading in place: kvist.Prefix, kvist.Pinned and the blocks in them.
//
// Pins are held by a Held, through shared pointers: the object that the call returned has one, and so has every view of a
// block that somebody made (a memoryview, an array or a tensor over it). The pins end with the last of them, whichever
// that is: leaving a `with` block, or close(), only gives up the object's own. Views are dropped in any thread, without the
// GIL; so nothing of Python is touched then.
#pragma once

#include "client.h"

namespace kvist::python {

struct Held {
  Held(std::shared_ptr<Ledger> of, Prefix&& from) : ledger(std::move(of)), prefix(std::move(from)) {
    note(prefix.blocks().size());
  }
  Held(std::shared_ptr<Ledger> of, Pinned&& from) : ledger(std::move(of)), pinned(std::move(from)) { note(pinned.hits()); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { ledger->pinned_blocks.fetch_sub(blocks, std::memory_order_relaxed); }

  void note(size_t count) {
    blocks = count;
    ledger->pinned_blocks.fetch_add(count, std::memory_order_relaxed);
  }

  const std::shared_ptr<Ledger> ledger;
  Prefix prefix;
  Pinned pinned;
  size_t blocks = 0;
};

PyObject* make_prefix(State* state, const Shared& shared, Prefix prefix);
PyObject* make_pinned(State* state, const Shared& shared, Pinned pinned);

}  // namespace kvist::python

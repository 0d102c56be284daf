// python/module/client.h: what a kvist.Client and its Spaces share, and when it ends.
//
// A Client object, its Spaces and the calls that run hold one Shared; `live` in it is the connection. close() lets go of
// `live`, so that later calls fail with a clear error, and the connection ends when the last call that was under way in
// another thread has returned. What is read in place is not part of it: pins outlive the client (kvist::Prefix may), and
// the Ledger, which everything holds, counts them, so that close() can say what is left.
//
// Threads: under the GIL, but for the Ledger, whose counters change in whatever thread drops a tensor.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include "kvist/client.h"
#include "module.h"

namespace kvist::python {

// What is still out: memory of the pool that somebody can look at.
struct Ledger {
  std::atomic<uint64_t> pinned_blocks{0};  // kept from eviction by prefixes, pins, and views of them
  std::atomic<uint64_t> rooms{0};          // reserved and not committed
};

struct Live {
  Live() = default;
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;
  ~Live();  // ends the connection (without the GIL), then lets go of what submitted calls used

  Client client;
  std::list<Space> spaces;
  std::unordered_map<uint64_t, Ref> submitted;     // by ticket: keeps buffers and results until they are final
  std::unordered_map<uint64_t, Completion> early;  // finished before the submitting thread had noted its ticket
};

struct Shared {
  Ref keeps;                   // what a node that this process started ends with. Not a cycle: it refers to nothing
  std::shared_ptr<Live> live;  // null: closed
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  int process = 0;  // the one that made it
};

// The connection for the length of a call; null with an exception after close() and in a forked child.
std::shared_ptr<Live> use(State* state, const Shared& shared);

// Seconds as a number; None or not given: the default of 2 s. Not negative.
bool read_timeout(PyObject* value, Deadline* out);
bool read_timeout(PyObject* value, std::optional<Deadline>* out);  // nothing where none was given

// A Space object around `space`, whose identity was described by `identity` (a kvist.Identity).
PyObject* make_space(State* state, const std::shared_ptr<Shared>& shared, Space space, PyObject* identity);
const Space& space_in(PyObject* space);

}  // namespace kvist::python

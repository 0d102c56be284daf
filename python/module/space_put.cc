// The writing half of kvist.Space: put, submit_put, reserve.
#include <array>

#include "batch.h"
#include "buffers.h"
#include "results.h"
#include "space.h"
#include "submitted.h"

namespace kvist::python {

namespace {

// What put, submit_put and reserve share, after their own arguments.
#define KVIST_PUT_NAMES "part", "strict", "unchained", "session", "stop", "timeout"
constexpr size_t kPutArguments = 6;

bool read_put(const SpaceCall& call, std::span<PyObject*> values, PutOptions* options, Deadline* deadline) {
  return call.read_part(values[0], &options->part) && read_bool(values[1], &options->strict) &&
         read_bool(values[2], &options->unchained) && read_text(values[3], "session", &options->session) &&
         read_text(values[4], "stop", &options->stop) && read_timeout(values[5], deadline);
}

// Room for a length of each block: one for all, or a sequence.
bool read_lengths(const SpaceCall& call, PyObject* value, uint16_t part, std::vector<uint32_t>* out) {
  uint64_t length = call.parts()[part].block_bytes;
  if (!given(value)) {
    if (length == 0) {
      PyErr_SetString(PyExc_ValueError, "nbytes is needed: the identity does not say how long blocks of this part are");
      return false;
    }
    out->push_back(static_cast<uint32_t>(length));
    return true;
  }
  if (!PySequence_Check(value) || PyUnicode_Check(value)) {
    if (!read_size(value, "nbytes", &length)) return false;
    if (length > UINT32_MAX) {
      PyErr_SetString(PyExc_ValueError, "nbytes must be less than 4GiB");
      return false;
    }
    out->push_back(static_cast<uint32_t>(length));
    return true;
  }
  Ref list(PySequence_List(value));
  if (!list) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(list.get()); ++i) {
    if (!read_uint(PyList_GetItem(list.get(), i), "nbytes", UINT32_MAX, &length)) return false;
    out->push_back(static_cast<uint32_t>(length));
  }
  return true;
}

}  // namespace

PyObject* space_put(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"chain", "sources", KVIST_PUT_NAMES};
  std::array<PyObject*, 2 + kPutArguments> values;
  if (!sort_arguments({"put", kNames, 2, 2}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    Pieces<ConstRange> sources;
    PutOptions options;
    Deadline deadline;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) ||
        !read_put(call, std::span(values).subspan(2), &options, &deadline) ||
        !sources.read(call.state(), values[1], chain.size(), call.parts()[options.part].block_bytes)) {
      return nullptr;
    }
    Ref results(make_results(call.state(), chain.size()));
    if (!results) return nullptr;
    {
      const Unlocked unlocked;
      call.space().put(chain.chain(), sources.blocks(), codes_of(results.get()), options, deadline);
    }
    return call.check(codes_of(results.get())) ? results.release() : nullptr;
  });
}

PyObject* space_submit_put(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"chain", "sources", KVIST_PUT_NAMES};
  std::array<PyObject*, 2 + kPutArguments> values;
  if (!sort_arguments({"submit_put", kNames, 2, 2}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    Pieces<ConstRange> sources;
    PutOptions options;
    Deadline deadline;
    if (!call.begin(self)) return nullptr;
    Ref made(make_submitted(call.state()));
    if (!made) return nullptr;
    SubmittedValue& value = submitted_in(made.get());
    if (!value.chain.read(call.state(), values[0]) || !read_put(call, std::span(values).subspan(2), &options, &deadline) ||
        !sources.read(call.state(), values[1], value.chain.size(), call.parts()[options.part].block_bytes)) {
      return nullptr;
    }
    value.results.reset(make_results(call.state(), value.chain.size()));
    if (!value.results) return nullptr;
    call.live().submitted.reserve(call.live().submitted.size() + 1);
    StatusOr<uint64_t> ticket = unavailable("not tried");
    {
      const Unlocked unlocked;
      ticket =
          call.space().submit_put(value.chain.chain(), sources.blocks(), codes_of(value.results.get()), options, deadline);
    }
    if (!ticket.ok()) return raise(call.state(), ticket.status());
    note_submitted(call.live(), made.get(), *ticket);
    return made.release();
  });
}

PyObject* space_reserve(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"chain", "nbytes", KVIST_PUT_NAMES};
  std::array<PyObject*, 2 + kPutArguments> values;
  if (!sort_arguments({"reserve", kNames, 2, 1}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    PutOptions options;
    Deadline deadline;
    std::vector<uint32_t> lengths;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) ||
        !read_put(call, std::span(values).subspan(2), &options, &deadline) ||
        !read_lengths(call, values[1], options.part, &lengths)) {
      return nullptr;
    }
    StatusOr<Batch> batch = unavailable("not tried");
    {
      const Unlocked unlocked;
      batch = call.space().reserve(chain.chain(), lengths, options, deadline);
    }
    if (!batch.ok()) return raise(call.state(), batch.status());
    return make_batch(call.state(), *value_of_space(self).shared, *std::move(batch));
  });
}

#define KVIST_PUT_OPTIONS                                                                                                \
  "part: index or name. strict: refuse blocks whose parent is not in the pool (FAILED_PRECONDITION) instead of "         \
  "remembering\n"                                                                                                        \
  "it as absent. unchained: the positions are independent of each other. session, stop: the conversation, and why the\n" \
  "engine stopped, at most 255 bytes each. timeout in seconds."

const char* const kPutDocs =
    "put($self, chain, sources, *, part=0, strict=False, unchained=False, session=None, stop=None, timeout=2.0)\n--\n\n"
    "Stores block i from the i-th source, unless it is there, and returns Results: OK, ALREADY_EXISTS, RESOURCE_EXHAUSTED\n"
    "(the pool is full of pinned blocks, after waiting for room), DEADLINE_EXCEEDED, ... The sources may be used again when "
    "it\n"
    "returns.\n\n"
    "sources: one buffer of all, n * block_bytes long (or an array whose n rows are each contiguous); or a sequence of n\n"
    "buffers; or for each block a sequence of pieces; or Pages(...)[ids]. Any dtype.\n" KVIST_PUT_OPTIONS;
const char* const kSubmitPutDocs =
    "submit_put($self, chain, sources, *, part=0, strict=False, unchained=False, session=None, stop=None, "
    "timeout=2.0)\n--\n\n"
    "put() that returns with a Submitted once the sources are copied. ResourceExhausted: 64 are under "
    "way.\n" KVIST_PUT_OPTIONS;
const char* const kReserveDocs =
    "reserve($self, chain, nbytes=None, *, part=0, strict=False, unchained=False, session=None, stop=None, "
    "timeout=2.0)\n--\n\n"
    "Room in the pool for the blocks that are absent: a Batch. nbytes: length of a block, or of each; None: what the "
    "identity\n"
    "says.\n" KVIST_PUT_OPTIONS;

}  // namespace kvist::python

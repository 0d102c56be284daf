// python/module/space.h: kvist.Space, split over space.cc (names, reading, the rest) and space_put.cc (writing).
#pragma once

#include <string>
#include <vector>

#include "client.h"
#include "digests.h"

namespace kvist::python {

struct SpaceValue {
  SpaceValue(std::shared_ptr<Shared> of, std::list<Space>::iterator at, PyObject* described)
      : shared(std::move(of)), where(at), identity(Ref::borrowed(described)) {}
  SpaceValue(const SpaceValue&) = delete;
  SpaceValue& operator=(const SpaceValue&) = delete;
  ~SpaceValue() {
    if (shared->live != nullptr) shared->live->spaces.erase(where);
  }

  const std::shared_ptr<Shared> shared;
  const std::list<Space>::iterator where;  // in shared->live, as long as that is
  const Ref identity;                      // the kvist.Identity
};

inline SpaceValue& value_of_space(PyObject* self) { return Object<SpaceValue>::of(self); }

// The space and its connection for the length of a call.
class SpaceCall {
 public:
  // False with an exception: closed, forked.
  bool begin(PyObject* self) {
    state_ = state_of_object(self);
    live_ = use(state_, *value_of_space(self).shared);
    if (live_ != nullptr) space_ = &*value_of_space(self).where;
    return live_ != nullptr;
  }
  State* state() const { return state_; }
  Live& live() const { return *live_; }
  const Space& space() const { return *space_; }
  const std::vector<Part>& parts() const { return space_->identity().parts; }

  // A part by index or name; not given: 0.
  bool read_part(PyObject* value, uint16_t* out) const;

  // A call all of whose blocks failed for one reason that has nothing to do with them (the namespace was flushed, there is
  // no node) ends with an exception. Everything else is told block by block: true.
  bool check(std::span<const StatusCode> codes) const;

 private:
  State* state_ = nullptr;
  std::shared_ptr<Live> live_;
  const Space* space_ = nullptr;
};

// space_put.cc
PyObject* space_put(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords);
PyObject* space_submit_put(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords);
PyObject* space_reserve(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords);
extern const char* const kPutDocs;
extern const char* const kSubmitPutDocs;
extern const char* const kReserveDocs;

}  // namespace kvist::python

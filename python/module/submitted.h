// python/module/submitted.h: kvist.Submitted, a put or get that was begun and comes out of Client.poll() when it is done.
//
// The library writes results (and a get its destinations) until then, so what it was given is held by the Live, under its
// ticket, whatever becomes of the object that the caller got.
#pragma once

#include "buffers.h"
#include "client.h"
#include "digests.h"

namespace kvist::python {

struct SubmittedValue {
  ChainArgument chain;
  Pieces<Range> destinations;
  Ref results;
  uint64_t ticket = 0;
  bool done = false;
};

PyObject* make_submitted(State* state);
SubmittedValue& submitted_in(PyObject* object);

// Notes that the call was accepted under `ticket`.
void note_submitted(Live& live, PyObject* call, uint64_t ticket);
// The call that finished; nothing when its submitting thread has not noted it yet (it will be handed out later).
Ref finish_submitted(Live& live, const Completion& completion);

}  // namespace kvist::python

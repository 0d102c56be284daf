#include "submitted.h"

namespace kvist::python {

SubmittedValue& submitted_in(PyObject* object) { return Object<SubmittedValue>::of(object); }

PyObject* make_submitted(State* state) { return make<SubmittedValue>(state->submitted); }

void note_submitted(Live& live, PyObject* call, uint64_t ticket) {
  SubmittedValue& value = submitted_in(call);
  value.ticket = ticket;
  if (live.early.erase(ticket) > 0) {
    value.done = true;
    return;
  }
  try {
    live.submitted.emplace(ticket, Ref::borrowed(call));
  } catch (...) {
    // The library may be writing into the call's buffers, and nobody will hear when it has finished: they stay for ever.
    Py_INCREF(call);
    throw;
  }
}

Ref finish_submitted(Live& live, const Completion& completion) {
  const auto found = live.submitted.find(completion.ticket);
  if (found == live.submitted.end()) {
    live.early.emplace(completion.ticket, completion);
    return Ref();
  }
  Ref call = std::move(found->second);
  live.submitted.erase(found);
  submitted_in(call.get()).done = true;
  return call;
}

namespace {

PyObject* results(PyObject* self, void*) { return Py_NewRef(submitted_in(self).results.get()); }
PyObject* done(PyObject* self, void*) { return PyBool_FromLong(submitted_in(self).done); }

constexpr const char* kDocs =
    "A put or get under way, from Space.submit_put() or submit_get(). When it is `done`, `results` are final; it comes out "
    "of\n"
    "Client.poll() once, unless it was done already when the submitting call returned. kvist.aio does this for asyncio.";

}  // namespace

bool add_submitted(PyObject* module, State* state) {
  static PyGetSetDef kProperties[] = {
      {"results", results, nullptr, "Results, final once `done`; CANCELLED: the client was closed before.", nullptr},
      {"done", done, nullptr, "Whether the call has finished.", nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kDocs)},
                                 {Py_tp_dealloc, slot(Object<SubmittedValue>::dealloc)},
                                 {Py_tp_getset, kProperties},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Submitted", sizeof(Object<SubmittedValue>), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};
  return add_type(module, &kSpec, &state->submitted);
}

}  // namespace kvist::python

// python/module/module.h: what one import of the extension keeps: its types, and the Python classes that it hands out.
//
// The state belongs to the module object, not to the process: there are no globals, so that each interpreter has its own.
// Every object of ours finds it through its type.
//
// Threads: needs the GIL.
#pragma once

#include <array>

#include "kvist/status.h"
#include "py.h"

namespace kvist::python {

inline constexpr size_t kStatusCodes = 17;

struct State {
  // Made by this module.
  PyTypeObject* client = nullptr;
  PyTypeObject* space = nullptr;
  PyTypeObject* digests = nullptr;
  PyTypeObject* results = nullptr;
  PyTypeObject* prefix = nullptr;
  PyTypeObject* pinned = nullptr;
  PyTypeObject* blocks = nullptr;
  PyTypeObject* block = nullptr;
  PyTypeObject* batch = nullptr;
  PyTypeObject* room = nullptr;
  PyTypeObject* pages = nullptr;
  PyTypeObject* selection = nullptr;
  PyTypeObject* submitted = nullptr;
  PyTypeObject* addresses = nullptr;
  PyTypeObject* handle = nullptr;
  // Taken from kvist/_types.py.
  std::array<PyObject*, kStatusCodes> codes{};   // kvist.Code by number
  std::array<PyObject*, kStatusCodes> errors{};  // the exception of each code
  PyObject* forked = nullptr;                    // kvist.Forked
  PyObject* pins_left = nullptr;                 // kvist.PinsLeftWarning
  PyObject* run = nullptr;                       // kvist.Run
  PyObject* stats = nullptr;                     // kvist.Stats
  PyObject* listing = nullptr;                   // kvist.Listing
};

State* state_of(PyObject* module);
// Of an object whose type this module made.
inline State* state_of_object(PyObject* self) { return static_cast<State*>(PyType_GetModuleState(Py_TYPE(self))); }

// Raises the exception of the status' code, with its message. Returns null, so that callers can return it.
PyObject* raise(State* state, const Status& status);
PyObject* raise_forked(State* state);
// kvist.Code of a result; UNKNOWN for a number that is none. A new reference.
PyObject* code_object(State* state, StatusCode code);

// Each file of a type adds it to the module, and to the state.
bool add_type(PyObject* module, PyType_Spec* spec, PyTypeObject** out);
bool add_client(PyObject* module, State* state);
bool add_space(PyObject* module, State* state);
bool add_digests(PyObject* module, State* state);
bool add_results(PyObject* module, State* state);
bool add_views(PyObject* module, State* state);
bool add_batch(PyObject* module, State* state);
bool add_pages(PyObject* module, State* state);
bool add_submitted(PyObject* module, State* state);
bool add_addresses(PyObject* module, State* state);
bool add_handle(PyObject* module, State* state);
bool add_identity(PyObject* module);
bool add_spawn(PyObject* module);

}  // namespace kvist::python

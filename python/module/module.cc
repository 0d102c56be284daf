#include "module.h"

#include <unistd.h>

namespace kvist::python {

State* state_of(PyObject* module) { return static_cast<State*>(PyModule_GetState(module)); }

PyObject* raise(State* state, const Status& status) {
  const auto number = static_cast<size_t>(status.code());
  PyObject* type = number < kStatusCodes ? state->errors[number] : nullptr;
  if (type == nullptr) type = state->errors[static_cast<size_t>(StatusCode::kUnknown)];
  Ref code(code_object(state, status.code()));
  const std::string_view message = status.message();
  Ref text(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  if (!code || !text) return nullptr;
  Ref error(PyObject_CallFunctionObjArgs(type, text.get(), code.get(), nullptr));
  if (error) PyErr_SetObject(type, error.get());
  return nullptr;
}

PyObject* raise_forked(State* state) {
  Ref error(PyObject_CallFunction(
      state->forked, "s",
      "this process is a fork of the one that made the client, and the pool is not mapped here: connect again in it"));
  if (error) PyErr_SetObject(state->forked, error.get());
  return nullptr;
}

PyObject* code_object(State* state, StatusCode code) {
  const auto number = static_cast<size_t>(code);
  return Py_NewRef(state->codes[number < kStatusCodes ? number : static_cast<size_t>(StatusCode::kUnknown)]);
}

bool add_type(PyObject* module, PyType_Spec* spec, PyTypeObject** out) {
  Ref type(PyType_FromModuleAndSpec(module, spec, nullptr));
  if (!type) return false;
  *out = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  return PyModule_AddType(module, *out) == 0;
}

namespace {

bool take_classes(State* state) {
  Ref types(PyImport_ImportModule("kvist._types"));
  if (!types) return false;
  const auto take = [&](const char* name, PyObject** out) {
    *out = PyObject_GetAttrString(types.get(), name);
    return *out != nullptr;
  };
  if (!take("Forked", &state->forked) || !take("PinsLeftWarning", &state->pins_left) || !take("Run", &state->run) ||
      !take("Stats", &state->stats) || !take("Listing", &state->listing)) {
    return false;
  }
  Ref code_class(PyObject_GetAttrString(types.get(), "Code"));
  Ref error_of(PyObject_GetAttrString(types.get(), "error_class"));
  if (!code_class || !error_of) return false;
  for (size_t number = 0; number < kStatusCodes; ++number) {
    state->codes[number] = PyObject_CallFunction(code_class.get(), "n", static_cast<Py_ssize_t>(number));
    if (state->codes[number] == nullptr) return false;
    state->errors[number] = PyObject_CallFunctionObjArgs(error_of.get(), state->codes[number], nullptr);
    if (state->errors[number] == nullptr) return false;
  }
  return true;
}

int execute(PyObject* module) {
  State* state = state_of(module);
  const bool added = take_classes(state) && add_digests(module, state) && add_results(module, state) &&
                     add_views(module, state) && add_batch(module, state) && add_pages(module, state) &&
                     add_submitted(module, state) && add_addresses(module, state) && add_handle(module, state) &&
                     add_space(module, state) && add_client(module, state) && add_identity(module) && add_spawn(module) &&
                     PyModule_AddStringConstant(module, "version", KVIST_VERSION) == 0;
  return added ? 0 : -1;
}

// The objects that the module refers to: types and classes can refer back to it.
template <typename Visit>
int each(State* state, Visit&& visit) {
  for (PyTypeObject** type : {&state->client, &state->space, &state->digests, &state->results, &state->prefix,
                              &state->pinned, &state->blocks, &state->block, &state->batch, &state->room, &state->pages,
                              &state->selection, &state->submitted, &state->addresses, &state->handle}) {
    if (const int stop = visit(reinterpret_cast<PyObject**>(type)); stop != 0) return stop;
  }
  for (PyObject** object : {&state->forked, &state->pins_left, &state->run, &state->stats, &state->listing}) {
    if (const int stop = visit(object); stop != 0) return stop;
  }
  for (size_t number = 0; number < kStatusCodes; ++number) {
    if (const int stop = visit(&state->codes[number]); stop != 0) return stop;
    if (const int stop = visit(&state->errors[number]); stop != 0) return stop;
  }
  return 0;
}

int traverse(PyObject* module, visitproc visit, void* arg) {
  State* state = state_of(module);
  return state == nullptr ? 0 : each(state, [&](PyObject** object) { return *object ? visit(*object, arg) : 0; });
}

int clear(PyObject* module) {
  State* state = state_of(module);
  if (state == nullptr) return 0;
  return each(state, [](PyObject** object) {
    PyObject* old = std::exchange(*object, nullptr);
    Py_XDECREF(old);
    return 0;
  });
}

void release(void* module) { clear(static_cast<PyObject*>(module)); }

PyModuleDef_Slot kSlots[] = {{Py_mod_exec, slot(execute)}, {0, nullptr}};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT,
    "kvist._kvist",
    "The part of kvist that is C++: import kvist instead.",
    sizeof(State),
    nullptr,
    kSlots,
    traverse,
    clear,
    release,
};

}  // namespace
}  // namespace kvist::python

PyMODINIT_FUNC PyInit__kvist() { return PyModuleDef_Init(&kvist::python::kModule); }

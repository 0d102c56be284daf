// python/module/py.h: the few helpers that keep CPython's C interface honest: owned references, the lock given up for a
// while, C++ values inside Python objects, and arguments by position or name.
//
//   Ref list(PyList_New(0));                     // released when it goes
//   { Unlocked unlocked; space.put(...); }       // other Python threads run meanwhile
//   return make<Held>(state.prefix_type, ...);   // a Python object around a C++ value
//
// All of the extension is written against the limited API of Python 3.11, so that one build serves that version and every
// later one. A function that fails has set Python's error indicator and returns null (or false, or -1). No C++ exception
// leaves the module: what can throw (memory) is caught by `guarded`.
//
// Threads: everything here needs the GIL, except inside an Unlocked.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if !defined(Py_LIMITED_API)
#error "compile the module with Py_LIMITED_API=0x030B0000"
#endif

namespace kvist::python {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* object) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    if (this != &other) reset(std::exchange(other.object_, nullptr));
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref borrowed(PyObject* object) { return Ref(Py_XNewRef(object)); }

  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  void reset(PyObject* object = nullptr) {
    PyObject* old = std::exchange(object_, object);
    Py_XDECREF(old);
  }

 private:
  PyObject* object_ = nullptr;
};

// Gives the GIL up for as long as it lives. Nothing of Python may be touched meanwhile, buffers held before may be.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  // A daemon thread that comes back after the interpreter has begun to end is ended by CPython (before 3.14) with
  // pthread_exit, which unwinds. It must not run destructors that need the GIL: it waits for the process' end instead.
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      while (true) ::pause();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// A Python object that is a C++ value. None of these types takes part in cyclic garbage collection: they refer to plain
// memory and to objects that cannot refer back.
template <typename T>
struct Object {
  PyObject_HEAD T value;

  static T& of(PyObject* self) { return reinterpret_cast<Object*>(self)->value; }
  static void dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    of(self).~T();
    PyObject_Free(self);
    Py_DECREF(type);
  }
};

template <typename T, typename... Arguments>
PyObject* make(PyTypeObject* type, Arguments&&... arguments) {
  auto* self = PyObject_New(Object<T>, type);
  if (self == nullptr) return nullptr;
  new (&self->value) T(std::forward<Arguments>(arguments)...);
  return reinterpret_cast<PyObject*>(self);
}

// Runs `body`; a lack of memory becomes MemoryError and `failure`.
template <typename Body, typename Failure>
auto guarded(Body&& body, Failure failure) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return failure;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return failure;
  }
}

template <typename Body>
PyObject* guarded(Body&& body) {
  return guarded(std::forward<Body>(body), static_cast<PyObject*>(nullptr));
}

// The arguments of a METH_FASTCALL | METH_KEYWORDS method, sorted into the places of `names`. The first `positional` may be
// given without a name; the first `required` must be given. What was not given is null.
struct Signature {
  const char* function;
  std::span<const char* const> names;
  size_t positional;
  size_t required;
};
bool sort_arguments(const Signature& signature, PyObject* const* given, Py_ssize_t count, PyObject* keywords,
                    std::span<PyObject*> out);

using Method = PyObject* (*)(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords);

inline PyMethodDef method(const char* name, Method body, const char* documentation) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(body)), METH_FASTCALL | METH_KEYWORDS, documentation};
}
inline PyMethodDef plain_method(const char* name, PyCFunction body, const char* documentation) {
  return {name, body, METH_NOARGS, documentation};
}

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

// Whether `value` was given and is not None.
inline bool given(PyObject* value) { return value != nullptr && value != Py_None; }

// Readings of optional arguments: what was not given (or is None) leaves *out as it is.
bool read_bool(PyObject* value, bool* out);
bool read_uint(PyObject* value, const char* name, uint64_t most, uint64_t* out);
// str as UTF-8, or bytes; valid as long as the object.
bool read_text(PyObject* value, const char* name, std::string_view* out);
// "4GiB", "512 MiB", or a number of bytes.
bool read_size(PyObject* value, const char* name, uint64_t* out);

}  // namespace kvist::python

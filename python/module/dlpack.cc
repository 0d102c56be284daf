#include "dlpack.h"

#include <array>

namespace kvist::python {

namespace {

template <typename Managed>
struct Export {
  Managed managed{};
  int64_t shape = 0;
  int64_t stride = 1;
  std::shared_ptr<void> owner;
};

// Runs in whatever thread drops the last tensor: touches nothing of Python.
template <typename Managed>
void finish_export(Managed* managed) {
  delete static_cast<Export<Managed>*>(managed->context);
}

// A capsule that nobody took. One that was taken has another name.
template <typename Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
}
void drop_plain(PyObject* capsule) { drop_capsule<DLManagedTensor>(capsule, kDLName); }
void drop_versioned(PyObject* capsule) { drop_capsule<DLManagedTensorVersioned>(capsule, kDLVersionedName); }

template <typename Managed>
PyObject* make_capsule(std::unique_ptr<Export<Managed>> made, void* data, size_t size, const char* name,
                       PyCapsule_Destructor drop) {
  made->shape = static_cast<int64_t>(size);
  made->managed.context = made.get();
  made->managed.deleter = finish_export<Managed>;
  made->managed.tensor = {data, {kDLCpu, 0}, 1, {kDLUint, 8, 1}, &made->shape, &made->stride, 0};
  PyObject* capsule = PyCapsule_New(&made->managed, name, drop);
  if (capsule != nullptr) (void)made.release();
  return capsule;
}

// Whether the pair (major, minor) or None allows the form with a version.
bool read_version(PyObject* value, bool* versioned) {
  *versioned = false;
  if (!given(value)) return true;
  Ref major(PySequence_GetItem(value, 0));
  if (!major) return false;
  const long number = PyLong_AsLong(major.get());
  if (number == -1 && PyErr_Occurred() != nullptr) return false;
  *versioned = number >= static_cast<long>(kDLMajor);
  return true;
}

bool check_device(PyObject* value) {
  if (!given(value)) return true;
  Ref type(PySequence_GetItem(value, 0));
  if (!type) return false;
  const long number = PyLong_AsLong(type.get());
  if (number == -1 && PyErr_Occurred() != nullptr) return false;
  if (number == kDLCpu) return true;
  PyErr_Format(PyExc_BufferError, "a block lies in host memory; it cannot be shown on DLPack device type %ld without a copy",
               number);
  return false;
}

}  // namespace

PyObject* export_tensor(std::shared_ptr<void> owner, void* data, size_t size, bool read_only, PyObject* const* given_values,
                        Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"stream", "max_version", "dl_device", "copy"};
  std::array<PyObject*, 4> values;
  if (!sort_arguments({"__dlpack__", kNames, 0, 0}, given_values, count, keywords, values)) return nullptr;
  bool versioned = false, copy = false;
  if (!read_version(values[1], &versioned) || !check_device(values[2]) || !read_bool(values[3], &copy)) return nullptr;
  if (copy) {
    PyErr_SetString(PyExc_BufferError, "a block shows the pool's own bytes; for a copy use Space.get() or copy the tensor");
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    if (versioned) {
      auto made = std::make_unique<Export<DLManagedTensorVersioned>>();
      made->owner = std::move(owner);
      made->managed.version = {kDLMajor, 0};
      made->managed.flags = read_only ? kDLReadOnly : 0;
      return make_capsule(std::move(made), data, size, kDLVersionedName, drop_versioned);
    }
    // This form cannot say that the memory is for reading only: a store through it is a crash, as the guide says.
    auto made = std::make_unique<Export<DLManagedTensor>>();
    made->owner = std::move(owner);
    return make_capsule(std::move(made), data, size, kDLName, drop_plain);
  });
}

PyObject* cpu_device() { return Py_BuildValue("(ii)", static_cast<int>(kDLCpu), 0); }

bool import_tensor(PyObject* object, Imported* out) {
  Ref export_method(PyObject_GetAttrString(object, "__dlpack__"));
  if (!export_method) return false;
  Ref nothing(PyTuple_New(0));
  Ref version(Py_BuildValue("{s(ii)}", "max_version", static_cast<int>(kDLMajor), 0));
  if (!nothing || !version) return false;
  out->capsule.reset(PyObject_Call(export_method.get(), nothing.get(), version.get()));
  if (!out->capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {  // a producer older than max_version
    PyErr_Clear();
    out->capsule.reset(PyObject_CallNoArgs(export_method.get()));
  }
  if (!out->capsule) return false;
  if (PyCapsule_IsValid(out->capsule.get(), kDLVersionedName)) {
    auto* managed = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(out->capsule.get(), kDLVersionedName));
    if (managed->version.major != kDLMajor) {
      PyErr_Format(PyExc_BufferError, "DLPack %u is not known to this version of kvist", managed->version.major);
      return false;
    }
    out->tensor = &managed->tensor;
    out->read_only = (managed->flags & kDLReadOnly) != 0;
  } else {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(out->capsule.get(), kDLName));
    if (managed == nullptr) return false;
    out->tensor = &managed->tensor;
  }
  const int32_t device = out->tensor->device.type;
  if (device == kDLCpu || device == kDLCudaHost || device == kDLRocmHost) return true;
  PyErr_Format(PyExc_BufferError,
               "the tensor lies on DLPack device type %d, which the host cannot read: copy it to (pinned) host memory first",
               static_cast<int>(device));
  return false;
}

}  // namespace kvist::python

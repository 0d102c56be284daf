// python/module/dlpack.h: the structures by which array libraries hand each other memory without a copy (DLPack 1.0, and
// the older form without a version), as far as Kvist needs them: flat bytes in host memory.
//
// A producer puts a managed tensor into a capsule. A consumer that keeps the tensor renames the capsule and calls `deleter`
// when it is done, in any thread, with or without the GIL; one that only looks leaves the name, and the capsule's end calls
// the deleter. The layouts are an ABI that array libraries share: never change them.
#pragma once

#include <cstdint>
#include <memory>

#include "py.h"

namespace kvist::python {

struct DLDevice {
  int32_t type;
  int32_t id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;    // elements
  int64_t* strides;  // elements; null: row by row
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  struct {
    uint32_t major, minor;
  } version;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64 && sizeof(DLManagedTensorVersioned) == 80);

inline constexpr int32_t kDLCpu = 1, kDLCudaHost = 3, kDLRocmHost = 11;  // memory that a host can read
inline constexpr uint8_t kDLUint = 1;
inline constexpr uint64_t kDLReadOnly = 1;
inline constexpr uint32_t kDLMajor = 1;
inline constexpr const char* kDLName = "dltensor";
inline constexpr const char* kDLVersionedName = "dltensor_versioned";

// A capsule over `size` bytes at `data` as a one-dimensional uint8 tensor, which keeps `owner` until the consumer is done
// with it. `arguments` are those that the consumer gave to __dlpack__ (stream, max_version, dl_device, copy).
PyObject* export_tensor(std::shared_ptr<void> owner, void* data, size_t size, bool read_only, PyObject* const* given,
                        Py_ssize_t count, PyObject* keywords);
PyObject* cpu_device();

// The tensor in an object's __dlpack__ capsule. `capsule` keeps it.
struct Imported {
  Ref capsule;
  const DLTensor* tensor = nullptr;
  bool read_only = false;
};
// False with an exception: no such method (TypeError), a device that a host cannot read (BufferError).
bool import_tensor(PyObject* object, Imported* out);

}  // namespace kvist::python

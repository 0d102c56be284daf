// python/module/results.h: kvist.Results, what became of each block of a call: one byte a block, no objects.
#pragma once

#include "kvist/client.h"
#include "module.h"

namespace kvist::python {

// A Results for `size` blocks, each CANCELLED until the call says otherwise. with_sizes adds room for the blocks' lengths.
// Null with an exception when there is no memory.
PyObject* make_results(State* state, size_t size, bool with_sizes = false);
std::span<StatusCode> codes_of(PyObject* results);
std::span<uint32_t> sizes_of(PyObject* results);  // empty where they were not asked for

}  // namespace kvist::python

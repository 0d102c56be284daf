// python/module/identity.h: from a kvist.Identity (a dataclass, kvist/_identity.py) to the library's.
#pragma once

#include "kvist/identity.h"
#include "module.h"

namespace kvist::python {

// False with an exception that names the field.
bool read_identity(PyObject* object, Identity* out);

}  // namespace kvist::python

#include "identity.h"

#include <string>

namespace kvist::python {

namespace {

bool read_field(PyObject* object, const char* name, std::string* out) {
  Ref value(PyObject_GetAttrString(object, name));
  std::string_view text;
  if (!value || !read_text(value.get(), name, &text)) return false;
  *out = text;
  return true;
}

bool read_number(PyObject* object, const char* name, uint32_t* out) {
  Ref value(PyObject_GetAttrString(object, name));
  uint64_t number = 0;
  if (!value || !read_uint(value.get(), name, UINT32_MAX, &number)) return false;
  *out = static_cast<uint32_t>(number);
  return true;
}

bool read_bytes(PyObject* object, const char* name, uint32_t* out) {
  Ref value(PyObject_GetAttrString(object, name));
  uint64_t number = 0;
  if (!value || !read_size(value.get(), name, &number)) return false;
  if (number > UINT32_MAX) {
    PyErr_Format(PyExc_ValueError, "%s must be less than 4GiB", name);
    return false;
  }
  *out = static_cast<uint32_t>(number);
  return true;
}

// The index of the field's text in `words`.
template <typename Enum>
bool read_word(PyObject* object, const char* name, std::span<const char* const> words, Enum* out) {
  std::string text;
  if (!read_field(object, name, &text)) return false;
  for (size_t i = 0; i < words.size(); ++i) {
    if (text == words[i]) {
      *out = static_cast<Enum>(i);
      return true;
    }
  }
  std::string list;
  for (const char* word : words) list += list.empty() ? word : std::string(", ") + word;
  PyErr_Format(PyExc_ValueError, "%s must be one of %s, not '%s'", name, list.c_str(), text.c_str());
  return false;
}

bool read_part(PyObject* object, Part* out) {
  static constexpr const char* kNeeds[] = {"all", "window", "last"};
  return read_field(object, "name", &out->name) && read_bytes(object, "block_bytes", &out->block_bytes) &&
         read_word(object, "need", kNeeds, &out->need) && read_number(object, "window", &out->window);
}

bool read_parts(PyObject* object, std::vector<Part>* out) {
  Ref parts(PyObject_GetAttrString(object, "parts"));
  if (!parts) return false;
  const Py_ssize_t count = PySequence_Size(parts.get());
  if (count < 0) return false;
  out->clear();
  for (Py_ssize_t i = 0; i < count; ++i) {
    Ref part(PySequence_GetItem(parts.get(), i));
    if (!part || !read_part(part.get(), &out->emplace_back())) return false;
  }
  return true;
}

bool read_extra(PyObject* object, std::map<std::string, std::string>* out) {
  Ref extra(PyObject_GetAttrString(object, "extra"));
  Ref items(extra ? PyMapping_Items(extra.get()) : nullptr);
  if (!items) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(items.get()); ++i) {
    PyObject* pair = PyList_GetItem(items.get(), i);
    std::string_view name, value;
    if (!read_text(PyTuple_GetItem(pair, 0), "a name in extra", &name) ||
        !read_text(PyTuple_GetItem(pair, 1), "a value in extra", &value)) {
      return false;
    }
    (*out)[std::string(name)] = value;
  }
  return true;
}

// None if the library takes `identity`; an error whose text begins with `unsaid` loses that.
PyObject* checked(PyObject* module, const Identity& identity, std::string_view unsaid) {
  const StatusOr<std::string> record = encode_identity(identity);
  if (record.ok()) return Py_NewRef(Py_None);
  std::string_view message = record.status().message();
  if (message.starts_with(unsaid)) message.remove_prefix(unsaid.size());
  return raise(state_of(module), Status(record.status().code(), std::string(message)));
}

PyObject* check_identity(PyObject* module, PyObject* object) {
  return guarded([&]() -> PyObject* {
    Identity identity;
    return read_identity(object, &identity) ? checked(module, identity, "") : nullptr;
  });
}

PyObject* check_part(PyObject* module, PyObject* object) {
  return guarded([&]() -> PyObject* {
    Identity with;  // the library checks parts as those of an identity
    with.model = "any";
    with.parts.resize(1);
    return read_part(object, &with.parts[0]) ? checked(module, with, "parts[0].") : nullptr;
  });
}

}  // namespace

bool add_identity(PyObject* module) {
  static PyMethodDef kMethods[] = {
      {"check_identity", check_identity, METH_O,
       "check_identity(identity, /)\n--\n\nRaises what is wrong with a kvist.Identity, but for its alias: open() tells "
       "that."},
      {"check_part", check_part, METH_O, "check_part(part, /)\n--\n\nRaises what is wrong with a kvist.Part."},
      {}};
  return PyModule_AddFunctions(module, kMethods) == 0;
}

bool read_identity(PyObject* object, Identity* out) {
  static constexpr const char* kKinds[] = {"chained", "opaque"};
  static constexpr const char* kForms[] = {"hashed", "block_hash"};
  struct {
    const char* name;
    std::string* field;
  } const texts[] = {{"alias", &out->alias},         {"model", &out->model},
                     {"revision", &out->revision},   {"weights_epoch", &out->weights_epoch},
                     {"kv_dtype", &out->kv_dtype},   {"quantization", &out->quantization},
                     {"layout", &out->layout},       {"hash_algorithm", &out->hash_algorithm},
                     {"hash_seed", &out->hash_seed}, {"tenant_secret", &out->tenant_secret}};
  for (const auto& text : texts) {
    if (!read_field(object, text.name, text.field)) return false;
  }
  return read_number(object, "block_tokens", &out->block_tokens) && read_word(object, "key_kind", kKinds, &out->key_kind) &&
         read_word(object, "key_form", kForms, &out->key_form) && read_parts(object, &out->parts) &&
         read_extra(object, &out->extra);
}

}  // namespace kvist::python

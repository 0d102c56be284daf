#include "cli/json_text.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvist::cli {
namespace {

using Json = nlohmann::ordered_json;

const Json* find(const void* at, const char* name) {
  const auto* json = static_cast<const Json*>(at);
  if (json == nullptr || !json->is_object()) return nullptr;
  const auto found = json->find(name);
  return found == json->end() ? nullptr : &*found;
}

}  // namespace

std::string json_text(std::initializer_list<JsonField> fields) {
  Json object = Json::object();
  for (const JsonField& field : fields) {
    std::visit([&](const auto& value) { object[std::string(field.name)] = value; }, field.value);
  }
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void print_json(std::initializer_list<JsonField> fields) { std::printf("%s\n", json_text(fields).c_str()); }

struct JsonView::Document {
  Json root;
};

StatusOr<JsonView> JsonView::parse(const std::string& text) {
  auto document = std::make_shared<Document>();
  document->root = Json::parse(text, nullptr, false);
  if (document->root.is_discarded())
    return internal_error("the node's report is no JSON; use command and node of one release");
  const Json* root = &document->root;
  return JsonView(std::move(document), root);
}

uint64_t JsonView::number(const char* name) const {
  const Json* found = find(at_, name);
  return found != nullptr && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

double JsonView::real(const char* name) const {
  const Json* found = find(at_, name);
  return found != nullptr && found->is_number() ? found->get<double>() : 0;
}

std::string JsonView::text(const char* name) const {
  const Json* found = find(at_, name);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<JsonView> JsonView::rows(const char* name) const {
  std::vector<JsonView> rows;
  const Json* found = find(at_, name);
  if (found == nullptr || !found->is_array()) return rows;
  for (const Json& row : *found) rows.push_back(JsonView(document_, &row));
  return rows;
}

JsonView JsonView::member(const char* name) const { return JsonView(document_, find(at_, name)); }

}  // namespace kvist::cli

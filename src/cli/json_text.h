// cli/json_text.h: JSON for verbs, without the library's headers, which cost seconds of compile time in every file.
//
//   print_json({{"key", key}, {"bytes", size}, {"there", true}});       // one object, one line
//
//   StatusOr<JsonView> report = JsonView::parse(text);                   // what a node reports
//   report->number("used_bytes");  for (const JsonView& client : report->rows("clients")) ...
//
// Text that is not UTF-8 is printed with its wrong bytes replaced. A member that is missing or of another type reads as 0,
// "" or no rows: a node of another version says more or less.
//
// Threads: values.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvist/status.h"

namespace kvist::cli {

struct JsonField {
  std::string_view name;
  std::variant<bool, uint64_t, double, std::string> value;

  JsonField(std::string_view n, bool flag) : name(n), value(flag) {}
  JsonField(std::string_view n, std::string text) : name(n), value(std::move(text)) {}
  JsonField(std::string_view n, std::string_view text) : name(n), value(std::string(text)) {}
  JsonField(std::string_view n, const char* text) : name(n), value(std::string(text)) {}
  JsonField(std::string_view n, double number) : name(n), value(number) {}
  template <std::unsigned_integral Number>
  JsonField(std::string_view n, Number number) : name(n), value(uint64_t{number}) {}
};

std::string json_text(std::initializer_list<JsonField> fields);
void print_json(std::initializer_list<JsonField> fields);

class JsonView {
 public:
  // kInternal: not JSON.
  static StatusOr<JsonView> parse(const std::string& text);

  uint64_t number(const char* name) const;
  double real(const char* name) const;
  std::string text(const char* name) const;
  std::vector<JsonView> rows(const char* name) const;
  // Of a member that is an object; empty if it is none.
  JsonView member(const char* name) const;

 private:
  struct Document;
  JsonView(std::shared_ptr<const Document> document, const void* at) : document_(std::move(document)), at_(at) {}

  std::shared_ptr<const Document> document_;
  const void* at_;  // the library's value within the document; null: nothing
};

}  // namespace kvist::cli

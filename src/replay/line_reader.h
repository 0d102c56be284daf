// replay/line_reader.h: the lines of a text file, plain or gzip, one after the other.
//
//   StatusOr<LineReader> lines = LineReader::open(path, {});
//   for (;;) {
//     StatusOr<bool> more = lines->next();
//     if (!more.ok()) return more.status();
//     if (!*more) break;
//     use(lines->line());          // valid until the next call
//   }
//
// A gzip stream that ends early is an error, not an end of file: a trace that was cut by a failed download would
// otherwise give plausible and wrong figures. Lines end in "\n" or "\r\n"; the last one needs neither. Blank lines are
// skipped but counted. Memory: one line and one buffer of 64 KiB. One thread at a time; move-only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvist/status.h"

namespace kvist::replay {

class LineReader {
 public:
  struct Limits {
    uint64_t line_bytes = 16ull << 20;
    uint64_t file_bytes = 64ull << 30;  // after decompression
  };

  // Opens a file; "-" is standard input. kNotFound, kInvalidArgument (a folder), kPermissionDenied.
  static StatusOr<LineReader> open(const std::string& path, Limits limits);
  // Reads bytes that the caller keeps alive; `name` stands for the file in messages.
  static StatusOr<LineReader> over(std::string_view bytes, const std::string& name, Limits limits);

  LineReader(LineReader&&) noexcept;
  LineReader& operator=(LineReader&&) noexcept;
  ~LineReader();

  // Steps to the next line that is not blank; false at the end of the file. kDataLoss, kResourceExhausted.
  StatusOr<bool> next();
  // The current line without its end.
  std::string_view line() const { return line_; }
  // "trace.jsonl:17", for messages about the current line.
  std::string where() const;
  const std::string& name() const { return name_; }

 private:
  class Source;
  LineReader(std::string name, std::unique_ptr<Source> source, Limits limits);
  StatusOr<bool> refill();

  std::string name_;
  std::unique_ptr<Source> source_;
  Limits limits_;
  std::string buffer_;
  size_t begin_ = 0;  // of what is not yet consumed in buffer_
  bool at_end_ = false;
  uint64_t consumed_bytes_ = 0;
  uint64_t line_number_ = 0;
  std::string_view line_;
};

}  // namespace kvist::replay

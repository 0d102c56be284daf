// bench/suite/fio.h: fio as the ceiling of what a disk does, and a folder for files of a measurement.
//
//   Fio fio{.file = folder.path() + "/fio", .direct = true};
//   fio.lay_out(size);                                       // why_not: empty if it can be run
//   StatusOr<double> rate = fio.run("read", block, depth, size, bytes);
//
// With io_uring, registered buffers and O_DIRECT where the file system has it, as the disk tier does.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kvist/status.h"

namespace kvist::bench {

struct Fio {
  std::string file;
  bool direct = true;
  std::string why_not{};  // empty: it can be run

  // Makes the file, and writes it a few times: a device's first writes are others than those that follow.
  void lay_out(uint64_t size);
  // Bytes a second of moving `bytes` in a file of `size`.
  StatusOr<double> run(const std::string& rw, uint64_t block, uint32_t depth, uint64_t size, uint64_t bytes) const;
};

// A folder of its own in `directory`, removed with all that is in it.
class BenchFolder {
 public:
  // kFailedPrecondition: none can be made there.
  static StatusOr<BenchFolder> make(const std::string& directory);
  ~BenchFolder();
  BenchFolder(BenchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  BenchFolder& operator=(BenchFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit BenchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace kvist::bench

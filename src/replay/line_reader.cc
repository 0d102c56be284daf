#include "replay/line_reader.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <utility>

namespace kvist::replay {
namespace {

constexpr size_t kChunk = 64 << 10;

// Compressed or plain bytes, as they lie in the file or in memory.
class RawBytes {
 public:
  explicit RawBytes(std::string_view memory) : memory_(memory) {}
  RawBytes(FILE* file, bool owned) : file_(file), owned_(owned) {}
  ~RawBytes() {
    if (owned_) fclose(file_);
  }
  RawBytes(const RawBytes&) = delete;
  RawBytes& operator=(const RawBytes&) = delete;

  // Up to `size` bytes; 0 at the end.
  StatusOr<size_t> read(char* to, size_t size) {
    if (file_ == nullptr) {
      size_t n = std::min(size, memory_.size());
      memcpy(to, memory_.data(), n);
      memory_.remove_prefix(n);
      return n;
    }
    size_t n = fread(to, 1, size, file_);
    if (n == 0 && ferror(file_)) return unavailable(std::string("cannot be read: ") + strerror(errno));
    return n;
  }

 private:
  std::string_view memory_;
  FILE* file_ = nullptr;
  bool owned_ = false;
};

}  // namespace

// The text: RawBytes, through inflate where they start with the gzip magic. Several gzip members in a row are one text.
class LineReader::Source {
 public:
  template <typename... Args>
  explicit Source(Args&&... args) : raw_(std::forward<Args>(args)...) {}
  ~Source() {
    if (inflating_) inflateEnd(&stream_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  StatusOr<size_t> read(char* to, size_t size) {
    if (!started_) {
      Status status = start();
      if (!status.ok()) return status;
    }
    return inflating_ ? read_inflated(to, size) : read_plain(to, size);
  }

 private:
  Status start() {
    started_ = true;
    // Two bytes decide; a pipe may hand them over one at a time.
    while (filled_ < 2) {
      StatusOr<size_t> n = raw_.read(input_ + filled_, sizeof input_ - filled_);
      if (!n.ok()) return n.status();
      if (*n == 0) break;
      filled_ += *n;
    }
    if (filled_ < 2 || static_cast<uint8_t>(input_[0]) != 0x1f || static_cast<uint8_t>(input_[1]) != 0x8b)
      return ok_status();
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) return resource_exhausted("no memory to decompress it");
    inflating_ = true;
    stream_.next_in = reinterpret_cast<Bytef*>(input_);
    stream_.avail_in = static_cast<uInt>(filled_);
    return ok_status();
  }

  StatusOr<size_t> read_plain(char* to, size_t size) {
    if (taken_ == filled_) return raw_.read(to, size);
    size_t n = std::min(size, filled_ - taken_);
    memcpy(to, input_ + taken_, n);
    taken_ += n;
    return n;
  }

  StatusOr<size_t> read_inflated(char* to, size_t size) {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out == size) {
      if (stream_.avail_in == 0) {
        StatusOr<size_t> n = raw_.read(input_, sizeof input_);
        if (!n.ok()) return n.status();
        if (*n == 0) {
          if (between_members_) return size_t{0};
          return data_loss("the gzip stream ends early: the file is truncated; fetch it again");
        }
        stream_.next_in = reinterpret_cast<Bytef*>(input_);
        stream_.avail_in = static_cast<uInt>(*n);
      }
      if (between_members_ && inflateReset(&stream_) != Z_OK) return internal_error("inflateReset failed");
      int result = inflate(&stream_, Z_NO_FLUSH);
      between_members_ = result == Z_STREAM_END;
      if (result == Z_MEM_ERROR) return resource_exhausted("no memory to decompress it");
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        return data_loss(std::string("the gzip stream is damaged (") + (stream_.msg ? stream_.msg : "unknown reason") +
                         "); fetch the file again");
      }
    }
    return size - stream_.avail_out;
  }

  RawBytes raw_;
  char input_[kChunk];
  size_t filled_ = 0;  // of input_, before inflating began
  size_t taken_ = 0;
  bool started_ = false;
  bool inflating_ = false;
  bool between_members_ = false;
  z_stream stream_{};
};

LineReader::LineReader(std::string name, std::unique_ptr<Source> source, Limits limits)
    : name_(std::move(name)), source_(std::move(source)), limits_(limits) {}
LineReader::LineReader(LineReader&&) noexcept = default;
LineReader& LineReader::operator=(LineReader&&) noexcept = default;
LineReader::~LineReader() = default;

StatusOr<LineReader> LineReader::open(const std::string& path, Limits limits) {
  if (path == "-") return LineReader("standard input", std::make_unique<Source>(stdin, false), limits);
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) {
    std::string message = path + " cannot be opened: " + strerror(errno);
    if (errno == ENOENT || errno == ENOTDIR) return not_found(std::move(message));
    if (errno == EACCES || errno == EPERM) return permission_denied(std::move(message));
    return unavailable(std::move(message));
  }
  auto source = std::make_unique<Source>(file, true);
  struct stat about {};
  if (fstat(fileno(file), &about) == 0 && S_ISDIR(about.st_mode)) {
    return invalid_argument(path + " is a folder; name a file in it");
  }
  return LineReader(path, std::move(source), limits);
}

StatusOr<LineReader> LineReader::over(std::string_view bytes, const std::string& name, Limits limits) {
  return LineReader(name, std::make_unique<Source>(bytes), limits);
}

std::string LineReader::where() const { return name_ + ":" + std::to_string(line_number_); }

// Appends to buffer_; false at the end of the text.
StatusOr<bool> LineReader::refill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  size_t old_size = buffer_.size();
  buffer_.resize(old_size + kChunk);
  StatusOr<size_t> n = source_->read(buffer_.data() + old_size, kChunk);
  buffer_.resize(old_size + (n.ok() ? *n : 0));
  if (!n.ok()) return Status(n.status().code(), name_ + ": " + std::string(n.status().message()));
  consumed_bytes_ += *n;
  if (consumed_bytes_ > limits_.file_bytes) {
    return resource_exhausted(name_ + " holds more than " + std::to_string(limits_.file_bytes) + " bytes of text; split it");
  }
  return *n > 0;
}

StatusOr<bool> LineReader::next() {
  size_t scanned = 0;  // of the current line, known to hold no line end
  for (;;) {
    size_t end = buffer_.find('\n', begin_ + scanned);
    bool complete = end != std::string::npos;
    if (!complete) {
      scanned = buffer_.size() - begin_;
      if (scanned > limits_.line_bytes) {
        return resource_exhausted(name_ + ":" + std::to_string(line_number_ + 1) + ": the line is longer than " +
                                  std::to_string(limits_.line_bytes) + " bytes; is this a trace, one JSON object a line?");
      }
      if (!at_end_) {
        StatusOr<bool> more = refill();
        if (!more.ok()) return more;
        at_end_ = !*more;
        continue;
      }
      if (scanned == 0) return false;
      end = buffer_.size();
    }
    line_ = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = complete ? end + 1 : end;
    scanned = 0;
    ++line_number_;
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    if (line_.find_first_not_of(" \t") != std::string_view::npos) return true;
  }
}

}  // namespace kvist::replay

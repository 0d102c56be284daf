// kvist/status.h: how every call of Kvist says how it ended.
//
//   kvist::Status status = space.remove(key);
//   if (!status.ok()) log(status.to_string());        // "NOT_FOUND: no block under this key"
//
//   kvist::StatusOr<kvist::Client> client = kvist::Client::connect(options);
//   if (!client.ok()) return client.status();
//   use(*client);
//
// The codes are the canonical ones (those of gRPC and Abseil, with their numbers), so that they survive a crossing into
// C, Python or a wire without translation. A message is written for the person who reads it: it says what is wrong and
// what to do. No call of Kvist throws.
//
// Threads: a Status is a value; distinct objects may be used from distinct threads. An OK status allocates nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvist {

enum class StatusCode : uint8_t {
  kOk = 0,
  kCancelled = 1,           // the caller withdrew the call
  kUnknown = 2,             // a peer answered something this version does not know
  kInvalidArgument = 3,     // the call can never work as it was made
  kDeadlineExceeded = 4,    // the deadline came first; the effect is unknown unless the call says otherwise
  kNotFound = 5,            // no such block, namespace or client: an ordinary miss
  kAlreadyExists = 6,       // the block is there already: an ordinary outcome of put-if-absent
  kPermissionDenied = 7,    // refused by token, peer credentials or mode
  kResourceExhausted = 8,   // a bound was reached; the message names the bound
  kFailedPrecondition = 9,  // the state forbids it: flushed epoch, absent parent under `strict`, handle after fork
  kAborted = 10,            // lost a race; trying again may work
  kOutOfRange = 11,         // past the end of a block, pool or table
  kUnimplemented = 12,      // the peer or this build cannot do it
  kInternal = 13,           // a defect of Kvist
  kUnavailable = 14,        // the node is not there now; the client reconnects by itself
  kDataLoss = 15,           // bytes failed their verification; they were not handed out
  kUnauthenticated = 16,    // no token, or a wrong one
};

// "OK", "NOT_FOUND", ...: the canonical spelling; "UNKNOWN" for a number outside the list.
std::string_view status_code_name(StatusCode code);

// A code, and for failures a message. Cheap to copy when OK.
class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message)
      : code_(code),
        message_(code == StatusCode::kOk || message.empty() ? nullptr
                                                            : std::make_shared<const std::string>(std::move(message))) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // Empty when OK. Valid as long as this Status or a copy of it lives.
  std::string_view message() const { return message_ ? std::string_view(*message_) : std::string_view(); }
  // "OK" or "NOT_FOUND: message".
  std::string to_string() const;

  friend bool operator==(const Status& a, const Status& b) { return a.code_ == b.code_ && a.message() == b.message(); }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::shared_ptr<const std::string> message_;
};

// Short makers, so that an error reads as a sentence: `return not_found("no namespace is called 'llama'")`.
inline Status ok_status() { return {}; }
Status cancelled(std::string message);
Status invalid_argument(std::string message);
Status deadline_exceeded(std::string message);
Status not_found(std::string message);
Status already_exists(std::string message);
Status permission_denied(std::string message);
Status resource_exhausted(std::string message);
Status failed_precondition(std::string message);
Status aborted(std::string message);
Status out_of_range(std::string message);
Status unimplemented(std::string message);
Status internal_error(std::string message);
Status unavailable(std::string message);
Status data_loss(std::string message);
Status unauthenticated(std::string message);

// A value, or the reason why there is none. Using the value of a failure is a programmer's error and ends the process.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) std::abort();                       // an OK without a value is a defect at the place that made it
  }
  StatusOr(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<StatusOr*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<StatusOr*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<StatusOr*>(this)->checked(); }

 private:
  T& checked() {
    if (!value_) std::abort();
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace kvist

#include "disk/io_engine.h"

#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/units.h"
#include "disk/workers.h"

namespace kvist::disk {
namespace {

// ---- io_uring -----------------------------------------------------------------------------------------------------

class RingEngine final : public IoEngine {
 public:
  RingEngine(uint32_t depth, std::span<std::byte> buffers) : depth_(depth), buffers_(buffers) {}
  ~RingEngine() override {
    if (open_) ::io_uring_queue_exit(&ring_);
  }

  Status open(int event) {
    // Completions are handled when the loop enters the kernel anyhow, without an interrupt to its processor (Linux 5.19).
    int error = ::io_uring_queue_init(depth_, &ring_, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (error == -EINVAL) error = ::io_uring_queue_init(depth_, &ring_, 0);
    if (error != 0) return ring_refused(-error);
    open_ = true;
    if (error = ::io_uring_register_eventfd(&ring_, event); error != 0) return ring_refused(-error);
    const iovec all = {buffers_.data(), buffers_.size()};
    const int registered = ::io_uring_register_buffers(&ring_, &all, 1);
    registered_ = registered == 0;
    if (!registered_) {
      why_not_registered_ = registered == -ENOMEM ? "the limit of locked memory is below " + format_size(buffers_.size()) +
                                                        ": raise LimitMEMLOCK or ulimit -l"
                                                  : std::strerror(-registered);
    }
    return ok_status();
  }

  bool submit(const IoRequest& request) override {
    if (in_flight_ >= depth_) return false;
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {
      push();
      sqe = ::io_uring_get_sqe(&ring_);
      if (sqe == nullptr) return false;
    }
    const bool fixed =
        registered_ && request.data >= buffers_.data() && request.data + request.bytes <= buffers_.data() + buffers_.size();
    if (request.kind == IoKind::kRead) {
      if (fixed) {
        ::io_uring_prep_read_fixed(sqe, request.fd, request.data, request.bytes, request.offset, 0);
      } else {
        ::io_uring_prep_read(sqe, request.fd, request.data, request.bytes, request.offset);
      }
    } else if (fixed) {
      ::io_uring_prep_write_fixed(sqe, request.fd, request.data, request.bytes, request.offset, 0);
    } else {
      ::io_uring_prep_write(sqe, request.fd, request.data, request.bytes, request.offset);
    }
    ::io_uring_sqe_set_data64(sqe, request.tag);
    ++in_flight_;
    unpushed_ = true;
    return true;
  }

  void push() override {
    // -EBUSY and -EAGAIN: the kernel has no room for now; the entries stay, and the next push takes them.
    if (unpushed_ && ::io_uring_submit(&ring_) >= 0) unpushed_ = ::io_uring_sq_ready(&ring_) != 0;
  }

  void reap(std::vector<IoDone>* done) override {
    if (in_flight_ == 0) return;
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
      done->push_back({::io_uring_cqe_get_data64(cqe), cqe->res});
      ::io_uring_cqe_seen(&ring_, cqe);
      --in_flight_;
    }
  }

  size_t in_flight() const override { return in_flight_; }
  std::string describe() const override {
    return registered_ ? "io_uring, registered buffers" : "io_uring, buffers not registered (" + why_not_registered_ + ")";
  }

 private:
  const uint32_t depth_;
  const std::span<std::byte> buffers_;
  io_uring ring_ = {};
  size_t in_flight_ = 0;
  bool open_ = false, registered_ = false, unpushed_ = false;
  std::string why_not_registered_;
};

// ---- threads ------------------------------------------------------------------------------------------------------

class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(uint32_t depth, uint32_t threads, int event) : depth_(depth), workers_(threads, depth, event) {}
  size_t threads() const { return workers_.threads(); }

  bool submit(const IoRequest& request) override {
    if (in_flight_ >= depth_) return false;
    auto result = std::make_shared<int64_t>(0);
    const bool posted = workers_.post(
        [request, result] {
          do {
            *result = request.kind == IoKind::kRead
                          ? ::pread(request.fd, request.data, request.bytes, static_cast<off_t>(request.offset))
                          : ::pwrite(request.fd, request.data, request.bytes, static_cast<off_t>(request.offset));
          } while (*result < 0 && errno == EINTR);
          if (*result < 0) *result = -errno;
        },
        [this, tag = request.tag, result] {
          done_.push_back({tag, *result});
        });
    in_flight_ += posted ? 1 : 0;
    return posted;
  }
  void push() override {}
  void reap(std::vector<IoDone>* done) override {
    workers_.run_done();
    in_flight_ -= done_.size();
    done->insert(done->end(), done_.begin(), done_.end());
    done_.clear();
  }
  size_t in_flight() const override { return in_flight_; }
  std::string describe() const override { return std::to_string(threads()) + " threads"; }

 private:
  const uint32_t depth_;
  size_t in_flight_ = 0;
  std::vector<IoDone> done_;
  Workers workers_;  // last: its threads end first
};

}  // namespace

Status ring_refused(int error) {
  switch (error) {
    case ENOSYS: return unimplemented("this kernel has no io_uring");
    case EPERM:
    case EACCES:
      return permission_denied(
          "io_uring is forbidden here: allow it in the seccomp profile (io_uring_setup, io_uring_enter, io_uring_register) "
          "and by sysctl kernel.io_uring_disabled=0");
    case ENOMEM: return resource_exhausted("the limit of locked memory leaves io_uring no room: raise LimitMEMLOCK");
    case EMFILE:
    case ENFILE: return resource_exhausted("no descriptor is left for io_uring: raise LimitNOFILE");
    default: return unavailable(std::string("io_uring cannot be set up: ") + std::strerror(error));
  }
}

StatusOr<std::unique_ptr<IoEngine>> make_ring_engine(uint32_t depth, std::span<std::byte> buffers, int event) {
  auto engine = std::make_unique<RingEngine>(depth, buffers);
  if (Status status = engine->open(event); !status.ok()) return status;
  return StatusOr<std::unique_ptr<IoEngine>>(std::move(engine));
}

StatusOr<std::unique_ptr<IoEngine>> make_thread_engine(uint32_t depth, uint32_t threads, int event) {
  auto engine = std::make_unique<ThreadEngine>(depth, threads, event);
  if (engine->threads() == 0) return resource_exhausted("no thread can be started for reading and writing: raise TasksMax");
  return StatusOr<std::unique_ptr<IoEngine>>(std::move(engine));
}

}  // namespace kvist::disk

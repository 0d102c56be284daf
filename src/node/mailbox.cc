#include "node/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace kvist {

StatusOr<FileDescriptor> make_event() {
  FileDescriptor fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return internal_error(std::string("eventfd: ") + std::strerror(errno));
  return fd;
}

void raise_event(int fd) noexcept {
  const int saved = errno;  // a signal handler must leave it as it was
  const uint64_t one = 1;
  // Fails only when the count is full, and then it is raised already.
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof(one));
  errno = saved;
}

void clear_event(int fd) noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(fd, &count, sizeof(count));
}

Status Mailbox::open() {
  StatusOr<FileDescriptor> event = make_event();
  if (!event.ok()) return event.status();
  event_ = *std::move(event);
  return ok_status();
}

bool Mailbox::post(Post post) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    posts_.push_back(std::move(post));
  }
  raise_event(event_.get());
  return true;
}

void Mailbox::run() {
  clear_event(event_.get());
  std::vector<Post> posts;
  {
    const std::lock_guard lock(mutex_);
    posts.swap(posts_);
  }
  for (const Post& post : posts) post();
}

void Mailbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace kvist

// node/mailbox.h: how the node's other threads hand something to its loop.
//
//   mailbox.post([this] { pool.add_extent(3); });     // any thread; runs in the loop's thread, soon
//   mailbox.run();                                    // the loop, when mailbox.fd() is readable
//
// Posts run in the order in which they came. Nothing is taken after close(), and what was taken before still runs, so that
// nobody waits for an answer that cannot come. Posters bound themselves: each waits for its post to have run, or posts at a
// limited rate.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "kvist/status.h"
#include "memory/shared_memory.h"

namespace kvist {

class Mailbox {
 public:
  using Post = std::function<void()>;

  Status open();
  // False: closed; the post will not run.
  bool post(Post post);
  // Runs what was posted so far.
  void run();
  // Takes nothing more. To be followed by run().
  void close();
  int fd() const { return event_.get(); }

 private:
  FileDescriptor event_;
  std::mutex mutex_;
  std::vector<Post> posts_;  // under mutex_
  bool closed_ = false;      // under mutex_
};

// An eventfd as a flag. raise() is safe in a signal handler.
StatusOr<FileDescriptor> make_event();
void raise_event(int fd) noexcept;
void clear_event(int fd) noexcept;

}  // namespace kvist

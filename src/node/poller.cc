#include "node/poller.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace kvist {
namespace {

constexpr int kIdBits = 56;

epoll_event event_for(uint32_t events, Watched what, uint64_t id) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = static_cast<uint64_t>(what) << kIdBits | (id & ((uint64_t{1} << kIdBits) - 1));
  return event;
}

}  // namespace

Status Poller::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return internal_error(std::string("epoll_create1: ") + std::strerror(errno));
  return ok_status();
}

Status Poller::add(int fd, uint32_t events, Watched what, uint64_t id) {
  epoll_event event = event_for(events, what, id);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return ok_status();
  return resource_exhausted(std::string("cannot watch another descriptor: ") + std::strerror(errno));
}

void Poller::change(int fd, uint32_t events, Watched what, uint64_t id) {
  epoll_event event = event_for(events, what, id);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

size_t Poller::wait(std::span<Ready> out, int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int most = static_cast<int>(std::min(out.size(), events.size()));
  const int count = ::epoll_wait(epoll_.get(), events.data(), most, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    out[i] = {static_cast<Watched>(tag >> kIdBits), tag & ((uint64_t{1} << kIdBits) - 1), events[i].events};
  }
  return count > 0 ? static_cast<size_t>(count) : 0;
}

}  // namespace kvist

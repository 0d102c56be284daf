// node/service_manager.h: what a node says to systemd (Type=notify), and what systemd holds for it.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "node/descriptor_store.h"

namespace kvist {

// Sends `state` ("READY=1", "STOPPING=1\nSTATUS=...") to the socket that $NOTIFY_SOCKET names, as sd_notify(3) describes.
// Without such a variable, nothing. Never blocks; false when it could not be sent.
bool notify_service_manager(std::string_view state);

// The descriptor store of systemd: FDSTORE=1 as in sd_notify(3), and $LISTEN_FDS as in sd_listen_fds(3). The unit has to say
// FileDescriptorStoreMax=, six for each domain (two of them while a node takes over) and two for each client (a second one
// after a restart, until it lets go of what it held before). systemd answers nothing: what it did not take is missed by the
// node that comes next, which then starts empty and says so.
class ServiceManagerStore final : public DescriptorStore {
 public:
  // kFailedPrecondition: this process has no service manager.
  static StatusOr<std::unique_ptr<ServiceManagerStore>> open();

  std::vector<KeptDescriptor> take_kept() override { return std::move(kept_); }
  Status hold(const std::string& name, int fd) override;
  void drop(const std::string& name) override;
  void drop_all() override;
  int fd() const override { return -1; }
  std::string describe() const override { return "systemd"; }

 private:
  bool tell(const std::string& state, int fd);

  std::vector<KeptDescriptor> kept_;
  std::vector<std::string> names_;
  bool gone_ = false;
};

}  // namespace kvist

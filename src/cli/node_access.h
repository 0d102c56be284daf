// cli/node_access.h: what the verbs that talk to a node share: its socket, a namespace, keys.
//
// A verb declares NodeArguments, and where it speaks of blocks SpaceArguments; open() finds the namespace by its alias in
// what the node reports, so that a block of any engine can be looked at without repeating its identity.
//
// Threads: one. Errors say what to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "kvist/client.h"

namespace kvist::cli {

struct NodeArguments {
  std::string socket, domain, token_file;
  std::chrono::nanoseconds timeout = std::chrono::seconds(2);

  void declare(Arguments& arguments);
  StatusOr<Client> connect() const;
  Deadline deadline() const { return within(timeout); }
};

struct SpaceArguments {
  std::string alias = "kvist";
  std::string secret_file;
  std::string part = "0";
  bool hex = false, digest = false;

  void declare(Arguments& arguments);
  // The namespace of this alias. With `make` one for the command line is made where there is none; else kNotFound.
  StatusOr<Space> open(Client& client, const NodeArguments& node, bool make) const;
  // The names of keys as they were typed: text, hexadecimal bytes (--hex) or digests (--digest).
  StatusOr<std::vector<Digest>> names(const Space& space, const std::vector<std::string>& keys) const;
  // The part by number or by its name in the namespace.
  StatusOr<uint16_t> part_of(const Space& space) const;
};

// The first line of a file; for tokens and secrets, which are not typed where others see them.
StatusOr<std::string> first_line_of(const std::string& path);

}  // namespace kvist::cli

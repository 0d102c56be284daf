// cli/pool_access.h: what the verbs that use a pool have in common: which node, which namespace, which keys.
//
// A namespace that an engine made is opened by its name alone: the node knows its identity record. Where the namespace has a
// tenant secret, the user has to bring that.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "kvist/client.h"

namespace kvist::cli {

struct NodeArguments {
  std::string socket, domain, token_file;
  std::chrono::nanoseconds timeout = std::chrono::seconds(2);

  void declare(Arguments& arguments);
  // kUnavailable says where a node was looked for and how to start one. `stock_bytes`: empty slots kept for the next put,
  // for verbs that make many.
  StatusOr<Client> connect(uint64_t stock_bytes = 0) const;
  Deadline deadline() const { return within(timeout); }
};

struct SpaceArguments {
  NodeArguments node;
  std::string space, secret_file;
  bool hex = false, digests = false;

  void declare(Arguments& arguments);
  // For verbs that take keys: how those are written.
  void declare_key_form(Arguments& arguments);

  // The namespace called `space`, or without that name the only one there is. kNotFound lists those that there are.
  StatusOr<Space> open(Client& client) const;
  // The same, but makes it where it is absent, of this model; without a name, in a pool without namespaces: "kvist".
  StatusOr<Space> open_or_make(Client& client, const std::string& model) const;

  // kInvalidArgument names the key that is none.
  StatusOr<std::vector<Digest>> names(const Space& space, const std::vector<std::string>& keys) const;
};

// The identity of the namespace that the node has under this alias, if it has one. Makes none.
StatusOr<std::optional<Identity>> find_space(Client& client, const std::string& alias, Deadline deadline);

// Blocks that the user named, where they are or would be.
struct NamedBlocks {
  Client client;
  Space space;
  uint16_t part = 0;
  std::vector<Digest> names;  // of the keys, in their order
};

// What the verbs have in common that are about single blocks.
struct BlockArguments {
  SpaceArguments space;
  std::string part = "0";
  std::vector<std::string> keys;
  bool json = false;

  enum class Keys { kOne, kMany };
  void declare(Arguments& arguments, Keys how_many, const std::string& json_help);

  // Connects, opens the namespace and names the blocks in it; with a model, makes a namespace that is absent.
  StatusOr<NamedBlocks> find(const std::string& model = "") const;
};

// A sentence for a block's result: "the namespace was flushed meanwhile".
std::string reason_of(StatusCode code);

// Lines of columns, each as wide as its widest cell; `alignment`: a character for each column, 'r' for the right. What
// others wrote is shown as printable() does.
void print_table(const std::vector<std::vector<std::string>>& rows, const std::string& alignment);

}  // namespace kvist::cli

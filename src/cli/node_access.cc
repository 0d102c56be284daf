#include "cli/node_access.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/digest.h"

namespace kvist::cli {
namespace {

StatusOr<std::string> bytes_of_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    uint8_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc() || end != text.data() + i + 2) break;
    bytes.push_back(static_cast<char>(value));
  }
  if (text.empty() || bytes.size() * 2 != text.size()) {
    return invalid_argument("'" + text + "' is not bytes in hexadecimal; write two digits a byte");
  }
  return bytes;
}

}  // namespace

StatusOr<std::string> first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return not_found("'" + path + "' cannot be read or is empty");
  return line;
}

void NodeArguments::declare(Arguments& arguments) {
  arguments.text("--socket", socket, "The node's socket")
      .value_name("PATH")
      .default_text("$KVIST_SOCKET, $XDG_RUNTIME_DIR/kvist.sock or /run/kvist/node.sock");
  arguments.text("--domain", domain, "The tenant's pool; empty: the node's default one").value_name("NAME");
  arguments.text("--token-file", token_file, "The first line of this file is the token, where the node asks for one")
      .value_name("FILE");
  arguments.duration("--timeout", timeout, "Give up after this");
}

StatusOr<Client> NodeArguments::connect() const {
  ClientOptions options;
  options.socket = socket;
  options.domain = domain;
  options.name = "kvist";
  options.verify = Verify::kAlways;
  if (!token_file.empty()) {
    StatusOr<std::string> token = first_line_of(token_file);
    if (!token.ok()) return token.status();
    options.token = *token;
  }
  return Client::connect(options, deadline());
}

void SpaceArguments::declare(Arguments& arguments) {
  arguments.text("--namespace", alias, "The namespace's alias, as `kvist ls` lists them").value_name("ALIAS");
  arguments.text("--secret-file", secret_file, "The first line of this file is the namespace's tenant secret, if it has one")
      .value_name("FILE");
  arguments.text("--part", part, "Which part of a position: its number, or its name in the namespace").value_name("PART");
  arguments.flag("--hex", hex, "Keys are bytes in hexadecimal");
  arguments.flag("--digest", digest, "Keys are digests, 32 hexadecimal digits, as `kvist ls` prints them");
}

StatusOr<Space> SpaceArguments::open(Client& client, const NodeArguments& node, bool make) const {
  StatusOr<std::string> report = client.report(Client::Report::kSpaces, node.deadline());
  if (!report.ok()) return report.status();
  Identity identity;
  identity.model = "kvist command line";
  bool known = false;
  const auto json = nlohmann::json::parse(*report, nullptr, false);
  if (json.is_object()) {
    for (const auto& space : json.value("namespaces", nlohmann::json::array())) {
      if (space.value("alias", "") != alias) continue;
      StatusOr<std::string> record = bytes_of_hex(space.value("record", ""));
      if (!record.ok()) return internal_error("the node's report of its namespaces cannot be read");
      StatusOr<Identity> decoded = decode_identity(*record);
      if (!decoded.ok()) return decoded.status();
      identity = *std::move(decoded);
      known = true;
    }
  }
  if (!known && !make) {
    return not_found("no namespace is called '" + alias + "'; `kvist ls` lists them, --namespace chooses one");
  }
  identity.alias = alias;
  if (!secret_file.empty()) {
    StatusOr<std::string> secret = first_line_of(secret_file);
    if (!secret.ok()) return secret.status();
    identity.tenant_secret = *secret;
  }
  return client.open(identity, node.deadline());
}

StatusOr<std::vector<Digest>> SpaceArguments::names(const Space& space, const std::vector<std::string>& keys) const {
  std::vector<Digest> names;
  for (const std::string& key : keys) {
    if (digest) {
      StatusOr<Digest> name = digest_from_hex(key);
      if (!name.ok()) return Status(name.status());
      names.push_back(*name);
      continue;
    }
    StatusOr<std::string> bytes = hex ? bytes_of_hex(key) : StatusOr<std::string>(key);
    if (!bytes.ok()) return Status(bytes.status());
    names.push_back(space.digest(*bytes));
    if (names.back().is_zero()) {
      return invalid_argument("'" + key + "' cannot be a key of this namespace: keys have 1 to 4096 bytes, block hashes " +
                              "at least 16 (--hex for binary ones)");
    }
  }
  return names;
}

StatusOr<uint16_t> SpaceArguments::part_of(const Space& space) const {
  const std::vector<Part>& parts = space.identity().parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].name == part) return static_cast<uint16_t>(i);
  }
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (error == std::errc() && end == part.data() + part.size() && number < parts.size()) return number;
  std::string list;
  for (const Part& each : parts) list += (list.empty() ? "" : ", ") + each.name;
  return invalid_argument("--part: the namespace has no part '" + part + "'; it has: " + list);
}

}  // namespace kvist::cli

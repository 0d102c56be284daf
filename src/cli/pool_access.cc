#include "cli/pool_access.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <sstream>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/printable.h"
#include "base/secret_file.h"
#include "cli/json_text.h"

namespace kvist::cli {
namespace {

struct Known {
  std::string alias, record;
};

StatusOr<std::vector<Known>> known_spaces(Client& client, Deadline deadline) {
  StatusOr<std::string> text = client.report(Client::Report::kSpaces, deadline);
  if (!text.ok()) return text.status();
  const StatusOr<JsonView> report = JsonView::parse(*text);
  if (!report.ok()) return report.status();
  std::vector<Known> known;
  for (const JsonView& space : report->rows("namespaces")) {
    const StatusOr<std::vector<std::byte>> record = from_hex(space.text("record"));
    if (!record.ok()) continue;
    known.push_back({space.text("alias"), {reinterpret_cast<const char*>(record->data()), record->size()}});
  }
  return known;
}

std::string names_of(const std::vector<Known>& known) {
  if (known.empty()) return "the pool has none yet";
  std::string text = "there are:";
  for (size_t i = 0; i < known.size() && i < 20; ++i) text += (i == 0 ? " " : ", ") + known[i].alias;
  return text + (known.size() > 20 ? ", ... (`kvist ls` lists all)" : "");
}

StatusOr<Identity> find_identity(const std::vector<Known>& known, const std::string& wanted) {
  if (wanted.empty() && known.size() != 1) {
    return invalid_argument("say which namespace by --namespace NAME; " + names_of(known));
  }
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Known& each) { return wanted.empty() || each.alias == wanted; });
  if (found == known.end()) return not_found("no namespace is called '" + printable(wanted, 64) + "'; " + names_of(known));
  StatusOr<Identity> identity = decode_identity(found->record);
  if (identity.ok()) identity->alias = found->alias;
  return identity;
}

}  // namespace

// ---- the node -----------------------------------------------------------------------------------------------------

void NodeArguments::declare(Arguments& arguments) {
  arguments.text("--socket", socket, "The node's socket")
      .value_name("PATH")
      .default_text("KVIST_SOCKET, else the user's or the system's");
  arguments.text("--domain", domain, "The tenant whose pool is meant").value_name("NAME").default_text("the node's own");
  arguments.text("--token-file", token_file, "A file with the token, where the node asks for one").value_name("PATH");
  arguments.duration("--timeout", timeout, "Give up after this");
}

StatusOr<Client> NodeArguments::connect(uint64_t stock_bytes) const {
  ClientOptions options;
  options.socket = socket;
  options.domain = domain;
  options.name = "kvist command";
  options.verify = Verify::kAlways;
  options.pins = 1024;
  options.stock_bytes = stock_bytes;
  if (!token_file.empty()) {
    StatusOr<std::string> token = read_secret_file(token_file, "token");
    if (!token.ok()) return token.status();
    options.token = *std::move(token);
  }
  return Client::connect(options, deadline());
}

// ---- the namespace ------------------------------------------------------------------------------------------------

void SpaceArguments::declare(Arguments& arguments) {
  node.declare(arguments);
  arguments.text("-n,--namespace", space, "The namespace").value_name("NAME").default_text("the only one there is");
  arguments.text("--secret-file", secret_file, "A file with the namespace's tenant secret, if it has one")
      .value_name("PATH");
}

void SpaceArguments::declare_key_form(Arguments& arguments) {
  arguments.flag("--hex", hex, "Keys are written as hexadecimal digits of their bytes");
  arguments.flag("--digest", digests, "Keys are written as digests: 32 hexadecimal digits, as `kvist ls` shows them");
}

StatusOr<Space> SpaceArguments::open(Client& client) const {
  const StatusOr<std::vector<Known>> known = known_spaces(client, node.deadline());
  if (!known.ok()) return known.status();
  StatusOr<Identity> identity = find_identity(*known, space);
  if (!identity.ok()) return identity.status();
  if (!secret_file.empty()) {
    StatusOr<std::string> secret = read_secret_file(secret_file, "tenant secret");
    if (!secret.ok()) return secret.status();
    identity->tenant_secret = *std::move(secret);
  }
  return client.open(*identity, node.deadline());
}

StatusOr<Space> SpaceArguments::open_or_make(Client& client, const std::string& model) const {
  const StatusOr<std::vector<Known>> known = known_spaces(client, node.deadline());
  if (!known.ok()) return known.status();
  const bool there = std::any_of(known->begin(), known->end(), [&](const Known& each) { return each.alias == space; });
  if (there || (space.empty() && !known->empty())) return open(client);
  Identity identity;
  identity.alias = space.empty() ? "kvist" : space;
  identity.model = model;
  if (!secret_file.empty()) {
    StatusOr<std::string> secret = read_secret_file(secret_file, "tenant secret");
    if (!secret.ok()) return secret.status();
    identity.tenant_secret = *std::move(secret);
  }
  return client.open(identity, node.deadline());
}

StatusOr<std::optional<Identity>> find_space(Client& client, const std::string& alias, Deadline deadline) {
  const StatusOr<std::vector<Known>> known = known_spaces(client, deadline);
  if (!known.ok()) return known.status();
  if (std::none_of(known->begin(), known->end(), [&](const Known& each) { return each.alias == alias; })) {
    return std::optional<Identity>();
  }
  StatusOr<Identity> identity = find_identity(*known, alias);
  if (!identity.ok()) return identity.status();
  return std::optional<Identity>(*std::move(identity));
}

// ---- keys ---------------------------------------------------------------------------------------------------------

StatusOr<std::vector<Digest>> SpaceArguments::names(const Space& opened, const std::vector<std::string>& keys) const {
  if (hex && digests) return invalid_argument("--hex and --digest cannot both be meant");
  std::vector<Digest> names;
  for (const std::string& key : keys) {
    if (digests) {
      const StatusOr<Digest> digest = digest_from_hex(key);
      if (!digest.ok()) return digest.status();
      names.push_back(*digest);
      continue;
    }
    std::string bytes = key;
    if (hex) {
      const StatusOr<std::vector<std::byte>> read = from_hex(key);
      if (!read.ok()) return invalid_argument("key '" + printable(key, 64) + "': " + std::string(read.status().message()));
      bytes.assign(reinterpret_cast<const char*>(read->data()), read->size());
    }
    names.push_back(opened.digest(bytes));
    if (names.back().is_zero()) {
      return invalid_argument("'" + printable(key, 64) + "' cannot be a key of this namespace: " +
                              (opened.identity().key_form == KeyForm::kBlockHash
                                   ? "its keys are block hashes of at least 16 bytes (see --hex)"
                                   : "a key has 1 to 4096 bytes"));
    }
  }
  return names;
}

// ---- blocks -------------------------------------------------------------------------------------------------------

namespace {

StatusOr<uint16_t> part_of(const Space& opened, const std::string& part) {
  const std::vector<Part>& parts = opened.identity().parts;
  std::string names;
  const auto count = static_cast<uint16_t>(parts.size());
  for (uint16_t i = 0; i < count; ++i) {
    if (parts[i].name == part) return i;
    names += (i == 0 ? "" : ", ") + std::to_string(i) + " " + parts[i].name;
  }
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (error == std::errc() && end == part.data() + part.size() && number < parts.size()) return number;
  return invalid_argument("the namespace has no part '" + printable(part, 64) + "'; its parts are: " + names);
}

}  // namespace

void BlockArguments::declare(Arguments& arguments, Keys how_many, const std::string& json_help) {
  space.declare(arguments);
  arguments.text("--part", part, "The part of the position: its name or number").value_name("PART");
  space.declare_key_form(arguments);
  if (how_many == Keys::kOne) {
    keys.resize(1);
    arguments.text("KEY", keys[0], "The block's key").required();
  } else {
    arguments.texts("KEY", keys, "The blocks' keys").required();
  }
  arguments.flag("--json", json, json_help);
}

StatusOr<NamedBlocks> BlockArguments::find(const std::string& model) const {
  StatusOr<Client> client = space.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<Space> opened = model.empty() ? space.open(*client) : space.open_or_make(*client, model);
  if (!opened.ok()) return opened.status();
  const StatusOr<uint16_t> number = part_of(*opened, part);
  if (!number.ok()) return number.status();
  StatusOr<std::vector<Digest>> names = space.names(*opened, keys);
  if (!names.ok()) return names.status();
  return NamedBlocks{*std::move(client), *std::move(opened), *number, *std::move(names)};
}

// ---- words --------------------------------------------------------------------------------------------------------

std::string reason_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "done";
    case StatusCode::kNotFound: return "not there";
    case StatusCode::kAlreadyExists: return "there already";
    case StatusCode::kInvalidArgument: return "a length or depth that cannot be: see the block sizes in `kvist ls --json`";
    case StatusCode::kDataLoss: return "its bytes failed their verification; the node was told";
    case StatusCode::kResourceExhausted: return "the pool has no room, or this client is over its quota: see `kvist stat`";
    case StatusCode::kFailedPrecondition: return "its parent is not there, or the namespace was flushed meanwhile";
    case StatusCode::kDeadlineExceeded: return "the node did not answer in time: try a longer --timeout";
    case StatusCode::kUnavailable: return "the node went away";
    case StatusCode::kCancelled:
    case StatusCode::kUnknown:
    case StatusCode::kPermissionDenied:
    case StatusCode::kAborted:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented:
    case StatusCode::kInternal:
    case StatusCode::kUnauthenticated: break;
  }
  return std::string(status_code_name(code));
}

void print_table(const std::vector<std::vector<std::string>>& rows, const std::string& alignment) {
  std::vector<size_t> widths(alignment.size());
  std::vector<std::vector<std::string>> shown = rows;
  for (std::vector<std::string>& row : shown) {
    for (size_t c = 0; c < row.size(); ++c) {
      row[c] = printable(row[c]);
      widths[c] = std::max(widths[c], printed_columns(row[c]));
    }
  }
  for (const std::vector<std::string>& row : shown) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - printed_columns(row[c]), ' ');
      line += (c == 0 ? "" : "  ") + (alignment[c] == 'r' ? space + row[c] : row[c] + space);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
  }
}

}  // namespace kvist::cli

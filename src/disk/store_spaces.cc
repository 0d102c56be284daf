// Namespaces: the table of them in each directory. Flushes and the numbers of new namespaces wait for it.
#include <sys/random.h>

#include <algorithm>

#include "disk/store_state.h"

namespace kvist::disk {
namespace {

constexpr uint64_t kFlushBudgetNs = 10'000'000'000;  // a flush is told by then, whatever the directories do

}  // namespace

// Of several directories' tables the last change counts: one that was not there when a namespace ended does not bring it
// back.
Status Store::adopt_tables() {
  bool found = false;
  std::vector<uint64_t> changes;
  const std::string* first = nullptr;
  for (const auto& directory : directories_) {
    SpaceTable table;
    const Status status = directory->folder->read_table(&table);
    changes.push_back(status.ok() ? table.change : 0);
    if (status.code() == StatusCode::kNotFound) continue;
    if (status.code() == StatusCode::kDataLoss) {
      log_.warn(
          "the table of namespaces is damaged; what lies in the directory is not used, unless another one has the table",
          {{"directory", directory->options.path}, {"reason", status}});
      continue;
    }
    if (!status.ok()) return failed_precondition(std::string(status.message()));
    if (found && table.store != table_.store) {
      return failed_precondition("disk: " + directory->options.path + " and " + *first +
                                 " belong to two stores: use them apart, or remove kvist.disk and the segments of one");
    }
    if (!found || table.change > table_.change) table_ = table;
    found = true;
    first = &directory->options.path;
  }
  if (!found) {
    if (::getrandom(table_.store.data(), table_.store.size(), 0) != static_cast<ssize_t>(table_.store.size())) {
      return internal_error("disk: no random bytes from the kernel");
    }
    table_.change = 1;
  }
  for (size_t i = 0; i < directories_.size(); ++i) {
    if (changes[i] == table_.change) continue;
    if (Status status = directories_[i]->folder->write_table(table_); !status.ok()) return status;
  }
  saved_change_ = known_change_ = table_.change;
  return ok_status();
}

// What lies in a directory besides segments: lock, probe, the table and the one that replaces it.
uint64_t Store::overhead_bytes() const {
  uint64_t table = 4096;
  for (const SpaceEntry& space : table_.spaces) table += 64 + space.alias.size() + space.record.size();
  return 4 * kPage + 2 * round_up(table, kPage);
}

StatusOr<uint32_t> Store::open_space(std::string_view alias, std::string_view record, const NamespaceId& id) {
  // A table with longer ones would be refused by the next start, and all blocks with it.
  if (alias.size() > kMaxAlias || record.size() > kMaxIdentityRecord) {
    return invalid_argument("disk: alias or identity record of a namespace is too long");
  }
  for (SpaceEntry& space : table_.spaces) {
    if (space.id != id) continue;
    if (space.alias != alias) {
      space.alias = alias;
      ++table_.change;
      save_table();
    }
    return space.number;
  }
  if (table_.spaces.size() >= kMaxSpaces || overhead_bytes() + 2 * (record.size() + alias.size()) > kMaxSpaceTable) {
    return resource_exhausted("disk: no room for more namespaces in the table: flush some that are not used");
  }
  SpaceEntry space;
  space.number = table_.next_number++;
  space.id = id, space.alias = alias, space.record = record;
  table_.spaces.push_back(std::move(space));
  newest_space_change_ = ++table_.change;
  save_table();
  return table_.spaces.back().number;
}

void Store::close_space(uint32_t number, std::function<void(const Status&)> done) {
  std::erase_if(table_.spaces, [&](const SpaceEntry& space) { return space.number == number; });
  ++table_.change;
  waiting_.push_back({table_.change, now() + kFlushBudgetNs, std::move(done)});
  save_table();
}

// To all directories; what changes meanwhile follows with the next version.
void Store::save_table() {
  if (saving_ > 0 || saved_change_ == table_.change) return;
  const auto table = std::make_shared<const SpaceTable>(table_);
  saving_status_ = ok_status();
  save_again_ns_ = now() + options_.health.longest_pause_ns;
  for (const auto& directory : directories_) {
    auto status = std::make_shared<Status>();
    if (directory->workers->post([status, table, folder = directory->folder] { *status = folder->write_table(*table); },
                                 [this, status, change = table->change] { table_written(change, *status); })) {
      ++saving_;
    } else {
      ++stats_.table_errors;
      saving_status_ = unavailable("disk: " + directory->options.path + " does not answer");
    }
  }
}

// One directory has the table of that change, or could not be given it.
void Store::table_written(uint64_t change, const Status& status) {
  if (status.ok()) {
    known_change_ = std::max(known_change_, change);
  } else {
    ++stats_.table_errors;
    saving_status_ = status;
  }
  if (--saving_ > 0) {
    tell_untold();  // one that has it is enough for these
    return;
  }
  const Status of_all = saving_status_;
  if (known_change_ < change) failed_change_ = change;
  if (of_all.ok()) {
    saved_change_ = change;
  } else {
    log_.warn("the table of namespaces could not be written: a flush may not outlive a restart; it is tried again",
              {{"reason", of_all}});
  }
  tell_untold();
  tell_waiting([change](const Waiting& waiting) { return waiting.change <= change; }, of_all);
  if (of_all.ok()) save_table();
}

// What a directory that does not answer would hold up for ever, and versions that could not be written.
void Store::watch_table() {
  const uint64_t now_ns = now();
  if (!waiting_.empty()) {
    tell_waiting(
        [now_ns](const Waiting& waiting) { return waiting.due_ns <= now_ns; },
        deadline_exceeded("disk: the table of namespaces could not be written in time, so the flush may not outlive "
                          "a restart: look at the device (dmesg, iostat -x)"));
  }
  if (!closing_ && saved_change_ != table_.change && save_again_ns_ <= now_ns) save_table();
}

void Store::tell_waiting(const std::function<bool(const Waiting&)>& whose, const Status& status) {
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), [&](const auto& each) { return !whose(each); });
  std::vector<Waiting> told(std::make_move_iterator(first), std::make_move_iterator(waiting_.end()));
  waiting_.erase(first, waiting_.end());
  for (const Waiting& waiting : told) {
    if (waiting.done) waiting.done(status);
  }
}

}  // namespace kvist::disk

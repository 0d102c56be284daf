#include "node/counters.h"

namespace kvist {

std::string_view ended_name(Ended reason) {
  switch (reason) {
    case Ended::kBye: return "bye";
    case Ended::kDeath: return "death";
    case Ended::kDisconnect: return "disconnect";
    case Ended::kReleased: return "released";
    case Ended::kNodeStopped: return "node_stopped";
    case Ended::kHelloTimeout: return "hello_timeout";
    case Ended::kNotHelloFirst: return "not_hello_first";
    case Ended::kHelloTwice: return "hello_twice";
    case Ended::kVersion: return "version";
    case Ended::kToken: return "token";
    case Ended::kDomain: return "domain";
    case Ended::kCredentials: return "credentials";
    case Ended::kTooManySessions: return "too_many_sessions";
    case Ended::kTooManyForUser: return "too_many_for_user";
    case Ended::kTooManyPins: return "too_many_pins";
    case Ended::kNoMemory: return "no_memory";
    case Ended::kMalformed: return "malformed";
    case Ended::kOversized: return "oversized";
    case Ended::kSlowReader: return "slow_reader";
    case Ended::kSocketError: return "socket_error";
  }
  return "";
}

std::string_view request_name(size_t type) {
  using wire::MessageType;
  switch (static_cast<MessageType>(type)) {
    case MessageType::kHello: return "hello";
    case MessageType::kOpenSpace: return "open_space";
    case MessageType::kReserve: return "reserve";
    case MessageType::kCommit: return "commit";
    case MessageType::kGiveBack: return "give_back";
    case MessageType::kRemove: return "remove";
    case MessageType::kFlush: return "flush";
    case MessageType::kNoteUse: return "note_use";
    case MessageType::kReportBad: return "report_bad";
    case MessageType::kStat: return "stat";
    case MessageType::kList: return "list";
    case MessageType::kRelease: return "release";
    case MessageType::kBye: return "bye";
    case MessageType::kConfigure: return "configure";
    case MessageType::kFetch: return "fetch";
    case MessageType::kAnswer: break;
  }
  return "";
}

}  // namespace kvist

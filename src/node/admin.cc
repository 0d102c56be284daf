#include "node/admin.h"

#include <httplib.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "base/printable.h"
#include "node/admin_page.h"
#include "node/admin_patience.h"
#include "node/config_schema.h"
#include "node/domain.h"

namespace kvist {
namespace {

constexpr size_t kWorkers = 4;
constexpr size_t kWaiting = 64;                // connections accepted and not yet served; further ones wait in the kernel
constexpr int kWaitingInKernel = 128;          // of those
constexpr size_t kLongestRequest = 256 << 10;  // all of it; a value is at most 4 KiB, the rest is what browsers add
// For a connection, answer included.
constexpr std::chrono::milliseconds kToFinish = AdminServer::kPatience + 2 * AdminPatience::kToAsk;
constexpr std::chrono::milliseconds kLookAround{20};  // a worker that waits looks so often whether others do

// httplib's own pool queues without bound.
class Workers final : public httplib::TaskQueue {
 public:
  // `waiting` outlives this: how many connections wait for a worker.
  explicit Workers(std::atomic<size_t>& waiting) : waiting_(waiting) {
    for (size_t i = 0; i < kWorkers; ++i) threads_.emplace_back([this] { run(); });
  }

  void enqueue(std::function<void()> task) override {
    const auto accepted = AdminPatience::Clock::now();
    waiting_.fetch_add(1, std::memory_order_relaxed);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.size() < kWaiting || stopped_; });
    tasks_.push_back({std::move(task), accepted});
    changed_.notify_all();
  }

  // When the connection was accepted that this worker serves: a task is all that the library hands on.
  static AdminPatience::Clock::time_point accepted() { return accepted_; }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  // Runs what was queued even after shutdown(): a task is what closes its connection.
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !tasks_.empty() || stopped_; });
      if (tasks_.empty()) return;
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      changed_.notify_all();
      lock.unlock();
      accepted_ = task.accepted;
      task.run();
      lock.lock();
    }
  }

  struct Task {
    std::function<void()> run;
    AdminPatience::Clock::time_point accepted;
  };

  static thread_local AdminPatience::Clock::time_point accepted_;

  std::atomic<size_t>& waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // under mutex_
  bool stopped_ = false;    // under mutex_
  std::vector<std::thread> threads_;
};

thread_local AdminPatience::Clock::time_point Workers::accepted_;

// One connection as the library reads and writes it. The library's own stream bounds each read, and so gives a client that
// sends a byte now and then a thread for hours: here all that is read, and all of the connection, has one deadline, which
// comes sooner while others wait. Nor does the library bound a line, the number of headers or a body without a length, all
// of which it keeps, before anybody is asked for a token: here there is an end to what it gets to read.
class TimedStream final : public httplib::Stream {
  using Clock = AdminPatience::Clock;

 public:
  // `waiting`: how many others wait.
  TimedStream(int fd, Clock::time_point accepted, const std::atomic<size_t>& waiting)
      : fd_(fd), waiting_(waiting), patience_(accepted, Clock::now()) {}

  bool is_readable() const override { return begin_ < end_ || wait_to_read(); }
  bool is_writable() const override { return wait(POLLOUT, until_); }

  // The library asks for single bytes.
  ssize_t read(char* to, size_t size) override {
    while (begin_ == end_) {
      if (!wait_to_read()) return -1;
      const ssize_t got = ::recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got == 0) return 0;
      if (got < 0 && errno != EINTR && errno != EAGAIN) return -1;
      if (got < 0) continue;
      left_ -= std::min(left_, static_cast<size_t>(got));
      if (left_ == 0) return -1;
      begun_ = true;
      begin_ = 0;
      end_ = static_cast<size_t>(got);
    }
    const size_t count = std::min(size, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, count, to);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, size_t size) override {
    while (wait(POLLOUT, until_)) {
      const ssize_t sent = ::send(fd_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0 || (errno != EINTR && errno != EAGAIN)) return sent;
    }
    return -1;
  }

  // Nobody here asks who is at the other end.
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return fd_; }

 private:
  bool others_wait() const { return waiting_.load(std::memory_order_relaxed) > 0; }

  // In short steps, so that who begins to wait meanwhile is noticed.
  bool wait_to_read() const {
    if (!begun_ && readable_now()) return true;  // it asked while it waited for a worker, however long that took
    while (true) {
      const Clock::time_point until = patience_.until(begun_, others_wait()), now = Clock::now();
      if (now >= until) return false;
      if (wait(POLLIN, std::min(until, now + kLookAround))) return true;
    }
  }

  bool readable_now() const {
    pollfd wanted = {fd_, POLLIN, 0};
    return ::poll(&wanted, 1, 0) > 0;
  }

  bool wait(short what, Clock::time_point until) const {
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      if (left <= 0) return false;
      pollfd wanted = {fd_, what, 0};
      const int ready = ::poll(&wanted, 1, static_cast<int>(left));
      if (ready != 0 && (ready > 0 || errno != EINTR)) return ready > 0;
    }
  }

  const int fd_;
  const std::atomic<size_t>& waiting_;
  const AdminPatience patience_;
  const Clock::time_point until_ = Clock::now() + kToFinish;
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is in the buffer
  size_t left_ = kLongestRequest;
  bool begun_ = false;  // something has arrived
};

// One request a connection, with TimedStream's deadlines.
class TimedServer final : public httplib::Server {
 public:
  TimedServer() {
    new_task_queue = [this] { return new Workers(waiting_); };
  }

  // The library lets five connections wait; what comes while those are not accepted is asked to come again in seconds.
  void listen_for_more() { ::listen(svr_sock_.load(), kWaitingInKernel); }

  // Connections that wait are closed unserved from now on.
  void close_waiting() { closing_.store(true); }

 private:
  bool process_and_close_socket(socket_t fd) override {
    bool served = false;
    if (!closing_.load()) {
      TimedStream stream(fd, Workers::accepted(), waiting_);
      bool closed = false;
      // A request for parts of an answer gets the whole one, as it may: the library would repeat it for each of the
      // thousands of parts that a line can name, all in memory.
      served = process_request(stream, true, closed, [](httplib::Request& request) { request.ranges.clear(); });
    }
    ::shutdown(fd, SHUT_RDWR);
    ::close(fd);
    return served;
  }

  std::atomic<size_t> waiting_{0};
  std::atomic<bool> closing_{false};
};

constexpr std::array<std::string_view, 9> kReadable = {"/",       "/healthz", "/readyz",  "/version", "/metrics",
                                                       "/config", "/stat",    "/clients", "/spaces"};

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

}  // namespace

class AdminServer::Server {
 public:
  explicit Server(Source source) : source_(std::move(source)) {}

  ~Server() {
    http_.close_waiting();
    http_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status start(const std::string& address) {
    const std::optional<HostPort> where = parse_host_port(address);
    if (!where)
      return invalid_argument("admin.address: '" + printable(address, 64) +
                              "' is no HOST:PORT for the admin HTTP, like 127.0.0.1:9470 or [::1]:0");
    host_ = where->host;
    bound();
    routes();
    int port = where->port;
    if (port == 0) {
      port = http_.bind_to_any_port(host_);
    } else if (!http_.bind_to_port(host_, port)) {
      port = -1;
    }
    if (port <= 0) {
      return failed_precondition(
          "admin.address: the admin HTTP cannot listen on " + address +
          ": in use, or not an address of this host; choose another with --admin HOST:PORT (port 0: any)");
    }
    http_.listen_for_more();
    address_ = (host_.find(':') == std::string::npos ? host_ : "[" + host_ + "]") + ":" + std::to_string(port);
    thread_ = std::thread([this] {
      http_.listen_after_bind();
      ended_.store(true);
    });
    // stop() before the server runs would be lost.
    while (!http_.is_running() && !ended_.load()) std::this_thread::yield();
    return ok_status();
  }

  const std::string& address() const { return address_; }
  bool loopback() const { return host_ == "localhost" || host_ == "::1" || host_.rfind("127.", 0) == 0; }

 private:
  void bound() {
    http_.set_payload_max_length(4096);
    // Not SO_REUSEPORT, which is the library's default: two nodes on one port would share its requests.
    http_.set_socket_options([](socket_t fd) {
      const int yes = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    http_.set_exception_handler([](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
      response.status = 500;
      response.set_content("{\"error\":\"internal\"}\n", "application/json");
    });
    // What has no length would be read until it ends, even for a method that there is not.
    http_.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
      const bool body = request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
      return !body && refuse_method(request, response) ? httplib::Server::HandlerResponse::Handled
                                                       : httplib::Server::HandlerResponse::Unhandled;
    });
    http_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      if (response.status == 404 && refuse_method(request, response)) return;
      std::string paths;
      for (const std::string_view path : kReadable) paths += (paths.empty() ? "" : ",") + json_string(path);
      response.set_content("{\"error\":" + std::to_string(response.status) + ",\"paths\":[" + paths + "]}\n",
                           "application/json");
    });
  }

  // Whether it is that for which the request cannot be answered.
  static bool refuse_method(const httplib::Request& request, httplib::Response& response) {
    const char* allowed = methods_of(request.path);
    if (allowed == nullptr || std::string_view(allowed).find(request.method) != std::string_view::npos) return false;
    response.status = 405;
    response.set_header("Allow", allowed);
    response.set_content("{\"error\":405,\"allow\":" + json_string(allowed) + "}\n", "application/json");
    return true;
  }

  // What can be done with a path; null: there is no such path.
  static const char* methods_of(std::string_view path) {
    constexpr std::string_view kSettings = "/config/";
    if (std::find(kReadable.begin(), kReadable.end(), path) != kReadable.end()) return "GET, HEAD";
    if (path.substr(0, kSettings.size()) == kSettings && find_config_key(path.substr(kSettings.size())) != nullptr)
      return "PUT";
    return nullptr;
  }

  void routes() {
    http_.Get("/", [](const httplib::Request&, httplib::Response& response) {
      // It asks this node alone, and shows what clients say as text: this is in case it ever did not.
      response.set_header("Content-Security-Policy",
                          "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
                          "frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
      response.set_header("X-Content-Type-Options", "nosniff");
      const std::string_view page = admin_page();
      response.set_content(page.data(), page.size(), "text/html; charset=utf-8");
    });
    http_.Get("/healthz", [this](const httplib::Request&, httplib::Response& response) {
      const bool alive = source_.alive();
      say(response, alive, alive ? "alive" : "the node's loop does not answer");
    });
    http_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      const std::string_view state = source_.state();
      say(response, state == "ready", state);
    });
    http_.Get("/version", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content("{\"version\":" + json_string(source_.version) + "}\n", "application/json");
    });
    report("/stat", Report::kNode);
    report("/clients", Report::kClients);
    report("/spaces", Report::kSpaces);
    report("/config", Report::kConfig);
    report("/metrics", Report::kMetrics, "text/plain; version=0.0.4; charset=utf-8");
    http_.Put(R"(/config/([a-z_.]{1,64}))", [this](const httplib::Request& request, httplib::Response& response) {
      if (!authorized(request, response)) return;
      const StatusOr<std::string> done = source_.configure(request.matches[1].str(), request.body);
      response.status = done.ok() ? 200 : http_status(done.status().code());
      response.set_content(done.ok() ? "{\"done\":" + json_string(*done) + "}\n"
                                     : "{\"error\":" + json_string(done.status().message()) + "}\n",
                           "application/json");
    });
  }

  // Says what is missing if it is not.
  bool authorized(const httplib::Request& request, httplib::Response& response) const {
    constexpr std::string_view kScheme = "Bearer ";  // in whatever case: RFC 9110, 11.1
    const std::string given = request.get_header_value("Authorization");
    const bool bearer = ::strncasecmp(given.c_str(), kScheme.data(), kScheme.size()) == 0;
    if (!source_.token.empty() && bearer && same_token(std::string_view(given).substr(kScheme.size()), source_.token)) {
      return true;
    }
    source_.unauthorized();
    response.status = source_.token.empty() ? 403 : 401;
    if (response.status == 401) response.set_header("WWW-Authenticate", "Bearer");
    response.set_content(source_.token.empty()
                             ? "{\"error\":\"this node changes nothing over HTTP: it has no admin.token_file\"}\n"
                             : "{\"error\":\"the header Authorization: Bearer TOKEN is missing or wrong\"}\n",
                         "application/json");
    return false;
  }

  static int http_status(StatusCode code) {
    switch (code) {
      case StatusCode::kNotFound: return 404;
      case StatusCode::kInvalidArgument:
      case StatusCode::kOutOfRange: return 400;
      case StatusCode::kFailedPrecondition: return 409;
      case StatusCode::kUnavailable: return 503;
      default: return 500;
    }
  }

  static void say(httplib::Response& response, bool good, std::string_view state) {
    response.status = good ? 200 : 503;
    response.set_content("{\"state\":" + json_string(state) + "}\n", "application/json");
  }

  void report(const char* path, Report what, const char* type = "application/json") {
    http_.Get(path, [this, what, type](const httplib::Request&, httplib::Response& response) {
      StatusOr<std::string> text = source_.report(what);
      if (text.ok()) {
        response.set_content(text->back() == '\n' ? *std::move(text) : *text + "\n", type);
      } else {
        say(response, false, text.status().to_string());
      }
    });
  }

  Source source_;
  TimedServer http_;
  std::string host_, address_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

AdminServer::AdminServer(std::unique_ptr<Server> server) : server_(std::move(server)) {}
AdminServer::~AdminServer() = default;

StatusOr<std::unique_ptr<AdminServer>> AdminServer::start(const std::string& address, Source source) {
  auto server = std::make_unique<Server>(std::move(source));
  if (Status s = server->start(address); !s.ok()) return s;
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(server)));
}

const std::string& AdminServer::address() const { return server_->address(); }
bool AdminServer::loopback() const { return server_->loopback(); }

}  // namespace kvist

// The conversation on a socket whose other end is the test: late, wrong, missing and interrupted answers.
#include "client/channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvist::client {
namespace {

using std::chrono::milliseconds;
using wire::MessageType;

class ChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const timeval limit = {20, 0};
    ::setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    node_.reset(ends[1]);
    channel_ = std::make_unique<Channel>(FileDescriptor(ends[0]), 8, wire::kMaxPacket);
  }

  struct Call {
    std::shared_ptr<Exchange> exchange;
    int taken = 0;
    Status status;
    std::string body;
  };
  std::shared_ptr<Call> make_call() {
    auto call = std::make_shared<Call>();
    call->exchange = std::make_shared<Exchange>(MessageType::kStat,
                                                [call = call.get()](const Status& status, std::span<const std::byte> body) {
                                                  ++call->taken;
                                                  call->status = status;
                                                  call->body.assign(reinterpret_cast<const char*>(body.data()), body.size());
                                                });
    return call;
  }
  Status send(Call& call, Deadline deadline = within(std::chrono::seconds(20)), size_t bytes = 8) {
    wire::Builder packet;
    packet.start(MessageType::kStat, 0);
    packet.add_text(std::string(bytes, 'x'));
    return channel_->send(call.exchange, packet.finish(), deadline);
  }

  // ---- the node's side ----

  // The number of the next request; 0: none came.
  uint32_t receive_request() {
    std::vector<std::byte> packet(wire::kMaxPacket);
    const ssize_t got = ::recv(node_.get(), packet.data(), packet.size(), 0);
    wire::Header header;
    std::span<const std::byte> body;
    if (got <= 0 || !wire::open_packet({packet.data(), static_cast<size_t>(got)}, &header, &body)) return 0;
    return header.request;
  }
  void answer(uint32_t request, const std::string& text, StatusCode code = StatusCode::kOk,
              MessageType type = MessageType::kStat) {
    wire::Builder packet;
    packet.start(static_cast<MessageType>(static_cast<uint16_t>(type) | static_cast<uint16_t>(MessageType::kAnswer)),
                 request, code);
    packet.add_text(text);
    send_raw(packet.finish());
  }
  void send_raw(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(node_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  FileDescriptor node_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(ChannelTest, AnswersGoToTheirRequests) {
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(make_call());
    ASSERT_TRUE(send(*calls.back()).ok());
  }
  for (int i = 0; i < 8; ++i) {
    const uint32_t request = receive_request();
    answer(request, std::to_string(i), i == 5 ? StatusCode::kNotFound : StatusCode::kOk);
  }
  // Waiting for the last takes in all.
  EXPECT_TRUE(channel_->wait(*calls[7]->exchange, within(std::chrono::seconds(20))));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(calls[i]->taken, 1);
    if (i == 5) {
      EXPECT_EQ(calls[i]->status.code(), StatusCode::kNotFound);
      EXPECT_EQ(calls[i]->status.message(), "5");
    } else {
      EXPECT_EQ(calls[i]->body, std::to_string(i));
    }
  }
  EXPECT_EQ(channel_->in_flight(), 0u);
}

TEST_F(ChannelTest, ALateAnswerIsStillTaken) {
  const auto late = make_call(), next = make_call();
  ASSERT_TRUE(send(*late).ok());
  EXPECT_FALSE(channel_->wait(*late->exchange, within(milliseconds(5))));
  EXPECT_EQ(late->taken, 0);
  ASSERT_TRUE(send(*next).ok());
  answer(receive_request(), "late");
  answer(receive_request(), "next");
  EXPECT_TRUE(channel_->wait(*next->exchange, within(std::chrono::seconds(20))));
  EXPECT_EQ(late->taken, 1);
  EXPECT_EQ(late->body, "late");
  EXPECT_TRUE(channel_->wait(*late->exchange, within(milliseconds(0))));
}

TEST_F(ChannelTest, NoMoreThanTheWindowAreUnanswered) {
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(make_call());
    ASSERT_TRUE(send(*calls.back()).ok());
  }
  const auto ninth = make_call();
  EXPECT_EQ(send(*ninth, within(milliseconds(5))).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ninth->taken, 0) << "it was not begun";
  std::thread node([&] {
    for (int i = 0; i < 9; ++i) answer(receive_request(), "x");
  });
  EXPECT_TRUE(send(*ninth).ok()) << "the sender itself takes in the answers that make room";
  EXPECT_TRUE(channel_->wait(*ninth->exchange, within(std::chrono::seconds(20))));
  node.join();
}

TEST_F(ChannelTest, AFullSocketWaitsForTheNode) {
  const int small = 4096;
  ASSERT_EQ(::setsockopt(channel_->fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  std::vector<std::shared_ptr<Call>> calls;
  Status status;
  for (int i = 0; i < 8 && status.ok(); ++i) {
    calls.push_back(make_call());
    status = send(*calls.back(), within(milliseconds(5)), 3000);
  }
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(channel_->in_flight(), 8u);
  EXPECT_EQ(calls.back()->taken, 0);
  const size_t sent = channel_->in_flight();
  std::thread node([&] {
    for (size_t i = 0; i < sent + 1; ++i) answer(receive_request(), "x");
  });
  EXPECT_TRUE(send(*calls.back(), within(std::chrono::seconds(20)), 3000).ok());
  EXPECT_TRUE(channel_->wait(*calls.back()->exchange, within(std::chrono::seconds(20))));
  node.join();
}

TEST_F(ChannelTest, WhatIsNoAnswerEndsIt) {
  struct Case {
    const char* what;
    std::function<void(uint32_t)> send;
  };
  const Case cases[] = {
      {"another number", [&](uint32_t n) { answer(n + 1, "x"); }},
      {"another type", [&](uint32_t n) { answer(n, "x", StatusCode::kOk, MessageType::kFlush); }},
      {"garbage", [&](uint32_t) { send_raw(std::as_bytes(std::span("some garbage that is long enough", 32))); }},
      {"a cut header", [&](uint32_t) { send_raw(std::as_bytes(std::span("KST1", 4))); }},
      {"the end", [&](uint32_t) { node_.reset(); }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    SetUp();
    const auto first = make_call(), second = make_call(), third = make_call();
    ASSERT_TRUE(send(*first).ok());
    ASSERT_TRUE(send(*second).ok());
    each.send(receive_request());
    EXPECT_TRUE(channel_->wait(*second->exchange, within(std::chrono::seconds(20)))) << "told, not left waiting";
    for (const auto& call : {first, second}) {
      EXPECT_EQ(call->taken, 1);
      EXPECT_EQ(call->status.code(), StatusCode::kUnavailable);
    }
    EXPECT_TRUE(channel_->failed());
    EXPECT_EQ(send(*third).code(), StatusCode::kUnavailable);
    EXPECT_EQ(third->taken, 0);
  }
}

TEST_F(ChannelTest, ARefusalOfTheProtocolIsPassedOn) {
  const auto call = make_call();
  ASSERT_TRUE(send(*call).ok());
  answer(receive_request() + 77, "this is no message of mine", StatusCode::kInvalidArgument);
  EXPECT_TRUE(channel_->wait(*call->exchange, within(std::chrono::seconds(20))));
  EXPECT_NE(call->status.message().find("this is no message of mine"), std::string_view::npos) << call->status.to_string();
}

// An answer that could not be taken in is lost. Whoever waits for it, and for others, must not wait on.
TEST_F(ChannelTest, AnAnswerThatCannotBeTakenInEndsIt) {
  const auto before = make_call(), after = make_call(), next = make_call();
  const auto throwing = std::make_shared<Exchange>(
      MessageType::kStat, [](const Status&, std::span<const std::byte>) { throw std::bad_alloc(); });
  ASSERT_TRUE(send(*before).ok());
  wire::Builder packet;
  packet.start(MessageType::kStat, 0);
  ASSERT_TRUE(channel_->send(throwing, packet.finish(), within(std::chrono::seconds(20))).ok());
  ASSERT_TRUE(send(*after).ok());
  std::thread other([&] { EXPECT_TRUE(channel_->wait(*after->exchange, within(std::chrono::seconds(20)))); });
  answer(receive_request(), "one");
  answer(receive_request(), "two");
  EXPECT_TRUE(channel_->wait(*throwing, within(std::chrono::seconds(20))));
  other.join();
  EXPECT_EQ(before->body, "one");
  EXPECT_EQ(after->status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(after->taken, 1);
  EXPECT_TRUE(channel_->failed());
  EXPECT_EQ(send(*next).code(), StatusCode::kUnavailable);
  EXPECT_EQ(channel_->in_flight(), 0u);
}

// The same when the channel fails: it asks each for the last time.
TEST_F(ChannelTest, FailingAsksThoseThatThrowToo) {
  std::vector<std::shared_ptr<Exchange>> exchanges;
  int told = 0;
  for (int i = 0; i < 4; ++i) {
    exchanges.push_back(std::make_shared<Exchange>(MessageType::kStat, [&](const Status&, std::span<const std::byte>) {
      ++told;
      throw std::bad_alloc();
    }));
    wire::Builder packet;
    packet.start(MessageType::kStat, 0);
    ASSERT_TRUE(channel_->send(exchanges.back(), packet.finish(), within(std::chrono::seconds(20))).ok());
  }
  channel_->fail(unavailable("test"));
  EXPECT_EQ(told, 4);
  for (const auto& exchange : exchanges) EXPECT_TRUE(channel_->wait(*exchange, within(std::chrono::seconds(20))));
}

// Many threads, one socket: each gets its own answer, whoever reads it.
TEST_F(ChannelTest, ThreadsReadForEachOther) {
  constexpr int kThreads = 12, kRounds = 300;
  std::atomic<int> wrong{0};
  std::thread node([&] {
    for (int i = 0; i < kThreads * kRounds; ++i) {
      const uint32_t request = receive_request();
      answer(request, std::to_string(request));
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        std::string body;
        const auto exchange =
            std::make_shared<Exchange>(MessageType::kStat, [&](const Status&, std::span<const std::byte> bytes) {
              body.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
            });
        wire::Builder packet;
        packet.start(MessageType::kStat, 0);
        const std::span<std::byte> bytes = packet.finish();
        if (!channel_->send(exchange, bytes, within(std::chrono::seconds(20))).ok() ||
            !channel_->wait(*exchange, within(std::chrono::seconds(20)))) {
          ++wrong;
          return;
        }
        wire::Header header;
        std::memcpy(&header, bytes.data(), sizeof(header));
        wrong += body != std::to_string(header.request);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  node_.reset();
  node.join();
}

// Failing while others wait, send and take: each exchange is told once, and nobody hangs.
TEST_F(ChannelTest, FailingUnderLoad) {
  for (int round = 0; round < 20; ++round) {
    SetUp();
    std::atomic<int> begun{0}, told{0};
    std::atomic<bool> stop{false};
    std::thread node([&] {
      for (int i = 0; i < 50 * (round % 4); ++i) answer(receive_request(), "x");
      if (round % 2 == 0) channel_->fail(unavailable("test"));
      stop = true;
      if (round % 2 == 1) node_.reset();
    });
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&] {
        while (true) {
          const auto exchange =
              std::make_shared<Exchange>(MessageType::kStat, [&](const Status&, std::span<const std::byte>) { ++told; });
          wire::Builder packet;
          packet.start(MessageType::kStat, 0);
          ++begun;
          if (!channel_->send(exchange, packet.finish(), within(std::chrono::seconds(20))).ok()) {
            --begun;
            return;
          }
          EXPECT_TRUE(channel_->wait(*exchange, within(std::chrono::seconds(20))));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    node.join();
    EXPECT_EQ(begun, told);
  }
}

}  // namespace
}  // namespace kvist::client

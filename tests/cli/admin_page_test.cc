// The page at / of the admin HTTP, in a real browser: what it shows of a pool in use, on a desk and on a telephone.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "client/doors.h"
#include "node/http.h"

namespace kvist::test {
namespace {

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (std::system((std::string("command -v ") + name + " >/dev/null 2>&1").c_str()) == 0) return name;
  }
  return "";
}

// The document as it is after the page ran for some seconds in a window of this size; optionally a picture of it.
std::string visit(const std::string& url, int width, int height, const std::string& picture = "") {
  Folder profile;
  const std::string command =
      "timeout 100 " + browser() +
      " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
      "--disable-background-networking --virtual-time-budget=4500 --user-data-dir=" +
      profile.file("profile") + " --window-size=" + std::to_string(width) + "," + std::to_string(height) +
      (picture.empty() ? " --dump-dom" : " --screenshot=" + picture) + " " + url + " 2>/dev/null";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> buffer;
  size_t size;
  while ((size = ::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) text.append(buffer.data(), size);
  ::pclose(pipe);
  return text;
}

std::string attribute(const std::string& document, const std::string& name) {
  std::smatch match;
  return std::regex_search(document, match, std::regex("data-" + name + "=\"([^\"]*)\"")) ? match[1].str() : "";
}

// The element's text, tags taken out.
std::string text_of(const std::string& document, const std::string& id) {
  std::smatch match;
  const std::regex element("id=\"" + id + "\"[^>]*>([^<]*)<");
  return std::regex_search(document, match, element) ? match[1].str() : "";
}

class AdminPage : public testing::Test {
 protected:
  AdminPage() : node_([](NodeOptions& o) { o.version = "0.0.test"; }) {}
  void SetUp() override {
    if (!loopback_is_up()) GTEST_SKIP() << "the loopback interface is down here";
    ASSERT_TRUE(node_.ok()) << node_.status().to_string();
  }
  std::string address() { return node_.node().admin_address(); }
  std::string url() { return "http://" + address() + "/"; }

  // Clients that put and get, one of them with a name that is HTML.
  void use() {
    for (const char* name : {"vllm-worker-0", "<b onclick=alert(1)>me</b>"}) {
      ClientOptions options;
      options.socket = node_.socket();
      options.name = name;
      StatusOr<Client> client = Client::connect(options);
      ASSERT_TRUE(client.ok()) << client.status().to_string();
      StatusOr<Space> space = client->open(identity("page"));
      ASSERT_TRUE(space.ok()) << space.status().to_string();
      const std::vector<Digest> digests = random_digests(random_, 300);
      Sources sources(digests, 64 << 10);
      for (size_t i = 0; i < digests.size(); ++i) {
        space->put({.positions = std::span(digests).subspan(i, 1)}, sources.gathers().subspan(i, 1),
                   std::span(sources.results).subspan(i, 1));
      }
      Destinations into(digests.size(), 64 << 10);
      space->get(digests, into.scatters(), into.results);
      clients_.push_back(*std::move(client));
    }
  }

  ThreadNode node_;
  Random random_{test_seed()};
  std::vector<Client> clients_;
};

TEST_F(AdminPage, IsOneFileThatAsksThisNodeAlone) {
  const HttpAnswer page = http_get(address(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body.rfind("<!doctype html>", 0), 0u);
  for (const char* elsewhere : {"http://", "https://", "//cdn", "src=", "@import", "innerHTML", "<link"}) {
    EXPECT_EQ(page.body.find(elsewhere), std::string::npos) << elsewhere;
  }
}

TEST_F(AdminPage, ShowsThePoolLiveInABrowser) {
  if (browser().empty()) GTEST_SKIP() << "no Chromium is installed (package chromium)";
  use();
  const std::string document = visit(url(), 1280, 900);
  ASSERT_FALSE(document.empty()) << "the browser did not run";
  EXPECT_GE(std::atoi(attribute(document, "turns").c_str()), 2) << document.substr(0, 4000);
  EXPECT_EQ(text_of(document, "state"), "ready");
  EXPECT_NE(text_of(document, "about").find("version 0.0.test"), std::string::npos) << text_of(document, "about");
  EXPECT_NE(text_of(document, "read-note").find(" in all"), std::string::npos);
  EXPECT_EQ(text_of(document, "put-note").rfind("600 blocks, 37.5 MiB", 0), 0u) << text_of(document, "put-note");
  EXPECT_EQ(text_of(document, "clients-title"), "2 clients");
  EXPECT_NE(document.find(">vllm-worker-0<"), std::string::npos);
  // What a client calls itself is text.
  EXPECT_NE(document.find("&lt;b onclick=alert(1)&gt;me"), std::string::npos);
  EXPECT_EQ(document.find("<b onclick"), std::string::npos);
  for (const char* stage : {"lookup", "reserve", "copy", "verify", "commit", "evict"}) {
    EXPECT_NE(document.find("<td>" + std::string(stage) + "</td>"), std::string::npos) << stage;
  }
  EXPECT_NE(document.find("class=\"blocks\""), std::string::npos) << "the bar of the capacity";
  // Engines of one name differ by it.
  EXPECT_NE(document.find("vllm-worker-0<span class=\"narrow soft\"> pid " + std::to_string(::getpid()) + "<"),
            std::string::npos);
  EXPECT_TRUE(std::regex_search(text_of(document, "about"), std::regex(", up [0-9]+ (s|min),")))
      << text_of(document, "about");
  EXPECT_EQ(document.find("<body class=\"gone\""), std::string::npos);
}

// Opened from a file it has nobody to ask, as when the node has ended.
TEST_F(AdminPage, SaysThatWhatItShowsIsOld) {
  if (browser().empty()) GTEST_SKIP() << "no Chromium is installed (package chromium)";
  Folder folder;
  std::ofstream(folder.file("page.html")) << http_get(address(), "/").body;
  const std::string document = visit("file://" + folder.file("page.html"), 1280, 900);
  EXPECT_EQ(text_of(document, "state"), "no answer");
  EXPECT_NE(document.find("<body class=\"gone\""), std::string::npos);
}

// In the narrowest window that the browser makes.
TEST_F(AdminPage, FitsANarrowWindow) {
  if (browser().empty()) GTEST_SKIP() << "no Chromium is installed (package chromium)";
  use();
  const std::string width = attribute(visit(url(), 500, 900), "width");
  ASSERT_NE(width, "");
  const int window = std::atoi(width.c_str()), content = std::atoi(width.substr(width.find("of ") + 3).c_str());
  EXPECT_LE(content, window) << "it would scroll sideways";
}

// KVIST_PICTURES=FOLDER writes pictures of the page there.
TEST_F(AdminPage, PicturesForThoseWhoWantToLook) {
  const char* folder = std::getenv("KVIST_PICTURES");
  if (folder == nullptr) GTEST_SKIP() << "set KVIST_PICTURES to a folder";
  if (browser().empty()) GTEST_SKIP() << "no Chromium is installed (package chromium)";
  use();
  visit(url(), 1280, 1000, std::string(folder) + "/wide.png");
  visit(url(), 500, 1700, std::string(folder) + "/narrow.png");
  EXPECT_TRUE(std::ifstream(std::string(folder) + "/wide.png").good());
}

}  // namespace
}  // namespace kvist::test

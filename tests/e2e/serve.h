// A running `headrace serve` and what clients ask it, for tests.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "tests/e2e/model.h"
#include "tests/e2e/process.h"
#include "tests/serve/http_client.h"

namespace headrace::testing {

// Parts of a server-sent event stream: the data of each event, and the comments.
struct Events {
  std::vector<std::string> data;
  int comments = 0;
};
inline Events events_of(const std::string& body) {
  Events out;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    const std::string event = body.substr(at, end - at);
    if (event.rfind("data: ", 0) == 0) out.data.push_back(event.substr(6));
    if (event.rfind(":", 0) == 0) ++out.comments;
    if (end == std::string::npos) break;
    at = end + 2;
  }
  return out;
}

class Serve : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  static void SetUpTestSuite() {
    shared_ = new Folder;
    write_streamed_model(*shared_ / "fox.gguf");
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  void TearDown() override {
    if (!process_) return;
    process_->send(SIGKILL);
    process_->wait();
  }

  static std::string model() { return *shared_ / "fox.gguf"; }

  // Returns once the server is ready; a failure when it ends before.
  void start(std::vector<std::string> more = {}, const std::string& memory = "64MiB",
             const Process::Options& options = {}) {
    std::vector<std::string> words = {"serve", model(), "--memory", memory, "--port", "0",
                                      "--threads", "2"};
    words.insert(words.end(), more.begin(), more.end());
    process_.emplace(folder_, words, options);
    ASSERT_TRUE(process_->wait_for_output(1)) << process_->wait().err;
    const std::string line = slurp(folder_ / "stdout");
    const size_t colon = line.find(':', line.find("http://") + 7);
    // "[::1]" has colons of its own.
    const size_t bracket = line.find("]:");
    port_ = static_cast<uint16_t>(std::stoi(
        line.substr((bracket == std::string::npos ? colon : bracket + 1) + 1)));
  }
  // SIGTERM, and what came of it.
  Finished stop() {
    process_->send(SIGTERM);
    Finished f = process_->wait();
    process_.reset();
    return f;
  }

  HttpClient client() const { return HttpClient(port_); }
  ClientReply ask(const std::string& bytes) const { return client().ask(bytes); }
  ClientReply post_json(const std::string& path, const Json& body) const {
    return ask(post(path, body.dump()));
  }
  // Body of a reply as JSON; null when it is none.
  static Json json(const ClientReply& reply) {
    Json j = Json::parse(reply.body, nullptr, false);
    return j.is_discarded() ? Json() : j;
  }
  // The text of one greedy completion.
  std::string complete(const std::string& prompt, int tokens, const Json& more = {}) const {
    Json body = {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0},
                 {"ignore_eos", true}};
    if (!more.is_null()) body.update(more);
    const ClientReply reply = post_json("/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? json(reply)["choices"][0]["text"].get<std::string>() : "";
  }
  Json live() const { return json(ask(get("/live"))); }
  // VmHWM of the server in bytes.
  int64_t peak_rss() const {
    const std::string status = slurp("/proc/" + std::to_string(process_->pid()) + "/status");
    const size_t at = status.find("VmHWM:");
    return at == std::string::npos ? 0 : std::stoll(status.substr(at + 6)) * 1024;
  }

  static Folder* shared_;
  Folder folder_;
  std::optional<Process> process_;
  uint16_t port_ = 0;
};
inline Folder* Serve::shared_ = nullptr;

}  // namespace headrace::testing

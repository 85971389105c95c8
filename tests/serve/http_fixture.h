// A server whose handler knows a few paths, for tests.
//
//   /echo    method, path, query and body back, as text
//   /hold    nothing: the test takes the reply from `held` and answers
//   /stream  three chunks "data: N\n\n", from another thread
//   /drop    the handler drops the reply
//   /throw   the handler throws
//   /large   1 MiB of 'x'
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "headrace/serve/http_server.h"
#include "tests/serve/http_client.h"

namespace headrace {

class HttpServerTest : public testing::Test {
 protected:
  void TearDown() override {
    {
      std::lock_guard lock(mutex_);
      held_.clear();
    }
    for (std::thread& t : threads_) t.join();
    server_.reset();
  }

  void start(HttpOptions options = {}) {
    if (options.port == 8080) options.port = 0;
    options_ = options;
    auto server = HttpServer::listen(options, [this](HttpRequest r, std::shared_ptr<HttpReply> p) {
      handle(std::move(r), std::move(p));
    });
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }

  HttpClient client() { return HttpClient(server_->port()); }

  // Waits until the handler holds `count` replies, and gives the last one.
  std::shared_ptr<HttpReply> held(size_t count = 1) {
    std::shared_ptr<HttpReply> reply;
    wait_until([&] {
      std::lock_guard lock(mutex_);
      if (held_.size() < count) return false;
      reply = held_[count - 1];
      return true;
    });
    return reply;
  }
  // Asks for /hold, and gives the reply to it: the `count`-th that is held.
  std::shared_ptr<HttpReply> hold(HttpClient& client, size_t count = 1) {
    EXPECT_TRUE(client.send(get("/hold")));
    return held(count);
  }
  int closed_calls() {
    std::lock_guard lock(mutex_);
    return closed_calls_;
  }

  HttpOptions options_;
  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpReply>> held_;
  std::vector<HttpRequest> requests_;
  int closed_calls_ = 0;
  std::vector<std::thread> threads_;

 private:
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/echo") {
      reply->send(200, "text/plain",
                  request.method + " " + request.path + "?" + request.query + "\n" + request.body,
                  {{"X-Echo", std::string(request.header("x-say"))}});
    } else if (request.path == "/hold") {
      reply->on_close([this] {
        std::lock_guard lock(mutex_);
        ++closed_calls_;
      });
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(reply));
      requests_.push_back(std::move(request));
    } else if (request.path == "/stream") {
      std::lock_guard lock(mutex_);
      threads_.emplace_back([reply] {
        reply->begin_stream("text/event-stream", {{"Cache-Control", "no-cache"}});
        for (const char* chunk : {"data: 1\n\n", "", "data: 2\n\n", "data: 3\n\n"}) {
          reply->write(chunk);
        }
        reply->end();
      });
    } else if (request.path == "/large") {
      reply->send(200, "text/plain", std::string(1 << 20, 'x'));
    } else if (request.path == "/throw") {
      throw std::runtime_error("on purpose");
    } else if (request.path != "/drop") {
      reply->send(404, "application/json", "{}");
    }
  }
};

}  // namespace headrace

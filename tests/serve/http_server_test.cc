// What a well-behaved client meets.
#include "headrace/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "headrace/serve/http_access.h"
#include "tests/serve/http_fixture.h"

namespace headrace {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST_F(HttpServerTest, ARequestIsAnsweredWithDateServerAndId) {
  start();
  auto c = client();
  const ClientReply r = c.ask(post("/echo?a=1&b=2", "hello"));
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body, "POST /echo?a=1&b=2\nhello");
  EXPECT_EQ(r.headers.at("server"), "headrace");
  EXPECT_EQ(r.headers.at("content-type"), "text/plain");
  EXPECT_EQ(r.headers.at("date").size(), 29u);
  EXPECT_THAT(r.headers.at("date"), HasSubstr(" GMT"));
  EXPECT_THAT(r.headers.at("x-request-id"), testing::StartsWith("req-"));
  EXPECT_EQ(r.headers.count("access-control-allow-origin"), 0u);
}

TEST_F(HttpServerTest, AClientsRequestIdComesBackUnlessItIsNotPrintable) {
  start();
  auto c = client();
  EXPECT_EQ(c.ask(get("/echo", "X-Request-Id: mine-7\r\n")).headers.at("x-request-id"), "mine-7");
  EXPECT_THAT(c.ask(get("/echo", "X-Request-Id: a b\r\n")).headers.at("x-request-id"),
              testing::StartsWith("req-"));
}

TEST_F(HttpServerTest, KeepAliveServesManyRequestsOnOneConnection) {
  start();
  auto c = client();
  for (int i = 0; i < 200; ++i) {
    const std::string body = "n" + std::to_string(i);
    ASSERT_EQ(c.ask(post("/echo", body)).body, "POST /echo?\n" + body);
  }
  EXPECT_EQ(server_->stats().accepted, 1);
  EXPECT_EQ(server_->stats().requests, 200);
}

TEST_F(HttpServerTest, ConnectionCloseClosesAfterTheReply) {
  start();
  auto c = client();
  ASSERT_TRUE(c.send(get("/echo", "Connection: close\r\n")));
  const ClientReply r = c.read_reply();
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.headers.at("connection"), "close");
  EXPECT_EQ(c.read_to_end(), "");
}

TEST_F(HttpServerTest, Http10IsClosedAfterTheReplyUnlessItAsksForMore) {
  start();
  auto c = client();
  ASSERT_TRUE(c.send("GET /echo HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(c.read_reply().status, 200);
  EXPECT_EQ(c.read_to_end(), "");
  auto again = client();
  const std::string kept = "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
  EXPECT_EQ(again.ask(kept).headers.at("connection"), "keep-alive");
  EXPECT_EQ(again.ask(kept).status, 200);
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInTheirOrder) {
  start();
  auto c = client();
  std::string all;
  for (int i = 0; i < 50; ++i) all += post(i % 5 == 0 ? "/stream" : "/echo", std::to_string(i));
  ASSERT_TRUE(c.send(all));
  for (int i = 0; i < 50; ++i) {
    const ClientReply r = c.read_reply();
    ASSERT_EQ(r.status, 200);
    ASSERT_EQ(r.body, i % 5 == 0 ? "data: 1\n\ndata: 2\n\ndata: 3\n\n"
                                 : "POST /echo?\n" + std::to_string(i));
  }
}

TEST_F(HttpServerTest, ChunkedBodiesArePutTogetherHoweverTheyAreCut) {
  start();
  const std::string whole =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;note=1\r\nhello\r\n1\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
  const std::string empty =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  auto c = client();
  EXPECT_EQ(c.ask(whole).body, "POST /echo?\nhello 0123456789");
  EXPECT_EQ(c.ask(empty).body, "POST /echo?\n");
  for (const std::string& text : {whole, empty}) {
    for (const char byte : text) ASSERT_TRUE(c.send({&byte, 1}));
  }
  EXPECT_EQ(c.read_reply().body, "POST /echo?\nhello 0123456789");
  EXPECT_EQ(c.read_reply().body, "POST /echo?\n");
}

TEST_F(HttpServerTest, ExpectContinueIsAnsweredBeforeTheBodyIsSent) {
  start();
  auto c = client();
  ASSERT_TRUE(c.send("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                     "Content-Length: 3\r\n\r\n"));
  EXPECT_EQ(c.read_reply().status, 100);
  EXPECT_EQ(c.ask("abc").body, "POST /echo?\nabc");
  ASSERT_TRUE(c.send("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n"
                     "Content-Length: 3\r\n\r\n"));
  EXPECT_EQ(c.read_reply().status, 417);
}

TEST_F(HttpServerTest, HeadGetsTheHeadOfAGet) {
  start();
  auto c = client();
  ASSERT_TRUE(c.send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
  const ClientReply r = c.read_reply(true);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.headers.at("content-length"), "11");
  ASSERT_TRUE(c.send("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(c.read_reply(true).status, 200);
  EXPECT_EQ(c.ask(get("/echo")).body, "GET /echo?\n");
}

TEST_F(HttpServerTest, OptionsNamesTheMethods) {
  start();
  auto c = client();
  const ClientReply r = c.ask("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(r.status, 204);
  EXPECT_EQ(r.headers.at("allow"), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(c.ask(get("/echo")).status, 200);
}

TEST_F(HttpServerTest, EveryChunkOfAStreamIsSentAtOnce) {
  start();
  auto c = client();
  auto reply = hold(c);
  EXPECT_TRUE(reply->open());
  ASSERT_TRUE(reply->begin_stream("text/event-stream"));
  ASSERT_TRUE(c.read_until("text/event-stream"));
  for (int i = 0; i < 20; ++i) {
    const std::string chunk = "data: " + std::to_string(i) + "\n\n";
    ASSERT_TRUE(reply->write(chunk));
    ASSERT_TRUE(c.read_until(chunk));  // before the next is written
  }
  reply->end();
  EXPECT_FALSE(reply->open());
  EXPECT_FALSE(reply->write("late"));
  EXPECT_THAT(c.read_reply().body, HasSubstr("data: 19"));
  EXPECT_EQ(c.ask(get("/echo")).status, 200);
  EXPECT_EQ(closed_calls(), 0);
}

TEST_F(HttpServerTest, AnHttp10StreamEndsWithItsConnection) {
  start();
  auto c = client();
  ASSERT_TRUE(c.send("GET /stream HTTP/1.0\r\n\r\n"));
  const ClientReply r = c.read_reply();
  EXPECT_EQ(r.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(r.body, "data: 1\n\ndata: 2\n\ndata: 3\n\n");
  auto keeping = client();
  ASSERT_TRUE(keeping.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  EXPECT_EQ(keeping.read_reply().headers.at("connection"), "close");
  EXPECT_EQ(keeping.read_to_end(), "");
}

TEST_F(HttpServerTest, AnEmptyLineAfterABodyIsNoRequestAndGetsNoReply) {
  start({.header_timeout = milliseconds(40)});
  auto c = client();
  EXPECT_EQ(c.ask(get("/echo")).status, 200);
  ASSERT_TRUE(c.send("\r\n"));
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(server_->stats().timeouts, 0);
  EXPECT_EQ(c.ask(get("/echo")).status, 200);
  ASSERT_TRUE(c.send("\r\nG"));
  EXPECT_EQ(c.read_reply().status, 408);
}

TEST_F(HttpServerTest, AReplyIsSentOnceAndMayComeFromAnotherThread) {
  start();
  auto c = client();
  auto reply = hold(c);
  threads_.emplace_back([reply] {
    EXPECT_TRUE(reply->send(200, "text/plain", "from afar"));
    EXPECT_FALSE(reply->send(200, "text/plain", "again"));
    EXPECT_FALSE(reply->begin_stream("text/plain"));
  });
  EXPECT_EQ(c.read_reply().body, "from afar");
  EXPECT_EQ(c.ask(get("/echo")).status, 200);
}

TEST_F(HttpServerTest, ADroppedReplyBecomes500AndADroppedStreamIsCutOff) {
  start();
  auto c = client();
  for (const char* path : {"/drop", "/throw"}) {
    const ClientReply r = c.ask(get(path));
    EXPECT_EQ(r.status, 500);
    EXPECT_EQ(nlohmann::json::parse(r.body)["error"]["type"], "server_error");
  }
  hold(c)->begin_stream("text/plain");
  held()->write("half");
  ASSERT_TRUE(c.read_until("half"));
  {
    std::lock_guard lock(mutex_);
    held_.clear();
  }
  EXPECT_EQ(c.read_to_end().find("0\r\n\r\n"), std::string::npos);
}

TEST_F(HttpServerTest, WhatAHandlerPutsInAHeaderCannotBeginAnother) {
  start();
  auto c = client();
  hold(c)->send(200, "text/plain", "x", {{"X-Odd", "a\r\nSet-Cookie: b"}});
  const ClientReply r = c.read_reply();
  EXPECT_EQ(r.headers.at("x-odd"), "a  Set-Cookie: b");
  EXPECT_EQ(r.headers.count("set-cookie"), 0u);
}

TEST_F(HttpServerTest, TheApiKeyIsAskedForExceptOnOpenPaths) {
  HttpOptions options;
  options.api_key = "sk-secret";
  options.open_paths = {"/health"};
  start(options);
  for (const char* fields : {"", "Authorization: Bearer sk-secreT\r\n",
                             "Authorization: Bearer sk-secret2\r\n", "Authorization: Bearer\r\n",
                             "Authorization: Basic sk-secret\r\n",
                             "Authorization: sk-secret\r\n"}) {
    const ClientReply r = client().ask(get("/echo", fields));
    EXPECT_EQ(r.status, 401) << fields;
    const auto error = nlohmann::json::parse(r.body)["error"];
    EXPECT_EQ(error["type"], "authentication_error");
    EXPECT_EQ(error["code"], "invalid_api_key");
    EXPECT_TRUE(error["param"].is_null());
  }
  EXPECT_EQ(client().ask(get("/echo", "Authorization: Bearer sk-secret\r\n")).status, 200);
  EXPECT_EQ(client().ask(get("/echo", "authorization: bearer sk-secret\r\n")).status, 200);
  EXPECT_EQ(client().ask(get("/health")).status, 404);  // the handler's answer
  EXPECT_EQ(client().ask(get("/health/../echo")).status, 401);
}

TEST(HttpAccess, EqualityLooksAtEveryByte) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  for (const char* other : {"", "ab", "abcd", "abcabc", "xbc", "axc", "abx"}) {
    EXPECT_FALSE(equal_in_constant_time(other, "abc")) << other;
  }
}

TEST_F(HttpServerTest, OnlyNamedOriginsAreToldThatTheirPagesMayRead) {
  HttpOptions options;
  options.cors_origins = {"http://localhost:3000"};
  options.api_key = "k";
  start(options);
  const std::string ask = "OPTIONS /echo HTTP/1.1\r\nHost: a\r\n"
                          "Access-Control-Request-Method: POST\r\nOrigin: ";
  const ClientReply good = client().ask(ask + "http://localhost:3000\r\n\r\n");
  EXPECT_EQ(good.status, 204);
  EXPECT_EQ(good.headers.at("access-control-allow-origin"), "http://localhost:3000");
  // "*" is all but Authorization: OpenAI's client in a page sends x-stainless-os and many more.
  EXPECT_EQ(good.headers.at("access-control-allow-headers"), "Authorization, *");
  EXPECT_EQ(good.headers.at("vary"), "Origin");
  const ClientReply bad = client().ask(ask + "http://evil.example\r\n\r\n");
  EXPECT_EQ(bad.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(bad.headers.count("access-control-allow-methods"), 0u);
  const ClientReply denied = client().ask(get("/echo", "Origin: http://localhost:3000\r\n"));
  EXPECT_EQ(denied.status, 401);  // and the page may read why
  EXPECT_EQ(denied.headers.at("access-control-allow-origin"), "http://localhost:3000");
}

TEST(HttpAccess, OurOwnPageIsThatOfTheHostThatWasAskedButNotUnderANameOfOthers) {
  const auto may = [](const HttpOptions& options, const char* host, const char* origin) {
    HttpRequest r;
    r.headers = {{"host", host}, {"origin", origin}};
    return may_send(options, r).ok();
  };
  HttpOptions options;
  for (const char* own : {"127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "[::1]",
                          "192.168.1.7:8080", "mill:8080"}) {
    EXPECT_TRUE(may(options, own, ("http://" + std::string(own)).c_str())) << own;
    EXPECT_FALSE(may(options, own, "http://evil.example")) << own;
    EXPECT_FALSE(may(options, own, "null")) << own;
  }
  EXPECT_TRUE(may(options, "rebound.example:8080", "")) << "no browser";
  // A stranger's page, whose name was made to mean this machine after it was loaded.
  for (const char* rebound : {"rebound.example:8080", "rebound.example", "127.0.0.1.evil.example",
                              "localhost.:8080"}) {
    EXPECT_FALSE(may(options, rebound, ("http://" + std::string(rebound)).c_str())) << rebound;
  }
  options.host = "mill.example";
  EXPECT_TRUE(may(options, "mill.example:8080", "http://mill.example:8080"));
  options.cors_origins = {"http://chat.example"};
  EXPECT_TRUE(may(options, "chat.example", "http://chat.example"));
  EXPECT_TRUE(may(options, "127.0.0.1:8080", "http://chat.example"));
  options.api_key = "k";  // which a stranger's page does not have
  EXPECT_TRUE(may(options, "any.example", "https://any.example"));
  EXPECT_FALSE(may(options, "any.example", "https://other.example"));
}

TEST(HttpAccess, APageThatIsRefusedIsToldWhatWouldHelp) {
  HttpRequest r;
  r.headers = {{"host", "chat.example"}, {"origin", "https://chat.example"}};
  EXPECT_EQ(may_send({}, r).message(),
            "the name of this page, 'https://chat.example', could be somebody else's (DNS "
            "rebinding): start the server with --cors https://chat.example, or with a key "
            "(--api-key-file FILE)");
  HttpOptions named, keyed;
  named.cors_origins = {"https://chat.example"};
  keyed.api_key = "k";
  EXPECT_TRUE(may_send(named, r).ok());
  EXPECT_TRUE(may_send(keyed, r).ok());
  r.headers = {{"host", "127.0.0.1:8080"}, {"origin", "https://other.example"}};
  EXPECT_EQ(may_send(keyed, r).message(),
            "pages of 'https://other.example' may not use this server: if they should, start it "
            "with --cors https://other.example");
}

TEST_F(HttpServerTest, TwoServersCannotShareAPortAndTheErrorNamesIt) {
  start();
  HttpOptions options;
  options.port = server_->port();
  const auto second = HttpServer::listen(options, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kIo);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(options.port)));
}

TEST_F(HttpServerTest, AHostThatDoesNotExistIsNamed) {
  HttpOptions options;
  options.host = "no such host";
  const auto server = HttpServer::listen(options, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().code(), Code::kIo);
  EXPECT_THAT(server.status().message(), HasSubstr("no such host"));
}

TEST_F(HttpServerTest, OptionsThatContradictAreRefused) {
  HttpOptions options;
  options.connection_memory = options.max_body;
  const auto server = HttpServer::listen(options, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().code(), Code::kUsage);
}

TEST_F(HttpServerTest, Ipv6IsServed) {
  const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 a{};
  a.sin6_family = AF_INET6;
  a.sin6_addr = in6addr_loopback;
  const bool there = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
  ::close(fd);
  if (!there) GTEST_SKIP() << "this machine has no ::1";
  start({.host = "::1"});
  HttpClient c(server_->port(), true);
  ASSERT_TRUE(c.connected());
  EXPECT_EQ(c.ask(get("/echo")).status, 200);
  hold(c)->send(200, "text/plain", "");
  std::lock_guard lock(mutex_);
  EXPECT_THAT(requests_[0].peer, testing::StartsWith("[::1]:"));
}

TEST_F(HttpServerTest, DrainRefusesNewRequestsAndWaitsForTheRunningStream) {
  start();
  auto running = client();
  auto reply = hold(running);
  ASSERT_TRUE(reply->begin_stream("text/event-stream"));
  auto waiting = client();  // idle, connected before
  EXPECT_EQ(waiting.ask(get("/echo")).status, 200);
  // The client may know of the reply's end before the server does, which closes what ends later.
  wait_until([&] { return server_->stats().replies == 1; });
  std::atomic<bool> drained{false};
  threads_.emplace_back([&] {
    server_->drain();
    drained = true;
  });
  wait_until([&] { return server_->draining(); });
  const ClientReply refused = waiting.ask(get("/echo"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(nlohmann::json::parse(refused.body)["error"]["code"], "draining");
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(client().ask(get("/echo")).status, 503);
  EXPECT_TRUE(reply->write("last words"));
  ASSERT_TRUE(running.read_until("last words"));
  EXPECT_FALSE(drained);
  reply->end();
  wait_until([&] { return drained.load(); });
  EXPECT_THAT(running.read_to_end(), HasSubstr("0\r\n\r\n"));
  EXPECT_EQ(server_->stats().replies, 0);
}

TEST_F(HttpServerTest, DrainWaitsNoLongerThanItMayAndProbesAreAnsweredMeanwhile) {
  start({.probe_paths = {"/echo"}});
  auto running = client();
  auto reply = hold(running);
  EXPECT_FALSE(server_->drain(milliseconds(10)));
  EXPECT_EQ(client().ask(get("/echo")).status, 200);
  EXPECT_EQ(client().ask(get("/large")).status, 503);
  reply->send(200, "text/plain", "whole");
  EXPECT_EQ(running.read_reply().body, "whole");
  EXPECT_TRUE(server_->drain(std::chrono::minutes(10)));
}

TEST_F(HttpServerTest, DrainWithNothingRunningEndsAtOnceAndTwice) {
  start();
  EXPECT_EQ(client().ask(get("/echo")).status, 200);
  server_->drain();
  server_->drain();
  server_->stop();
  server_->drain();
}

TEST_F(HttpServerTest, StopClosesRunningRepliesWhichMayOutliveTheServer) {
  start();
  auto c = client();
  auto reply = hold(c);
  ASSERT_TRUE(reply->begin_stream("text/plain"));
  std::atomic<bool> writing{true};
  threads_.emplace_back([reply, &writing] {
    while (reply->write("x")) std::this_thread::yield();
    writing = false;
  });
  ASSERT_TRUE(c.read_until("x"));
  std::thread reader([&] { c.read_to_end(); });
  server_->stop();
  server_->stop();
  wait_until([&] { return !writing; });
  reader.join();
  EXPECT_EQ(closed_calls(), 1);
  server_.reset();
  EXPECT_FALSE(reply->open());
  EXPECT_FALSE(reply->send(200, "text/plain", "too late"));
  reply->end();
  int called = 0;
  reply->on_close([&] { ++called; });
  EXPECT_EQ(called, 1);  // gone already: at once
}

}  // namespace
}  // namespace headrace

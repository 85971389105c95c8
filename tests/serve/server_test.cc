// The server in this process, with an engine whose weights come when the test says so, or not at
// all.
#include "headrace/serve/server.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <nlohmann/json.hpp>

#include "headrace/serve/server_answer.h"
#include "headrace/serve/server_numbers.h"
#include "tests/serve/fox_model.h"
#include "tests/serve/http_client.h"

namespace headrace {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

// What loads of weights do.
class Gate {
 public:
  void set(bool held, bool broken) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    broken_ = broken;
    changed_.notify_all();
  }
  // A step has come to the gate.
  bool waits() {
    const std::lock_guard lock(mutex_);
    return waits_;
  }
  Status pass() {
    std::unique_lock lock(mutex_);
    waits_ = held_;
    changed_.wait(lock, [this] { return !held_; });
    waits_ = false;
    return broken_ ? error(Code::kIo, "injected: the disk is gone") : Status();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, broken_ = false, waits_ = false;
};

class GatedTier final : public Tier {
 public:
  GatedTier(std::unique_ptr<Tier> inner, Gate* gate) : inner_(std::move(inner)), gate_(gate) {}
  const TierDescription& describe() const override { return inner_->describe(); }
  TierCounters counters() const override { return inner_->counters(); }
  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    HR_TRY(gate_->pass());
    return inner_->load(from, to);
  }
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    return inner_->store(from, to);
  }
  void poll() override { inner_->poll(); }
  bool done(Ticket t) override { return inner_->done(t); }
  Status wait(Ticket t) override { return inner_->wait(t); }

 private:
  std::unique_ptr<Tier> inner_;
  Gate* gate_;
};

struct StreamedEvents {
  std::vector<Json> data;
  int comments = 0;
  bool done = false;
};
StreamedEvents events_of(const std::string& body) {
  StreamedEvents out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string event = body.substr(at, end - at);
    if (event == "data: [DONE]") out.done = true;
    else if (event.rfind("data: ", 0) == 0) out.data.push_back(Json::parse(event.substr(6)));
    else if (event.rfind(":", 0) == 0) ++out.comments;
    if (end == std::string::npos) break;
    at = end + 2;
  }
  return out;
}

class ServerTest : public test::FoxModelTest {
 protected:
  void SetUp() override {
    FoxModelTest::SetUp();
    options_.http.port = 0;
    options_.name = "fox";
    options_.front.period = milliseconds(5);
  }
  void TearDown() override {
    gate_.set(false, true);
    server_.reset();
  }

  void listen() {
    auto server = Server::listen(options_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }
  // With an engine of `places` sequences that reads weights in each step.
  void serve(int places = 4, EngineOptions engine = {}) {
    listen();
    BatchOptions b;
    b.places = places;
    b.context = 512;
    b.step_rows = 64;
    b.kv_folder = scratch_.folder();
    b.machine = Machine::defaults(1);
    const auto least = least_batch_memory(*model_, b);
    ASSERT_TRUE(least.ok()) << least.status().message();
    b.memory_bytes = *least + 12 * kMiB;
    auto plan = plan_batch(*model_, b);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ASSERT_GT(summarize(plan->step).streamed_bytes, 0) << "no step would read anything";
    auto session = BatchSession::start(
        *model_, std::move(*plan), nullptr,
        [this](std::unique_ptr<Tier> inner) -> Result<std::unique_ptr<Tier>> {
          return std::unique_ptr<Tier>(new GatedTier(std::move(inner), &gate_));
        });
    ASSERT_TRUE(session.ok()) << session.status().message();
    auto started = Engine::start(*model_, std::move(session).value(), engine);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server_->serve(*model_, std::move(started).value());
  }

  HttpClient client() const { return HttpClient(server_->port()); }
  static std::string completion(int tokens, bool stream, const Json& prompt = "The fox") {
    return post("/v1/completions", Json({{"prompt", prompt}, {"max_tokens", tokens},
                                         {"temperature", 0}, {"stream", stream},
                                         {"ignore_eos", true}}).dump());
  }
  static Json json(const ClientReply& reply) { return Json::parse(reply.body, nullptr, false); }

  Gate gate_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, WhileTheModelIsLoadedClientsAreToldWhenToComeBack) {
  listen();
  HttpClient c = client();
  const ClientReply health = c.ask(get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json(health)["status"], "loading");
  const ClientReply chat = c.ask(post("/v1/chat/completions", "{}"));
  EXPECT_EQ(chat.status, 503);
  EXPECT_EQ(chat.headers.at("retry-after"), "5");
  EXPECT_EQ(json(chat)["error"]["code"], "loading");
  EXPECT_EQ(c.ask(get("/nothing")).status, 404);
  EXPECT_EQ(c.ask(get("/")).status, 200);
}

TEST_F(ServerTest, AStreamThatWaitsForItsPromptIsKeptAliveWithComments) {
  options_.ping = milliseconds(10);
  serve();
  gate_.set(true, false);
  HttpClient c = client();
  c.send(completion(6, true));
  ASSERT_TRUE(c.read_until(": ping\n\n"));
  gate_.set(false, false);
  const StreamedEvents events = events_of(c.read_reply().body);
  EXPECT_GE(events.comments, 1);
  EXPECT_TRUE(events.done);
  ASSERT_FALSE(events.data.empty());
  EXPECT_EQ(events.data.back()["choices"][0]["finish_reason"], "length");
}

TEST_F(ServerTest, AHalfClosedClientGetsItsStreamHoweverLongTheFirstTokenTakes) {
  options_.http.half_closed_timeout = milliseconds(10);
  serve();
  const std::string text = json(client().ask(completion(6, false)))["choices"][0]["text"];
  gate_.set(true, false);
  HttpClient c = client();
  c.send(completion(6, true));
  wait_until([&] { return gate_.waits(); });
  c.half_close();
  ASSERT_TRUE(c.read_until("HTTP/1.1 200")) << "before there is a token";
  std::this_thread::sleep_for(milliseconds(50));
  gate_.set(false, false);
  const StreamedEvents events = events_of(c.read_reply().body);
  EXPECT_TRUE(events.done);
  std::string said;
  for (const Json& e : events.data) {
    for (const Json& choice : e["choices"]) said += choice.value("text", "");
  }
  EXPECT_EQ(said, text);
}

TEST_F(ServerTest, AClientThatClosedBothSidesBeforeTheFirstTokenIsFoundOut) {
  options_.http.half_closed_timeout = milliseconds(10);
  serve();
  gate_.set(true, false);
  for (const bool stream : {true, false}) {
    HttpClient c = client();
    c.send(completion(400, stream));
    wait_until([&] { return server_->http_stats().replies == 1; });
    c.close();
    wait_until([&] { return server_->http_stats().replies == 0; });
  }
  EXPECT_EQ(server_->http_stats().gone, 2);
  gate_.set(false, false);
  wait_until([&] { return server_->engine().metrics().jobs_cancelled == 2; });
}

TEST_F(ServerTest, AnEngineThatFailsIs503AndTheNextRequestIsAnswered) {
  serve();
  const std::string text = json(client().ask(completion(8, false)))["choices"][0]["text"];
  for (const bool stream : {false, true}) {
    gate_.set(false, true);
    const ClientReply failed = client().ask(completion(8, stream));
    EXPECT_EQ(failed.status, 503) << failed.body;
    EXPECT_EQ(json(failed)["error"]["type"], "server_error");
    EXPECT_NE(json(failed)["error"]["message"].get<std::string>().find("injected"),
              std::string::npos);
    EXPECT_EQ(failed.headers.count("retry-after"), 1u);
    gate_.set(false, false);
    const ClientReply next = client().ask(completion(8, false));
    ASSERT_EQ(next.status, 200) << next.body;
    EXPECT_EQ(json(next)["choices"][0]["text"], text);
  }
}

TEST_F(ServerTest, AFailureInsideAStreamIsItsLastEvent) {
  serve();
  HttpClient c = client();
  c.send(completion(400, true));
  ASSERT_TRUE(c.read_until("\"text\""));
  gate_.set(false, true);
  const ClientReply reply = c.read_reply();
  EXPECT_EQ(reply.status, 200);
  const StreamedEvents events = events_of(reply.body);
  EXPECT_FALSE(events.done);
  ASSERT_GE(events.data.size(), 2u);
  ASSERT_TRUE(events.data.back().contains("error")) << events.data.back();
  EXPECT_EQ(events.data.back()["error"]["type"], "server_error");
}

TEST_F(ServerTest, AFullFrontIs429) {
  options_.front.most_bytes = 1000;
  serve();
  const ClientReply reply = client().ask(completion(1, false, std::string(2000, 'x')));
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(json(reply)["error"]["type"], "rate_limit_error");
  EXPECT_EQ(client().ask(completion(1, false)).status, 200);
}

TEST_F(ServerTest, AFullQueueIs429AndOneRefusedPromptRefusesTheRequest) {
  EngineOptions engine;
  engine.queue_jobs = 1;
  serve(1, engine);
  gate_.set(true, false);
  HttpClient running = client(), waiting = client();
  running.send(completion(8, false));
  wait_until([&] { return gate_.waits(); });
  waiting.send(completion(8, false));
  wait_until([&] {
    const ClientReply late = client().ask(completion(8, false));
    if (late.status != 429) return false;
    EXPECT_GE(std::stoi(late.headers.at("retry-after")), 1);
    EXPECT_EQ(json(late)["error"]["type"], "rate_limit_error");
    return true;
  });
  gate_.set(false, false);
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_EQ(waiting.read_reply().status, 200);
  // Of three prompts the first would run and the second wait; the third has no room.
  gate_.set(true, false);
  const ClientReply three = client().ask(completion(8, false, {"a", "b", "c", "d"}));
  EXPECT_EQ(three.status, 429) << three.body;
  gate_.set(false, false);
  wait_until([&] {
    const EngineMetrics m = server_->engine().metrics();
    return m.running == 0 && m.waiting == 0;
  });
  // Its places are free a moment after it has ended: who is told to come again comes again.
  int status = 429;
  wait_until([&] { return (status = client().ask(completion(2, false)).status) != 429; });
  EXPECT_EQ(status, 200);
}

TEST_F(ServerTest, WhatIsCollectedHasToFitItsMemory) {
  GenerateRequest one;
  options_.answer_memory = AnswerRoom::needed(one, 1, 20);
  serve();
  const ClientReply never = client().ask(completion(21, false));
  EXPECT_EQ(never.status, 400);
  EXPECT_NE(json(never)["error"]["message"].get<std::string>().find("stream"), std::string::npos);
  EXPECT_EQ(client().ask(completion(21, true)).status, 200) << "a stream is not collected";
  gate_.set(true, false);
  HttpClient first = client();
  first.send(completion(12, false));
  wait_until([&] { return gate_.waits(); });
  EXPECT_EQ(client().ask(completion(12, false)).status, 429);
  gate_.set(false, false);
  EXPECT_EQ(first.read_reply().status, 200);
  wait_until([&] { return client().ask(completion(20, false)).status == 200; });
}

TEST_F(ServerTest, WhatIsEchoedHasToFitItsMemoryToo) {
  options_.answer_memory = 3000;
  serve();
  const auto ask = [&](int prompts, int n, bool echo, bool stream) {
    const std::string text = "The quick brown fox jumps over the lazy dog. The fox sleeps well.";
    return client().ask(post("/v1/completions",
                             Json({{"prompt", std::vector<std::string>(prompts, text)},
                                   {"n", n}, {"max_tokens", 1}, {"temperature", 0},
                                   {"echo", echo}, {"stream", stream}}).dump()));
  };
  EXPECT_EQ(ask(4, 4, false, false).status, 200);
  const ClientReply never = ask(4, 4, true, false);
  EXPECT_EQ(never.status, 400);
  EXPECT_EQ(json(never)["error"]["param"], "stream");
  EXPECT_EQ(ask(4, 4, true, true).status, 200) << "each prompt is kept once";
  options_.answer_memory = 200;
  server_.reset();
  serve();
  const ClientReply neither = ask(4, 1, true, true);
  EXPECT_EQ(neither.status, 400);
  EXPECT_EQ(json(neither)["error"]["param"], "echo");
  EXPECT_EQ(ask(4, 1, false, true).status, 200);
  for (int i = 0; i < 4; ++i) {  // what was sent is kept no more
    EXPECT_EQ(ask(2, 1, true, true).status, 200) << i;
  }
}

TEST_F(ServerTest, AnAnswerOfLongTokensIsCollectedAsFarAsThereIsRoom) {
  testing::TinyShape shape = testing::streamed_shape();
  const int64_t long_one = shape.vocab++;
  testing::GgufWriter gguf = testing::tiny_gguf(shape);
  testing::add_byte_tokenizer(&gguf, {std::string(40, 'a')});  // 8 bytes a token are reserved
  gguf.write(scratch_.path("fox.gguf"));
  auto model = load_model(scratch_.path("fox.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  model_ = std::move(model).value();
  GenerateRequest one;
  options_.answer_memory = AnswerRoom::needed(one, 1, 100);
  serve();
  const auto ask = [&](int tokens) {
    return client().ask(post("/v1/completions",
                             Json({{"prompt", "The fox"}, {"max_tokens", tokens},
                                   {"temperature", 0}, {"ignore_eos", true},
                                   {"logit_bias", {{std::to_string(long_one), 100}}}}).dump()));
  };
  const ClientReply too_long = ask(100);
  EXPECT_EQ(too_long.status, 429) << too_long.body;
  EXPECT_EQ(too_long.headers.at("retry-after"), "1");
  ClientReply fits;  // as soon as the other one's room has come back
  wait_until([&] { return (fits = ask(15)).status != 429; });
  EXPECT_EQ(fits.status, 200) << fits.body;
  EXPECT_EQ(json(fits)["choices"][0]["text"], std::string(15 * 40, 'a'));
  wait_until([&] { return client().ask(completion(100, false)).status == 200; });
}

TEST_F(ServerTest, WhileItDrainsHealthSaysSoAndWhatTakesTooLongEndsWithTheReason) {
  serve();
  EXPECT_EQ(json(client().ask(get("/health")))["status"], "ready");
  HttpClient stream = client(), whole = client();
  stream.send(completion(400, true));
  whole.send(completion(400, false));
  ASSERT_TRUE(stream.read_until("\"text\""));
  wait_until([&] { return server_->engine().metrics().running == 2; });
  gate_.set(true, false);
  EXPECT_FALSE(server_->drain(milliseconds(10)));
  const ClientReply health = client().ask(get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.headers.count("retry-after"), 1u);
  EXPECT_EQ(json(health)["status"], "draining");
  EXPECT_EQ(json(client().ask(completion(1, false)))["error"]["code"], "draining");
  server_->engine().stop("enough of it");
  gate_.set(false, false);
  EXPECT_TRUE(server_->drain());
  const ClientReply said = whole.read_reply();
  EXPECT_EQ(said.status, 503);
  EXPECT_NE(said.body.find("enough of it"), std::string::npos) << said.body;
  const StreamedEvents events = events_of(stream.read_reply().body);
  EXPECT_FALSE(events.done);
  ASSERT_FALSE(events.data.empty());
  EXPECT_EQ(events.data.back()["error"]["message"], "enough of it");
  server_->engine().drain();
}

TEST_F(ServerTest, AServerThatStopsEndsTheStreamsOfItsClients) {
  serve();
  HttpClient c = client();
  c.send(completion(400, true));
  ASSERT_TRUE(c.read_until("\"text\""));
  server_.reset();
  EXPECT_FALSE(events_of(c.read_to_end()).done);
}

TEST(ServerMemory, GrowsWithTheBudgetAndStaysASmallPartOfIt) {
  Bytes before = 0;
  for (const Bytes budget : {64 * kMiB, 128 * kMiB, 550 * kMiB, 2 * kGiB, 16 * kGiB}) {
    ServerOptions o;
    fit_to_budget(budget, 0, &o);
    const Bytes most = Server::most_bytes(o);
    EXPECT_GE(most, before);
    EXPECT_LE(most, budget / 8) << budget;
    EXPECT_GE(o.http.connection_memory, 2 * o.http.max_body);
    EXPECT_EQ(o.http.max_send_queue, o.http.connection_memory / 4);
    EXPECT_EQ(o.http.kernel_buffer, 32 * kKiB) << "the kernel would take some MiB for each";
    before = most;
  }
  EXPECT_LE(before, 160 * kMiB);
  ServerOptions large;
  fit_to_budget(550 * kMiB, 131'072, &large);
  EXPECT_GE(large.http.max_body, 131'072 * 5) << "a prompt of the whole context, as text";
  EXPECT_GE(large.http.max_connections, 1000);
}

TEST(AnswerRoom, GivesNoMoreThanThereIs) {
  AnswerRoom room(100);
  EXPECT_TRUE(room.take(60));
  EXPECT_FALSE(room.take(41));
  EXPECT_TRUE(room.take(40));
  room.give_back(60);
  EXPECT_TRUE(room.take(60));
  GenerateRequest plain, rich;
  rich.logprobs = 5;
  rich.n = 2;
  EXPECT_GT(AnswerRoom::needed(rich, 1, 100), 10 * AnswerRoom::needed(plain, 1, 100));
}

}  // namespace
}  // namespace headrace

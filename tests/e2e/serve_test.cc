// What clients of `headrace serve` see: texts, streams, errors, limits, drain.
#include "tests/e2e/serve.h"

#include <sys/resource.h>

#include <future>

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

TEST_F(Serve, SaysWhatItServesInOneLineAndEndsWellOnSigterm) {
  start();
  const std::string line = slurp(folder_ / "stdout");
  EXPECT_EQ(line.rfind("serving fox at http://127.0.0.1:", 0), 0u) << line;
  EXPECT_NE(line.find("budget 64.0 MiB"), std::string::npos) << line;
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  const Finished f = stop();
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.out, line);
  EXPECT_NE(f.err.find("peak"), std::string::npos) << f.err;
}

TEST_F(Serve, ACompletionIsTheTextThatRunWrites) {
  start();
  const Finished run = headrace(folder_, {"run", model(), "--prompt", "The quick brown fox",
                                          "--ignore-eos", "--temperature", "0", "--tokens", "24",
                                          "--memory", "64MiB"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(complete("The quick brown fox", 24), run.out);
  const ClientReply reply = post_json(
      "/v1/completions", {{"model", "fox"}, {"prompt", "The quick brown fox"}, {"max_tokens", 24},
                          {"temperature", 0}, {"ignore_eos", true}});
  const Json body = json(reply);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "fox");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 20);  // 19 bytes and the beginning
  EXPECT_EQ(body["usage"]["completion_tokens"], 24);
}

TEST_F(Serve, AChatIsWhatTheTemplateMakesOfIt) {
  start();
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                     {"max_tokens", 12}, {"temperature", 0}, {"ignore_eos", true}};
  const Json body = json(post_json("/v1/chat/completions", chat));
  ASSERT_TRUE(body.contains("choices")) << body;
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  const std::string text = body["choices"][0]["message"]["content"];
  EXPECT_EQ(text, complete("user: Hello\nassistant:", 12));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 23);
}

TEST_F(Serve, AStreamSaysTheSameInPiecesAndEndsWithDone) {
  start();
  Json chat = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
               {"max_tokens", 12}, {"temperature", 0}, {"ignore_eos", true}};
  const std::string whole =
      json(post_json("/v1/chat/completions", chat))["choices"][0]["message"]["content"];
  chat["stream"] = true;
  chat["stream_options"] = {{"include_usage", true}};
  const ClientReply reply = post_json("/v1/chat/completions", chat);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  const Events events = events_of(reply.body);
  ASSERT_GE(events.data.size(), 4u) << reply.body;
  EXPECT_EQ(events.data.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events.data[0])["choices"][0]["delta"]["role"], "assistant");
  std::string text, finish;
  Json usage;
  for (size_t i = 0; i + 1 < events.data.size(); ++i) {
    const Json e = Json::parse(events.data[i]);
    EXPECT_EQ(e["object"], "chat.completion.chunk");
    if (!e["usage"].is_null()) usage = e["usage"];
    if (e["choices"].empty()) continue;
    text += e["choices"][0]["delta"].value("content", "");
    if (e["choices"][0]["finish_reason"].is_string()) finish = e["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(text, whole);
  EXPECT_EQ(finish, "length");
  EXPECT_EQ(usage["completion_tokens"], 12);
}

TEST_F(Serve, SeveralPromptsWithSeveralChoicesComeInTheirOrder) {
  start();
  const Json body = json(post_json(
      "/v1/completions", {{"prompt", {"one", "two", "three"}}, {"n", 2}, {"max_tokens", 6},
                          {"temperature", 0.9}, {"seed", 7}, {"echo", true},
                          {"ignore_eos", true}}));
  ASSERT_TRUE(body.contains("choices")) << body;
  ASSERT_EQ(body["choices"].size(), 6u);
  const std::vector<std::string> prompts = {"one", "one", "two", "two", "three", "three"};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"].get<std::string>().rfind(prompts[i], 0), 0u);
  }
  // Each is what it would have been alone.
  const Json alone = json(post_json(
      "/v1/completions", {{"prompt", "two"}, {"n", 2}, {"max_tokens", 6}, {"temperature", 0.9},
                          {"seed", 7}, {"echo", true}, {"ignore_eos", true}}));
  EXPECT_EQ(alone["choices"][0]["text"], body["choices"][2]["text"]);
  EXPECT_EQ(alone["choices"][1]["text"], body["choices"][3]["text"]);
  EXPECT_NE(alone["choices"][0]["text"], alone["choices"][1]["text"]);
}

TEST_F(Serve, WithoutASeedEveryAnswerIsAnother) {
  start();
  const Json hot = {{"temperature", 1.5}};
  EXPECT_NE(complete("again", 24, hot), complete("again", 24, hot));
}

TEST_F(Serve, WhatIsWrongIsRefusedWithTheFieldsName) {
  start();
  struct Case {
    std::string path, body;
    int status;
    std::string param;  // null when empty
  };
  const std::string chat = "/v1/chat/completions", text = "/v1/completions";
  const std::string hello = R"("messages":[{"role":"user","content":"x"}])";
  std::string deep = R"({"prompt":"x","metadata":)";
  for (int i = 0; i < 20'000; ++i) deep += '[';
  const std::vector<Case> cases = {
      {chat, "{", 400, ""},
      {chat, "", 400, ""},
      {chat, "[]", 400, ""},
      {chat, "{\"messages\":\"x\"}", 400, "messages"},
      {chat, "{\"messages\":[]}", 400, "messages"},
      {chat, "{" + hello + ",\"temperature\":\"hot\"}", 400, "temperature"},
      {chat, "{" + hello + ",\"temperature\":NaN}", 400, ""},
      {chat, "{" + hello + ",\"temperature\":-1}", 400, "temperature"},
      {chat, "{" + hello + ",\"max_tokens\":-5}", 400, "max_tokens"},
      {chat, "{" + hello + ",\"max_tokens\":1000000}", 400, "max_tokens"},
      {chat, "{" + hello + ",\"model\":\"gpt-4\"}", 404, "model"},
      {chat, "{" + hello + ",\"n\":0}", 400, "n"},
      {text, "{\"prompt\":\"x\",\"top_p\":7}", 400, "top_p"},
      {text, "{\"prompt\":\"\xff\xfe\"}", 400, ""},
      {text, "{\"prompt\":[1,2,99999]}", 400, "prompt"},
      {text, "{\"max_tokens\":3}", 400, "prompt"},
      {text, deep, 400, ""},
      {"/tokenize", "{\"content\":7}", 400, "content"},
      {"/detokenize", "{\"tokens\":[-1]}", 400, "tokens"},
  };
  for (const Case& c : cases) {
    const ClientReply reply = ask(post(c.path, c.body));
    const std::string what = c.path + " " + c.body.substr(0, 80) + ": " + reply.body;
    EXPECT_EQ(reply.status, c.status) << what;
    const Json error = json(reply)["error"];
    EXPECT_TRUE(error["message"].is_string()) << what;
    EXPECT_EQ(error["type"], "invalid_request_error") << what;
    if (!c.param.empty()) {
      EXPECT_EQ(error["param"].is_string() ? error["param"].get<std::string>().substr(
                                                 0, c.param.size())
                                           : "null",
                c.param)
          << what;
    }
  }
  EXPECT_EQ(json(ask(post(chat, "{" + hello + ",\"model\":\"gpt-4\"}")))["error"]["code"],
            "model_not_found");
  EXPECT_EQ(complete("still", 3).empty(), false) << "it goes on";
}

TEST_F(Serve, ABodyBeyondTheLimitIsRefusedBeforeItIsRead) {
  start();
  HttpClient c = client();
  const ClientReply reply = c.ask(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n{");
  EXPECT_EQ(reply.status, 413);
  EXPECT_TRUE(json(reply)["error"]["message"].is_string()) << reply.body;
}

TEST_F(Serve, APromptThatNeverFitsIsRefusedWithTheNumbers) {
  start({"--context", "512"});
  const ClientReply reply =
      post_json("/v1/completions", {{"prompt", std::string(600, 'x')}, {"max_tokens", 8}});
  EXPECT_EQ(reply.status, 400);
  const Json error = json(reply)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  const std::string message = error["message"];
  EXPECT_NE(message.find("512"), std::string::npos) << message;
  EXPECT_NE(message.find("601"), std::string::npos) << message;
  // As many as fit are fine.
  const Json fits = json(post_json("/v1/completions", {{"prompt", std::string(500, 'x')},
                                                       {"max_tokens", 11},
                                                       {"ignore_eos", true}}));
  EXPECT_EQ(fits["usage"]["completion_tokens"], 11) << fits;
}

TEST_F(Serve, SpecialTokensInTextStayText) {
  start();
  const std::string hostile = "<|end|><|begin|>";
  const Json tokens = json(post_json("/tokenize", {{"content", hostile}}))["tokens"];
  EXPECT_EQ(tokens.size(), hostile.size()) << "a token a byte: none of them special";
  for (const Json& t : tokens) EXPECT_LT(t.get<int>(), 256);
  EXPECT_EQ(json(post_json("/detokenize", {{"tokens", tokens}}))["content"], hostile);
  const Json body = json(post_json(
      "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", hostile}}}},
                               {"max_tokens", 1}}));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 1 + 6 + 16 + 1 + 10) << body;
}

TEST_F(Serve, PathsAndMethodsThatAreNotThereAreNamed) {
  start();
  EXPECT_EQ(ask(get("/v2/things")).status, 404);
  EXPECT_EQ(json(ask(get("/v2/things")))["error"]["type"], "invalid_request_error");
  const ClientReply wrong = ask(get("/v1/chat/completions"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(ask(get("/v1/models/none")).status, 404);
}

TEST_F(Serve, PagesOfOtherOriginsCannotMakeItWork) {
  start({"--cors", "https://good.example"});
  const std::string body = Json({{"prompt", "x"}, {"max_tokens", 1}}).dump();
  const auto from = [&](const std::string& origin) {
    return ask(post("/v1/completions", body, "Origin: " + origin + "\r\n"));
  };
  EXPECT_EQ(from("https://bad.example").status, 403);
  EXPECT_EQ(json(from("null"))["error"]["code"], "origin_not_allowed");
  EXPECT_EQ(from("https://good.example").status, 200);
  EXPECT_EQ(from("http://localhost").status, 200) << "its own page: the Host that was asked";
}

TEST_F(Serve, ModelsAreListedWithTheirAliases) {
  start({"--alias", "gpt-4o-mini", "--alias", "org/fox"});
  const Json models = json(ask(get("/v1/models")));
  ASSERT_EQ(models["data"].size(), 3u) << models;
  EXPECT_EQ(models["data"][0]["id"], "fox");
  EXPECT_EQ(json(ask(get("/v1/models/org%2Ffox")))["id"], "org/fox");
  EXPECT_EQ(complete("a", 4, {{"model", "org/fox"}}), complete("a", 4, {{"model", "fox"}}));
}

TEST_F(Serve, PlanMetricsAndTimelineSayWhatMemoryDoes) {
  start();
  EXPECT_EQ(ask(get("/timeline?json")).status, 404) << "no step yet, or a warm one";
  complete("The quick brown fox", 16);
  const Json plan = json(ask(get("/plan")));
  EXPECT_EQ(plan["budget_bytes"], 64 << 20);
  int64_t reserved = 0;
  for (const Json& item : plan["ledger"]) reserved += item["bytes"].get<int64_t>();
  EXPECT_LE(reserved, 64 << 20);
  EXPECT_GT(plan["blocks"], 0);
  EXPECT_GE(plan["times"].size(), 2u);
  const ClientReply metrics = ask(get("/metrics"));
  EXPECT_EQ(metrics.headers.at("content-type").rfind("text/plain; version=0.0.4", 0), 0u);
  EXPECT_NE(metrics.body.find("\nheadrace_http_requests_total "), std::string::npos);
  EXPECT_NE(metrics.body.find("connections"), std::string::npos);
  const Json now = live();
  EXPECT_EQ(now["generated_tokens"], 16);
  EXPECT_LE(now["rss_bytes"], now["budget_bytes"]);
  const ClientReply trace = ask(get("/timeline?json"));
  EXPECT_EQ(trace.status, 200) << trace.body;
  EXPECT_TRUE(json(trace).contains("traceEvents"));
  const ClientReply drawn = ask(get("/timeline"));
  EXPECT_EQ(drawn.status, 200) << drawn.body.substr(0, 200);
  EXPECT_NE(drawn.body.find("headrace-data"), std::string::npos);
  EXPECT_NE(drawn.headers.at("content-security-policy").find("sandbox"), std::string::npos);
}

TEST_F(Serve, TheKeyIsAskedForEverywhereButOnThePageAndHealth) {
  std::ofstream(folder_ / "key") << "secret-1\n";
  start({"--api-key-file", folder_ / "key"});
  for (const char* path : {"/v1/models", "/metrics", "/plan", "/live", "/timeline"}) {
    EXPECT_EQ(ask(get(path)).status, 401) << path;
    EXPECT_NE(ask(get(path, "Authorization: Bearer secret-1\r\n")).status, 401) << path;
    EXPECT_EQ(ask(get(path, "Authorization: Bearer secret-2\r\n")).status, 401) << path;
  }
  EXPECT_EQ(ask(get("/")).status, 200);
  EXPECT_EQ(ask(get("/health")).status, 200);
}

TEST_F(Serve, ClientsThatGoTakeTheirWorkWithThem) {
  start({"--context", "2048"}, "96MiB");
  {
    HttpClient c = client();
    c.send(post("/v1/completions", Json({{"prompt", "x"}, {"max_tokens", 2000},
                                         {"ignore_eos", true}, {"stream", true}}).dump()));
    ASSERT_TRUE(c.read_until("data: "));
    c.reset();
  }
  wait_until([&] { return live()["jobs_cancelled"] == 1; });
  EXPECT_EQ(live()["running"], 0);
  {
    // Not streamed: gone all the same.
    HttpClient c = client();
    c.send(post("/v1/completions", Json({{"prompt", "x"}, {"max_tokens", 2000},
                                         {"ignore_eos", true}}).dump()));
    wait_until([&] { return live()["running"] == 1; });
    c.reset();
  }
  wait_until([&] { return live()["jobs_cancelled"] == 2; });
  EXPECT_EQ(live()["running"], 0);
}

TEST_F(Serve, WhoWaitsIsAnsweredWhenItDrainsAndNobodyElse) {
  start({"--context", "1024"}, "96MiB");
  HttpClient c = client();
  c.send(post("/v1/completions", Json({{"prompt", "x"}, {"max_tokens", 300},
                                       {"ignore_eos", true}, {"stream", true}}).dump()));
  ASSERT_TRUE(c.read_until("data: "));
  process_->send(SIGTERM);
  ASSERT_TRUE(process_->wait_for_error("stopping"));
  wait_until([&] {
    const ClientReply r = ask(get("/health"));
    if (r.status == 200) return false;
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(json(r)["status"], "draining") << r.body;
    return true;
  });
  EXPECT_EQ(json(ask(get("/v1/models")))["error"]["code"], "draining");
  const ClientReply reply = c.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(events_of(reply.body).data.back(), "[DONE]");
  const Finished f = process_->wait();
  process_.reset();
  EXPECT_EQ(f.code, 0) << f.err;
}

TEST_F(Serve, TheSecondSignalEndsItAtOnce) {
  start({"--context", "2048"}, "96MiB");
  HttpClient c = client();
  c.send(post("/v1/completions", Json({{"prompt", "x"}, {"max_tokens", 2000},
                                       {"ignore_eos", true}, {"stream", true}}).dump()));
  ASSERT_TRUE(c.read_until("data: "));
  process_->send(SIGTERM);
  ASSERT_TRUE(process_->wait_for_error("stopping"));
  process_->send(SIGTERM);
  const Finished f = process_->wait();
  process_.reset();
  EXPECT_EQ(f.signal, SIGTERM);
}

TEST_F(Serve, WhatTakesLongerThanItMayIsCutOffWithTheReason) {
  start({"--context", "2048", "--drain-seconds", "0"}, "96MiB");
  Json wanted = {{"prompt", "x"}, {"max_tokens", 2000}, {"ignore_eos", true}, {"stream", true}};
  HttpClient stream = client(), whole = client();
  stream.send(post("/v1/completions", wanted.dump()));
  ASSERT_TRUE(stream.read_until("data: "));
  wanted["stream"] = false;
  whole.send(post("/v1/completions", wanted.dump()));
  wait_until([&] {
    const Json now = live();
    return now["running"].get<int>() + now["waiting"].get<int>() == 2;
  });
  process_->send(SIGTERM);
  const Events events = events_of(stream.read_reply().body);
  ASSERT_FALSE(events.data.empty());
  EXPECT_NE(events.data.back().find("--drain-seconds"), std::string::npos) << events.data.back();
  const ClientReply reply = whole.read_reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("--drain-seconds"), std::string::npos) << reply.body;
  const Finished f = process_->wait();
  process_.reset();
  EXPECT_EQ(f.code, 130) << f.err;
  EXPECT_NE(f.err.find("2 answers were cut off"), std::string::npos) << f.err;
}

TEST_F(Serve, ASignalWhileItLoadsEndsItAtOnce) {
  // Opening it waits for somebody who writes, as a disk that does not answer would.
  const std::string pipe = folder_ / "slow.gguf";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  process_.emplace(folder_, std::vector<std::string>{"serve", pipe, "--memory", "64MiB", "--port",
                                                     "0"});
  ASSERT_TRUE(process_->wait_for_error("loading"));
  const std::string err = slurp(folder_ / "stderr");
  const size_t colon = err.find(':', err.find("http://") + 7);
  port_ = static_cast<uint16_t>(std::stoi(err.substr(colon + 1)));
  const ClientReply health = ask(get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json(health)["status"], "loading") << health.body;
  process_->send(SIGTERM);
  const Finished f = process_->wait();
  process_.reset();
  EXPECT_EQ(f.code, 130) << f.err;
  EXPECT_NE(f.err.find("stopped on request"), std::string::npos) << f.err;
}

// Files of entries in a prefix store, those that are being written left out.
size_t entries_in(const std::string& folder) {
  size_t count = 0;
  std::error_code none;
  for (const auto& e : std::filesystem::recursive_directory_iterator(folder, none)) {
    count += e.is_regular_file(none) && e.path().extension() == ".kv";
  }
  return count;
}

TEST_F(Serve, PromptsThatWereReadAreFoundAfterARestartAndAfterAKill) {
  const std::vector<std::string> words = {"--context", "1024", "--prefix-store",
                                          folder_ / "store"};
  const std::string prompt = std::string(300, 'x') + std::string(300, 'y');
  start(words, "96MiB");
  const std::string text = complete(prompt, 16);
  EXPECT_EQ(live()["cached_tokens"], 0);
  stop();
  EXPECT_EQ(entries_in(folder_ / "store"), 2u);
  for (int run = 0; run < 2; ++run) {  // after SIGTERM, after SIGKILL
    start(words, "96MiB");
    EXPECT_EQ(complete(prompt, 16), text);
    EXPECT_EQ(live()["cached_tokens"], 512);
    EXPECT_NE(ask(get("/metrics")).body.find("headrace_prefix_store_hits_total 1\n"),
              std::string::npos);
    // It dies while it writes and answers.
    HttpClient c = client();
    c.send(post("/v1/completions", Json({{"prompt", std::string(900, 'z')}, {"max_tokens", 60},
                                         {"ignore_eos", true}, {"stream", true}}).dump()));
    ASSERT_TRUE(c.read_until("data: "));
    process_->send(SIGKILL);
    EXPECT_EQ(process_->wait().signal, SIGKILL);
    process_.reset();
  }
}

TEST_F(Serve, ADiskThatTakesNothingLosesNobodyAndChangesNoText) {
  start({"--context", "1024", "--parallel", "2", "--speculate", "0", "--kv-dir", folder_.path(),
         "--prefix-store", folder_ / "store"}, "96MiB");
  const auto ask_one = [this](int i, int tokens) {
    return complete(std::string(260, static_cast<char>('a' + i)), tokens, {{"priority", i}});
  };
  // Of the first `count` at once.
  const auto begin = [&](int count, int tokens) {
    std::vector<std::future<std::string>> texts;
    for (int i = 0; i < count; ++i) {
      texts.push_back(std::async(std::launch::async, ask_one, i, tokens));
    }
    return texts;
  };
  const auto said = [](std::vector<std::future<std::string>> texts) {
    std::vector<std::string> out;
    for (auto& text : texts) out.push_back(text.get());
    return out;
  };
  const auto take = [this](rlim_t bytes) {
    const rlimit limit = {bytes, RLIM_INFINITY};
    ASSERT_EQ(::prlimit(process_->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  };
  const auto store_writes = [this](const char* value) {
    return ask(get("/metrics")).body.find(std::string("\nheadrace_prefix_store_writes ") + value +
                                          "\n") != std::string::npos;
  };
  EXPECT_TRUE(store_writes("1"));
  take(0);
  const std::vector<std::string> without = said(begin(6, 24)), long_ones = said(begin(2, 60));
  EXPECT_TRUE(store_writes("0"));
  EXPECT_EQ(live()["preemptions"], 0) << "nobody could leave";
  EXPECT_EQ(entries_in(folder_ / "store"), 0u);
  take(RLIM_INFINITY);
  EXPECT_EQ(said(begin(6, 24)), without);
  // Whoever has begun leaves for one that is more urgent.
  wait_until([&] {
    const int64_t before = live()["generated_tokens"];
    auto texts = begin(2, 60);
    wait_until([&] { return live()["generated_tokens"] >= before + 16; });
    EXPECT_EQ(ask_one(5, 24), without[5]);
    EXPECT_EQ(said(std::move(texts)), long_ones);
    return live()["preemptions"] > 0;
  });
  // So does the prefix store, after a while.
  wait_until([&] { return ask_one(0, 24) == without[0] && store_writes("1"); });
  EXPECT_GT(entries_in(folder_ / "store"), 0u);
  EXPECT_EQ(live()["jobs_failed"], 0);
  EXPECT_EQ(stop().code, 0);
}

TEST_F(Serve, APortThatIsTakenIsNamed) {
  start();
  Folder other;
  const Finished f = headrace(other, {"serve", model(), "--memory", "64MiB", "--port",
                                      std::to_string(port_)});
  EXPECT_EQ(f.code, 5) << f.err;
  EXPECT_NE(f.err.find(std::to_string(port_)), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("in use"), std::string::npos) << f.err;
}

TEST_F(Serve, ABudgetThatCannotBeKeptIsRefusedWithTheLeastOne) {
  const Finished f = headrace(folder_, {"serve", model(), "--memory", "12MiB", "--port", "0"});
  EXPECT_EQ(f.code, 3) << f.err;
  EXPECT_NE(f.err.find("least"), std::string::npos) << f.err;
  EXPECT_EQ(f.out, "");
}

TEST_F(Serve, ADraftModelChangesNoText) {
  start({"--context", "512"}, "96MiB");
  const std::string text = complete("one two one two one two", 60);
  stop();
  start({"--context", "512", "--draft", model(), "--draft-memory", "45MiB"}, "128MiB");
  EXPECT_EQ(complete("one two one two one two", 60), text);
  EXPECT_LE(peak_rss(), 128 << 20);
  stop();
  const Finished other = headrace(
      folder_, {"serve", model(), "--memory", "128MiB", "--port", "0", "--draft",
                HEADRACE_SOURCE_DIR "/tests/data/models/llama.gguf"});
  EXPECT_EQ(other.code, 4) << other.err;
  EXPECT_NE(other.err.find("vocabulary"), std::string::npos) << other.err;
  EXPECT_EQ(headrace(folder_, {"serve", model(), "--speculate", "0", "--draft", model()}).code, 2);
}

TEST_F(Serve, AsManyFilesAsConnectionsMayBeOpened) {
  Process::Options few;
  few.in_child = [] {
    rlimit limit = {};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  start({}, "64MiB", few);  // 163 connections
  rlimit limit = {};
  ASSERT_EQ(::prlimit(process_->pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_GE(limit.rlim_cur, 163u);
  EXPECT_EQ(slurp(folder_ / "stderr").find("connections at once"), std::string::npos);
  stop();
  few.in_child = [] {
    const rlimit limit = {300, 300};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  start({}, "64MiB", few);
  const std::string err = slurp(folder_ / "stderr");
  EXPECT_NE(err.find("only 44 connections at once: this process may open 300 files"),
            std::string::npos)
      << err;
  std::vector<HttpClient> clients;
  for (int i = 0; i < 60; ++i) {
    clients.push_back(client());
    EXPECT_EQ(clients.back().ask(get("/health")).status, 200) << i;
  }
}

TEST_F(Serve, OpenDoorsAreWarnedAbout) {
  start({"--host", "0.0.0.0", "--cors", "*"});
  const std::string err = slurp(folder_ / "stderr");
  EXPECT_NE(err.find("--host 0.0.0.0 without an API key"), std::string::npos) << err;
  EXPECT_NE(err.find("--cors '*' without an API key"), std::string::npos) << err;
}

TEST_F(Serve, TheExampleClientAsksOneAndSeveralQuestions) {
  start();
  const auto python = [&](const std::string& words, int code = 0) {
    const std::string command = "python3 " HEADRACE_SOURCE_DIR
                                "/examples/04-serve/client.py --tokens 8 --url http://127.0.0.1:" +
                                std::to_string(port_) + " " + words + " > " + (folder_ / "said") +
                                " 2>&1";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), code) << slurp(folder_ / "said");
    return slurp(folder_ / "said");
  };
  EXPECT_GT(python("Hello").size(), 1u);
  const std::string two = python("One Two");
  EXPECT_NE(two.find("> One\n"), std::string::npos) << two;
  EXPECT_NE(two.find("> Two\n"), std::string::npos) << two;
  // What is refused is said, with one question as with several.
  for (const std::string words : {"One", "One Two"}) {
    const std::string refused = python("--tokens 99999 " + words, 1);
    EXPECT_NE(refused.find("400: "), std::string::npos) << refused;
  }
}

TEST_F(Serve, StaysInsideTheBudgetWhateverClientsDo) {
  start({"--parallel", "4"}, "64MiB");
  std::vector<std::future<std::string>> texts;
  for (int i = 0; i < 12; ++i) {
    texts.push_back(std::async(std::launch::async, [this, i] {
      return complete("prompt number " + std::to_string(i % 3), 40);
    }));
  }
  for (int i = 0; i < 20; ++i) {
    ask(post("/v1/completions", std::string(200'000, '[')));
    ask(post("/tokenize", Json({{"content", std::string(100'000, 'x')}}).dump()));
    ask(get("/timeline"));
    post_json("/v1/completions", {{"prompt", std::string(100'000, 'y')}});
  }
  std::vector<std::string> same(3);
  for (int i = 0; i < 12; ++i) {
    const std::string text = texts[static_cast<size_t>(i)].get();
    std::string& first = same[static_cast<size_t>(i % 3)];
    if (first.empty()) first = text;
    EXPECT_EQ(text, first);
  }
  EXPECT_LE(peak_rss(), 64 << 20);
  EXPECT_EQ(stop().code, 0);
}

}  // namespace
}  // namespace headrace::testing

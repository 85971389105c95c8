// The page in a real browser: what a person sees, what a keyboard does, what a screen reader is
// told.
#include <algorithm>

#include "tests/e2e/browser.h"
#include "tests/e2e/serve.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

class ServePage : public Serve {
 protected:
  void SetUp() override {
    const std::string program = Browser::find();
    if (program.empty()) GTEST_SKIP() << "no Chromium on this machine (Debian: chromium)";
    browser_ = std::make_unique<Browser>(program);
  }
  void TearDown() override {
    browser_.reset();
    Serve::TearDown();
  }
  void open() {
    ASSERT_TRUE(browser_->open("http://127.0.0.1:" + std::to_string(port_) + "/"));
    ASSERT_TRUE(browser_->wait_for("document.getElementById('state') !== null"));
  }
  bool state_becomes(const std::string& state) {
    return browser_->wait_for("document.getElementById('state').textContent === '" + state + "'");
  }
  // The answer number `i` is there, whole.
  bool answered(int i) {
    return browser_->wait_for("(() => { const a = document.querySelectorAll('article.assistant')[" +
                              std::to_string(i) +
                              "]; return !!a && a.getAttribute('aria-busy') === 'false'; })()");
  }
  std::string said(int i) {
    return browser_->text("document.querySelectorAll('article .said')[" + std::to_string(i) +
                          "].textContent");
  }

  std::unique_ptr<Browser> browser_;
};

TEST_F(ServePage, AQuestionTypedAndSentWithEnterIsAnswered) {
  start({"--answer-tokens", "40"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(browser_->text("document.activeElement.id"), "text") << "ready to type into";
  EXPECT_EQ(browser_->text("document.getElementById('model').textContent"), "fox");
  browser_->evaluate("document.getElementById('temperature').value = '0'");
  browser_->type("Hello <b>you</b> & me");
  browser_->press_enter();
  ASSERT_TRUE(answered(0));
  EXPECT_EQ(said(0), "Hello <b>you</b> & me");
  EXPECT_EQ(browser_->evaluate("document.querySelectorAll('#log b').length"), 0)
      << "text is text";
  const Json reply = json(post_json(
      "/v1/chat/completions",
      {{"messages", {{{"role", "user"}, {"content", "Hello <b>you</b> & me"}}}},
       {"temperature", 0}}));
  EXPECT_EQ(said(1), reply["choices"][0]["message"]["content"].get<std::string>());
  EXPECT_EQ(browser_->text("document.getElementById('text').value"), "");
  // And all of that from this server alone, without a complaint.
  for (const std::string& url : browser_->requests()) {
    EXPECT_TRUE(url.rfind("http://127.0.0.1:" + std::to_string(port_) + "/", 0) == 0 ||
                url.rfind("data:", 0) == 0)
        << url;
  }
  for (const std::string& complaint : browser_->complaints()) ADD_FAILURE() << complaint;
}

TEST_F(ServePage, EscapeStopsAnAnswerAndTheServerStopsToo) {
  start({"--context", "2048", "--answer-tokens", "1900"}, "96MiB");
  open();
  ASSERT_TRUE(state_becomes("ready"));
  browser_->type("Go on");
  browser_->press_enter();
  ASSERT_TRUE(browser_->wait_for("document.querySelectorAll('article').length === 2"));
  EXPECT_EQ(browser_->evaluate("document.getElementById('send').disabled"), true);
  browser_->press_escape();
  ASSERT_TRUE(answered(0));
  EXPECT_EQ(browser_->text("document.querySelector('article.assistant .note').textContent"),
            "stopped");
  wait_until([&] { return live()["running"] == 0; });
  EXPECT_EQ(browser_->evaluate("document.getElementById('send').disabled"), false);
  EXPECT_EQ(browser_->text("document.activeElement.id"), "text");
}

TEST_F(ServePage, MemoryAndPlanAreThereAsNumbers) {
  start();
  complete("warm", 8);
  open();
  ASSERT_TRUE(state_becomes("ready"));
  ASSERT_TRUE(browser_->wait_for("document.querySelectorAll('#memory tbody tr').length > 2"));
  const std::string memory = browser_->text("document.getElementById('memory').innerText");
  EXPECT_NE(memory.find(" of 64.0 MiB"), std::string::npos) << memory;
  EXPECT_NE(memory.find("of the budget are left"), std::string::npos) << memory;
  EXPECT_NE(memory.find("weights"), std::string::npos) << memory;
  EXPECT_NE(memory.find("kv"), std::string::npos) << memory;
  const std::string plan = browser_->text("document.getElementById('plan').innerText");
  EXPECT_NE(plan.find("Weights that stay"), std::string::npos) << plan;
  EXPECT_NE(plan.find("arena"), std::string::npos) << plan;
  // Bars fill what their numbers say: none is empty, all are inside.
  EXPECT_EQ(browser_->evaluate("[...document.querySelectorAll('.bar')].every(b => "
                               "b.scrollWidth <= b.clientWidth + 1)"),
            true);
}

TEST_F(ServePage, AScreenReaderIsToldWhatIsWhat) {
  start();
  open();
  ASSERT_TRUE(state_becomes("ready"));
  ASSERT_TRUE(browser_->wait_for("document.querySelectorAll('#memory tbody tr').length > 2"));
  std::map<std::string, std::vector<std::string>> names;
  for (const Json& node : browser_->accessibility()) {
    if (node.value("ignored", false)) continue;
    names[node["role"].value("value", "")].push_back(
        node.contains("name") ? node["name"].value("value", "") : "");
  }
  const auto has = [&](const std::string& role, const std::string& name) {
    return std::count(names[role].begin(), names[role].end(), name) > 0;
  };
  EXPECT_TRUE(has("main", "Chat"));
  EXPECT_TRUE(has("complementary", "What the server is doing"));
  EXPECT_TRUE(has("log", "Conversation"));
  EXPECT_TRUE(has("textbox", "Message"));
  for (const char* name : {"Send", "Stop", "New chat"}) EXPECT_TRUE(has("button", name)) << name;
  for (const char* name : {"Now", "Memory", "Plan"}) {
    EXPECT_TRUE(has("heading", name)) << name;
    EXPECT_TRUE(has("region", name)) << name;
  }
  EXPECT_EQ(names["status"].size(), 1u);
  EXPECT_FALSE(names["rowheader"].empty());
  EXPECT_FALSE(names["columnheader"].empty());
  for (const char* role : {"button", "link", "textbox", "img", "image"}) {
    for (const std::string& name : names[role]) EXPECT_NE(name, "") << role;
  }
}

TEST_F(ServePage, EverythingIsReachedWithTheTabKey) {
  start();
  open();
  ASSERT_TRUE(state_becomes("ready"));
  ASSERT_TRUE(browser_->wait_for("document.getElementById('plan').childElementCount > 0"));
  std::vector<std::string> seen;
  for (int i = 0; i < 12; ++i) {
    browser_->press_tab();
    seen.push_back(browser_->text(
        "document.activeElement.id || document.activeElement.tagName.toLowerCase()"));
  }
  for (const char* id : {"send", "fresh", "summary", "timeline", "metrics"}) {
    EXPECT_NE(std::find(seen.begin(), seen.end(), id), seen.end()) << id;
  }
}

TEST_F(ServePage, AServerWithAKeyIsAskedForItAndThenAnswers) {
  start({"--api-key", "k-123", "--answer-tokens", "8"});
  open();
  ASSERT_TRUE(state_becomes("asks for a key"));
  EXPECT_EQ(browser_->evaluate("document.getElementById('key-field').hidden"), false);
  browser_->evaluate("document.getElementById('key').focus()");
  browser_->type("k-123");
  browser_->press_tab();
  ASSERT_TRUE(state_becomes("ready"));
  browser_->evaluate("document.getElementById('text').focus()");
  browser_->type("Hello");
  browser_->press_enter();
  ASSERT_TRUE(answered(0));
}

TEST_F(ServePage, WhatTheServerRefusesIsSaidAndTheTextIsNotLost) {
  start({"--context", "512"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  const std::string text(600, 'x');
  browser_->type(text);
  browser_->press_enter();
  ASSERT_TRUE(browser_->wait_for("!document.getElementById('failure').hidden"));
  EXPECT_NE(browser_->text("document.getElementById('failure').textContent").find("512"),
            std::string::npos);
  EXPECT_EQ(browser_->text("document.getElementById('text').value"), text);
  EXPECT_EQ(browser_->evaluate("document.querySelectorAll('article').length"), 0);
}

TEST_F(ServePage, AServerThatGoesIsNoticed) {
  start();
  open();
  ASSERT_TRUE(state_becomes("ready"));
  stop();
  EXPECT_TRUE(state_becomes("cannot be reached"));
}

}  // namespace
}  // namespace headrace::testing

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
  // What the conversation is for the server: roles and texts.
  Json conversation() { return Json::parse(browser_->text("JSON.stringify(messages)")); }
  std::string failure() {
    return browser_->text("document.getElementById('failure').textContent");
  }
  bool failure_is_shown() {
    return browser_->wait_for("!document.getElementById('failure').hidden");
  }
  void ask_page(const std::string& question) {
    browser_->evaluate("document.getElementById('text').focus()");
    browser_->type(question);
    browser_->press_enter();
  }
  // The elements that the page makes of an answer.
  std::string shown(const std::string& text) {
    return browser_->text("(() => { const e = document.createElement('div'); show_text(e, " +
                          Json(text).dump() + "); return e.innerHTML; })()");
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
  EXPECT_EQ(conversation()[1]["content"], reply["choices"][0]["message"]["content"]);
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
  EXPECT_NE(memory.find("KV of sequences"), std::string::npos) << memory;
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

TEST_F(ServePage, WhatIsOutOfRangeIsSaidThoughItsFieldIsFoldedAway) {
  start();
  open();
  ASSERT_TRUE(state_becomes("ready"));
  browser_->evaluate("document.getElementById('temperature').value = '5'");
  browser_->type("Hello");
  browser_->evaluate("document.getElementById('send').click()");
  ASSERT_TRUE(failure_is_shown());
  EXPECT_NE(failure().find("temperature"), std::string::npos) << failure();
}

TEST_F(ServePage, AKeyThatIsNotAcceptedOrCannotBeOneIsSaid) {
  start({"--api-key", "k-123"});
  open();
  ASSERT_TRUE(state_becomes("asks for a key"));
  browser_->evaluate("document.getElementById('key').focus()");
  browser_->type("k-124");
  browser_->press_tab();
  ASSERT_TRUE(failure_is_shown());
  EXPECT_EQ(failure(), "The server does not accept this key.");
  browser_->evaluate("document.getElementById('key').select()");
  browser_->type("k\xc3\xa4y");
  browser_->press_tab();
  EXPECT_NE(failure().find("ASCII"), std::string::npos) << failure();
  browser_->evaluate("document.getElementById('key').select()");
  browser_->type("k-123");
  browser_->press_tab();
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_TRUE(browser_->wait_for("document.getElementById('failure').hidden"));
}

TEST_F(ServePage, ANewChatKeepsNothingOfAnAnswerThatStillRan) {
  start({"--context", "2048", "--answer-tokens", "1900"}, "96MiB");
  open();
  ASSERT_TRUE(state_becomes("ready"));
  ask_page("The first");
  ASSERT_TRUE(browser_->wait_for("(document.querySelector('article.assistant .said') || {})"
                                 ".textContent > ''"));
  browser_->evaluate("document.getElementById('fresh').click()");
  EXPECT_EQ(browser_->evaluate("document.querySelectorAll('article').length"), 0);
  browser_->evaluate("document.getElementById('most').value = '4'");
  ask_page("The second");
  ASSERT_TRUE(answered(0));
  const Json all = conversation();
  ASSERT_EQ(all.size(), 2u) << all;
  EXPECT_EQ(all[0]["content"], "The second");
  EXPECT_EQ(all[1]["role"], "assistant");
}

TEST_F(ServePage, QuestionsAndAnswersAlternateThoughOneWasStoppedBeforeItBegan) {
  start({"--answer-tokens", "4"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  browser_->type("Stopped at once");
  browser_->evaluate("send(); stop()");
  ASSERT_TRUE(answered(0));
  ask_page("And again");
  ASSERT_TRUE(answered(1));
  const Json all = conversation();
  ASSERT_EQ(all.size(), 4u) << all;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["role"], i % 2 == 0 ? "user" : "assistant") << i;
  }
}

TEST_F(ServePage, MarkdownBecomesElementsAndHtmlStaysText) {
  start();
  open();
  const std::pair<const char*, const char*> cases[] = {
      {"a **b** *c* ***d*** `e*f*`",
       "<p>a <strong>b</strong> <em>c</em> <em><strong>d</strong></em> <code>e*f*</code></p>"},
      {"snake_case_name __init__ 2 * 3 * 4 \\*x\\* **open `open",
       "<p>snake_case_name __init__ 2 * 3 * 4 *x* **open `open</p>"},
      {"<script>alert(1)</script><img src=x onerror=alert(2)>",
       "<p>&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;</p>"},
      {"[a](javascript:alert(1)) ![b](//evil/x.png)",
       "<p>[a](javascript:alert(1)) ![b](//evil/x.png)</p>"},
      {"# One\ntext\n### *Two* ###", "<h4>One</h4><p>text</p><h5><em>Two</em></h5>"},
      {"1. a\n   - b\n   - c\n\n2. d",
       "<div><ol start=\"1\"><li>a<ul><li>b</li><li>c</li></ul></li><li>d</li></ol></div>"},
      {"In\n1986. That year", "<p>In\n1986. That year</p>"},
      {"| a | b |\n|---|--:|\n| **1** | <i> |",
       "<div class=\"wide-table\"><table><thead><tr><th scope=\"col\">a</th><th scope=\"col\">b"
       "</th></tr></thead><tbody><tr><td><strong>1</strong></td><td>&lt;i&gt;</td></tr></tbody>"
       "</table></div>"},
      {"> a\n> b\n\n---\nc", "<blockquote><p>a\nb</p></blockquote><hr><p>c</p>"},
      {"```py\n<b>**x**\n\ny", "<figure class=\"code\"><figcaption><span>py</span><button "
       "type=\"button\" class=\"small\">Copy</button></figcaption><pre><code>&lt;b&gt;**x**\n\ny"
       "</code></pre></figure>"}};
  for (const auto& [text, html] : cases) EXPECT_EQ(shown(text), html) << text;

  // However its pieces come, an answer looks as if it had come at once.
  const std::string all = [&] {
    std::string joined;
    for (const auto& one : cases) joined += std::string(one.first) + "\n```\n\n";
    return joined;
  }();
  EXPECT_EQ(browser_->text("(() => { const e = document.createElement('div'), t = " +
                           Json(all).dump() + "; for (let i = 1; i <= t.length; ++i) show_text(e, "
                           "t.slice(0, i)); return e.innerHTML; })()"),
            shown(all));
  // What a model says that has lost its way is drawn in time that grows as its text does: each of
  // these would take minutes or the stack otherwise, and the browser would not answer.
  for (const std::string piece : {"`", "*", "**a ", "*a _b ", "> ", "- ", "| ", "#", "1. ", "``` ",
                                  "  - a\n", "|a|\n|-|\n"}) {
    for (std::string text : {"", "x "}) {
      while (text.size() < 50'000) text += piece;
      EXPECT_EQ(shown(text).substr(0, 1), "<") << piece;
    }
  }
  const auto many = [](int n, const std::string& piece) {
    std::string text;
    for (int i = 0; i < n; ++i) text += piece;
    return text;
  };
  const std::string blanks = many(100'000, " ");
  EXPECT_EQ(shown("# in" + blanks + "C#"), "<h4>in" + blanks + "C#</h4>");
  EXPECT_EQ(shown(many(100'000, "`") + "a`").substr(0, 4), "<p>`");
  EXPECT_EQ(shown("|a|\n|" + many(100'000, "-") + "x|").substr(0, 9), "<p>|a|\n|-");
  EXPECT_EQ(shown(many(80'000, "*a* ")).substr(0, 24), "<p><em>a</em> <em>a</em>");
  for (const std::string& complaint : browser_->complaints()) ADD_FAILURE() << complaint;
}

TEST_F(ServePage, AnAnswerAndItsCodeAreCopiedAsTheyWereWritten) {
  start({"--answer-tokens", "8"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  browser_->evaluate("Object.defineProperty(navigator, 'clipboard', {value: {writeText: "
                     "async (t) => { window.copied = t; }}});"
                     "document.getElementById('temperature').value = '0'");
  ask_page("Hello");
  ASSERT_TRUE(answered(0));
  browser_->evaluate("document.querySelector('.after button').click()");
  EXPECT_EQ(browser_->text("window.copied"), conversation()[1]["content"].get<std::string>());
  EXPECT_TRUE(browser_->wait_for(
      "document.querySelector('.after button').textContent === 'Copied'"))
      << "and said";
  browser_->evaluate("show_text(document.querySelector('.assistant .said'), '```\\na\\n  b\\n```');"
                     "document.querySelector('.code button').click()");
  EXPECT_EQ(browser_->text("window.copied"), "a\n  b");
  // Another machine without TLS: no clipboard for pages, but the old way.
  browser_->evaluate("window.copied = ''; document.execCommand = (c) => { window.copied = c + "
                     "document.activeElement.value; return true; }; "
                     "navigator.clipboard.writeText = () => { throw new Error('no'); }");
  ASSERT_TRUE(browser_->wait_for("document.querySelector('.code button').textContent === 'Copy'"));
  browser_->evaluate("document.querySelector('.code button').click()");
  EXPECT_EQ(browser_->text("window.copied"), "copya\n  b");
}

TEST_F(ServePage, AScreenReaderHearsParagraphsAndIsNotMovedByNewNumbers) {
  start({"--answer-tokens", "40"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(browser_->text("document.getElementById('log').getAttribute('aria-live')"), "off");
  EXPECT_EQ(browser_->text("document.getElementById('told').getAttribute('aria-live')"), "polite");
  ASSERT_TRUE(browser_->wait_for("document.querySelectorAll('#memory td').length > 2"));
  browser_->evaluate("window.cell = document.querySelector('#memory td'); window.lines = [];"
                     "new MutationObserver(m => m.forEach(r => r.addedNodes.forEach(n => "
                     "window.lines.push(n.textContent)))).observe(document.getElementById('told'), "
                     "{childList: true});"
                     "document.getElementById('temperature').value = '0'");
  ask_page("Hello");
  ASSERT_TRUE(answered(0));
  const Json lines = browser_->evaluate("window.lines");
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(lines.front(), "Answering");
  EXPECT_NE(lines.back().get<std::string>().find(" token"), std::string::npos) << lines;
  EXPECT_LT(lines.size(), 20u) << "40 tokens are not told one by one: " << lines;
  ASSERT_TRUE(browser_->wait_for("looks > 2"));
  EXPECT_EQ(browser_->evaluate("window.cell.isConnected"), true);
}

TEST_F(ServePage, TextHasTheContrastThatPeopleNeed) {
  start({"--api-key", "k-123", "--answer-tokens", "8"});
  open();
  ASSERT_TRUE(state_becomes("asks for a key"));
  browser_->evaluate("document.getElementById('key').value = 'k-123'; take_key(); look()");
  ASSERT_TRUE(state_becomes("ready"));
  ask_page("Hello");
  ASSERT_TRUE(answered(0));
  browser_->evaluate("show_text(document.querySelector('.assistant .said'), '# A\\n> `b` c\\n\\n"
                     "```x\\ny\\n```\\n|a|\\n|-|\\n|b|'); failed('No.'); "
                     "document.querySelector('details').open = true");
  for (const bool dark : {false, true}) {
    browser_->dark(dark);
    // WCAG 2.2, 1.4.3: at least 4.5 to 1, placeholders too; what is disabled is exempt.
    const std::string low = browser_->text(R"js((() => {
      const numbers = (c) => c.match(/[\d.]+/g).map(Number);
      const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = (e) => {
        for (; e; e = e.parentElement) {
          const c = numbers(getComputedStyle(e).backgroundColor);
          if (c.length < 4 || c[3] === 1) return c;
        }
        return [255, 255, 255];
      };
      const low = [];
      const check = (e, color, what) => {
        const a = light(numbers(color)), b = light(behind(e));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) low.push(what + " " + ratio.toFixed(2));
      };
      for (const e of document.querySelectorAll("body *")) {
        if (e.disabled || e.localName === "script" || e.localName === "style") continue;
        const own = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
        if (own) check(e, getComputedStyle(e).color, e.localName + "." + e.className);
        if (e.placeholder) check(e, getComputedStyle(e, "::placeholder").color, e.id);
      }
      return low.join(", ");
    })())js");
    EXPECT_EQ(low, "") << (dark ? "dark" : "light");
  }
}

TEST_F(ServePage, NothingIsOutOfReachOnANarrowScreen) {
  start({"--answer-tokens", "8"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  ask_page(std::string(300, 'x'));
  ASSERT_TRUE(answered(0));
  browser_->evaluate("show_text(document.querySelector('.assistant .said'), '```\\n' + "
                     "'y'.repeat(300) + '\\n```\\n\\n|' + 'z|'.repeat(99) + '\\n|' + "
                     "'-|'.repeat(99))");
  for (const int width : {320, 390, 800, 1280}) {
    browser_->size(width, 800);
    EXPECT_EQ(browser_->evaluate("document.documentElement.scrollWidth <= innerWidth"), true)
        << width;
    EXPECT_EQ(browser_->evaluate("(() => { const b = document.getElementById('send')"
                                 ".getBoundingClientRect(); return b.bottom <= innerHeight && "
                                 "b.right <= innerWidth; })()"),
              true)
        << width;
  }
}

TEST_F(ServePage, SendingByKeyboardLeavesTheFocusInTheMessage) {
  start({"--answer-tokens", "4"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  browser_->type("Hello");
  browser_->press_tab();
  ASSERT_EQ(browser_->text("document.activeElement.id"), "send");
  browser_->press_enter();
  ASSERT_TRUE(answered(0));
  EXPECT_EQ(browser_->text("document.activeElement.id"), "text");
}

TEST_F(ServePage, AServerThatIsStartedAnewIsTakenAsItIs) {
  start({"--answer-tokens", "4"});
  open();
  ASSERT_TRUE(state_becomes("ready"));
  const auto budget_becomes = [&](const std::string& text) {
    return browser_->wait_for("document.getElementById('plan').innerText.includes('" + text + "')");
  };
  ASSERT_TRUE(budget_becomes("64.0 MiB"));
  stop();
  const std::string other = folder_ / "other.gguf";
  std::filesystem::copy_file(model(), other);
  process_.emplace(folder_, std::vector<std::string>{"serve", other, "--memory", "96MiB", "--port",
                                                     std::to_string(port_), "--answer-tokens",
                                                     "4"});
  ASSERT_TRUE(process_->wait_for_output(1));
  ASSERT_TRUE(budget_becomes("96.0 MiB"));
  EXPECT_EQ(browser_->text("document.getElementById('model').textContent"), "other");
  ask_page("Hello");
  EXPECT_TRUE(answered(0));
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

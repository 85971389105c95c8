// Conversations that have a name: `headrace run --conversation`, and what `headrace kv` does with
// names.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "headrace/kv/prefix_names.h"
#include "tests/e2e/model.h"
#include "tests/e2e/process.h"
#include "tests/kv/prefix_files.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

class Conversations : public ::testing::Test {
 protected:
  void SetUp() override {
    write_streamed_model(folder_ / "model.gguf");
    for (int i = 0; i < 90; ++i) long_text_ += "Line " + std::to_string(i * i) + ". ";
  }

  std::vector<std::string> args(const std::string& text, std::vector<std::string> more) const {
    std::vector<std::string> out = {"run",      folder_ / "model.gguf", "--prompt", text,
                                    "--tokens", "40",       "--ignore-eos",
                                    "--memory", "64MiB",    "--report", folder_ / "report.json"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  Json run(const std::string& text, const std::vector<std::string>& more) const {
    const Finished f = headrace(folder_, args(text, more));
    EXPECT_EQ(f.code, 0) << f.err;
    return f.code == 0 ? Json::parse(slurp(folder_ / "report.json")) : Json();
  }
  Json talk(const std::string& text, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--prefix-store", store(), "--conversation", "talk"});
    return run(text, more);
  }
  void refused(std::vector<std::string> more, int code, const std::string& part) const {
    const Finished f = headrace(folder_, args("more", std::move(more)));
    EXPECT_EQ(f.code, code) << f.err;
    EXPECT_NE(f.err.find(part), std::string::npos) << f.err;
  }
  std::string store() const { return folder_ / "store"; }
  std::string name_file() const { return store() + "/talk.prefix"; }
  Ids saved() const {
    const auto prefix = read_named_prefix(store(), "talk");
    EXPECT_TRUE(prefix.ok()) << prefix.status().message();
    return prefix.ok() ? prefix->tokens : Ids();
  }
  void remove_entries() const {
    for (const std::string& name : names_in(store())) {
      if (name.ends_with(".kv")) std::filesystem::remove(store() + "/" + name);
    }
  }

  Folder folder_;
  std::string long_text_;
};

// Of the tests' tokenizer: a token a byte.
Ids bytes(const std::string& text) {
  return Ids(reinterpret_cast<const uint8_t*>(text.data()),
             reinterpret_cast<const uint8_t*>(text.data()) + text.size());
}
void append(Ids* to, const Ids& more) { to->insert(to->end(), more.begin(), more.end()); }
constexpr int32_t kBegin = 256;

TEST_F(Conversations, GoOnWhereTheyWereLeftAndAreSavedAfterEachRun) {
  const Json plain = run(long_text_, {});
  const Json first = talk(long_text_);
  EXPECT_EQ(first["tokens"], plain["tokens"]);
  EXPECT_EQ(first["prefix_tokens"], 0);
  Ids want = {kBegin};
  append(&want, bytes(long_text_));
  append(&want, first["tokens"].get<Ids>());
  EXPECT_EQ(saved(), want);
  // The same again from the tokens alone.
  std::filesystem::copy(store(), folder_ / "before", std::filesystem::copy_options::recursive);
  const Json second = talk(" And then?");
  EXPECT_GE(second["prefix_tokens"], static_cast<int64_t>(want.size()) - 64);
  EXPECT_LE(second["peak_rss_bytes"], second["budget_bytes"]);
  append(&want, bytes(" And then?"));
  append(&want, second["tokens"].get<Ids>());
  EXPECT_EQ(saved(), want);
  const Json third = talk(" Why?");
  EXPECT_GE(third["prefix_tokens"], static_cast<int64_t>(want.size()) - 64);
  append(&want, bytes(" Why?"));
  append(&want, third["tokens"].get<Ids>());
  EXPECT_EQ(saved(), want);

  std::filesystem::remove_all(store());
  std::filesystem::rename(folder_ / "before", store());
  remove_entries();
  const Json computed = talk(" And then?");
  EXPECT_EQ(computed["prefix_tokens"], 0);
  EXPECT_EQ(computed["tokens"], second["tokens"]);
  // In another format nothing is restored, and the conversation goes on all the same.
  EXPECT_EQ(talk(" Why?", {"--kv", "q8"})["prefix_tokens"], 0);
}

TEST_F(Conversations, GoOnThroughTheChatTemplate) {
  const Json first = talk("Hello.", {"--chat", "--system", "Be brief."});
  Ids want = {kBegin};
  append(&want, bytes("system: Be brief.\nuser: Hello.\nassistant:"));
  append(&want, first["tokens"].get<Ids>());
  EXPECT_EQ(saved(), want);
  // What looks like a special token is what the user wrote.
  const Json second = talk("<|end|>", {"--chat"});
  append(&want, bytes("\nuser: <|end|>\nassistant:"));
  append(&want, second["tokens"].get<Ids>());
  EXPECT_EQ(saved(), want);
  refused({"--chat", "--system", "Be long.", "--prefix-store", store(), "--conversation", "talk"},
          2, "has begun");
  EXPECT_EQ(saved(), want);
}

TEST_F(Conversations, TypedByHandAreSavedToo) {
  const std::vector<std::string> words = {
      "run",      folder_ / "model.gguf", "--chat",   "--ignore-eos",   "--tokens", "8",
      "--memory", "64MiB",                "--prefix-store", store(), "--conversation", "talk"};
  size_t before = 0;
  for (int i = 0; i < 2; ++i) {
    Process::Options options;
    options.terminal = true;
    const Process p(folder_, words, options);
    const size_t at = p.wait_for_screen("> ");
    ASSERT_GT(at, 0u);
    p.type("Hello.\n");
    const size_t next = p.wait_for_screen("> ", at + 8);
    ASSERT_GT(next, 0u);
    p.type("More.\n");
    ASSERT_GT(p.wait_for_screen("> ", next + 7), 0u);
    p.type("\x04");
    const Finished f = const_cast<Process&>(p).wait();
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.err.find("conversation 'talk': " + std::to_string(before) + " tokens"),
              std::string::npos)
        << f.err;
    const size_t now = saved().size();
    EXPECT_GT(now, before + 40);
    before = now;
  }
}

TEST_F(Conversations, AreRefusedByNameAndLeftAsTheyWere) {
  talk("Hello.");
  const std::string before = slurp(name_file());
  const std::vector<std::string> talk = {"--prefix-store", store(), "--conversation", "talk"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), talk.begin(), talk.end());
    return more;
  };
  refused({"--conversation", "talk"}, 2, "--prefix-store");
  for (const char* name : {"a/b", "..", ".x", "a b"}) {
    refused({"--prefix-store", store(), "--conversation", name}, 2, "--conversation");
  }
  refused(with({"--context", "50"}), 2, "50");
  // Another model's.
  GgufWriter gguf = tiny_gguf([] {
    TinyShape s = streamed_shape();
    s.seed = 9;
    return s;
  }());
  add_byte_tokenizer(&gguf);
  std::filesystem::rename(folder_ / "model.gguf", folder_ / "first.gguf");
  gguf.write(folder_ / "model.gguf");
  refused(talk, 4, "another model");
  std::filesystem::rename(folder_ / "first.gguf", folder_ / "model.gguf");
  // A folder that nothing can be saved in.
  refused({"--prefix-store", "/proc/nowhere", "--conversation", "talk"}, 5, "/proc/nowhere");
  EXPECT_EQ(slurp(name_file()), before);
  // Damaged.
  std::string damaged = before;
  damaged[100] ^= 1;
  write_text(name_file(), damaged);
  refused(talk, 4, "talk.prefix: is damaged");
  EXPECT_EQ(slurp(name_file()), damaged) << "it is not replaced by what it has not gone on from";
}

TEST_F(Conversations, ThatAreStoppedAreLeftAsTheyWere) {
  talk("Hello.");
  const std::string before = slurp(name_file());
  std::vector<std::string> words = args("more", {"--prefix-store", store(), "--conversation",
                                                 "talk", "--context", "20000"});
  *(std::find(words.begin(), words.end(), "--tokens") + 1) = "0";
  Process p(folder_, words);
  ASSERT_TRUE(p.wait_for_output(8));
  p.send(SIGINT);
  EXPECT_NE(p.wait().code, 0);
  EXPECT_EQ(slurp(name_file()), before);
}

TEST_F(Conversations, NamesAreListedOutlivePruningAndAreForgottenWhenAsked) {
  talk(long_text_);
  const auto list = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"kv", store(), "--json"});
    const Finished f = headrace(folder_, more);
    EXPECT_EQ(f.code, 0) << f.err;
    return f.code == 0 ? Json::parse(f.out) : Json();
  };
  Json now = list({"--verify"});
  const int64_t tokens = now["names"][0]["tokens"];
  EXPECT_EQ(now["names"][0]["name"], "talk");
  EXPECT_EQ(static_cast<size_t>(tokens), saved().size());
  EXPECT_GE(now["names"][0]["kept_tokens"], tokens - 64);
  now = list({"--prune", "0"});
  EXPECT_EQ(now["names"][0]["tokens"], tokens);
  EXPECT_EQ(now["names"][0]["kept_tokens"], 0);
  talk(" Go on.");
  // Damaged: named, and forgotten as others are.
  std::filesystem::copy(name_file(), store() + "/other.prefix");
  std::string text = slurp(name_file());
  text[text.size() - 1] ^= 1;
  write_text(name_file(), text);
  const Finished bad = headrace(folder_, {"kv", store()});
  EXPECT_EQ(bad.code, 4);
  EXPECT_NE(bad.out.find("talk.prefix: is damaged"), std::string::npos) << bad.out;
  now = list({"--forget", "talk"});
  EXPECT_EQ(now["forgotten"], 1);
  EXPECT_EQ(now["names"][0]["name"], "other");
  EXPECT_GT(now["entries"].size(), 0u);
  for (const char* name : {"talk", "a/b", ""}) {
    EXPECT_EQ(headrace(folder_, {"kv", store(), "--forget", name}).code, 2) << name;
  }
  EXPECT_EQ(list({})["names"].size(), 1u);
}

}  // namespace
}  // namespace headrace::testing

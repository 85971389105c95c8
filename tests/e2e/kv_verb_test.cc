// headrace kv: what it shows of a prefix store's folder, and what it removes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/model.h"
#include "tests/e2e/process.h"
#include "tests/kv/prefix_files.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

class KvVerb : public ::testing::Test {
 protected:
  KvVerb() : store_(folder_ / "store") {
    auto store = PrefixStore::open(store_, small_options());
    HR_CHECK(store.ok(), "the store opens");
    put_all(**store, tokens_of(1, 640));
    HR_CHECK((*store)->save_name("talk", tokens_of(1, 640)).ok(), "a name is saved");
    HR_CHECK((*store)->flush().ok(), "all is written");
  }
  void damage() {
    const std::string path = store_ + "/" + names_in(store_).at(0);
    std::string text = file_text(path);
    text[text.size() - 5000] = static_cast<char>(text[text.size() - 5000] ^ 1);
    write_text(path, text);
  }
  Folder folder_;
  const std::string store_;
};

TEST_F(KvVerb, ListsPromptsAndNames) {
  const Finished f = headrace(folder_, {"kv", store_});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("3 entries of 1 prompts"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("talk"), std::string::npos) << f.out;
  const Finished json = headrace(folder_, {"kv", store_, "--json"});
  const Json list = Json::parse(json.out);
  EXPECT_EQ(list["entries"].size(), 3u);
  EXPECT_EQ(list["prompts"][0]["tokens"], 640);
  EXPECT_EQ(list["names"][0]["kept_tokens"], 640);
  EXPECT_EQ(list["verified"], false);
}

TEST_F(KvVerb, NamesADamagedFileAndRemovesIt) {
  EXPECT_EQ(headrace(folder_, {"kv", store_, "--verify"}).code, 0);
  damage();
  const Finished f = headrace(folder_, {"kv", store_, "--verify"});
  EXPECT_EQ(f.code, 4);
  EXPECT_NE(f.out.find("cannot be used"), std::string::npos) << f.out;
  const Finished removed = headrace(folder_, {"kv", store_, "--remove-bad", "--json"});
  EXPECT_EQ(removed.code, 0) << removed.err;
  EXPECT_EQ(Json::parse(removed.out)["removed"], 1);
  EXPECT_EQ(Json::parse(removed.out)["entries"].size(), 2u);
}

TEST_F(KvVerb, PrunesToASizeAndRefusesWhatIsNone) {
  EXPECT_EQ(headrace(folder_, {"kv", store_, "--prune", "banana"}).code, 2);
  EXPECT_EQ(headrace(folder_, {"kv", folder_ / "none"}).code, 2);
  const Finished f = headrace(folder_, {"kv", store_, "--prune", "25KiB", "--json"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(Json::parse(f.out)["pruned"], 2) << f.out;
  EXPECT_EQ(Json::parse(f.out)["prompts"][0]["tokens"], 256);
  EXPECT_EQ(headrace(folder_, {"kv", store_, "--prune", "0"}).code, 0);
  EXPECT_EQ(names_in(store_), std::vector<std::string>{"talk.prefix"});
}

}  // namespace
}  // namespace headrace::testing

// `headrace serve` in a control group whose limit is its budget, as a container has it.
#include <sys/stat.h>
#include <sys/wait.h>

#include <future>

#include "tests/e2e/serve.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMebi = 1 << 20;

// A memory control group (v1) that processes of a test join; there() tells whether it may be made.
class Group {
 public:
  Group()
      : path_("/sys/fs/cgroup/memory/headrace-serve-" + std::to_string(::getpid())),
        there_(::geteuid() == 0 && ::mkdir(path_.c_str(), 0755) == 0) {}
  ~Group() {
    if (there_) ::rmdir(path_.c_str());
  }
  Group(const Group&) = delete;
  bool there() const { return there_; }
  void limit(int64_t bytes) { std::ofstream(path_ + "/memory.limit_in_bytes") << bytes; }
  void join() const { std::ofstream(path_ + "/cgroup.procs") << ::getpid(); }
  std::string name() const { return path_.substr(path_.rfind('/')); }
  int64_t usage() const { return std::stoll(slurp(path_ + "/memory.usage_in_bytes")); }
  bool has_killed() const {
    return slurp(path_ + "/memory.oom_control").find("oom_kill 0") == std::string::npos;
  }

 private:
  const std::string path_;
  const bool there_;
};

class ServeInAGroup : public Serve {
 protected:
  // A long context, sequences that give way, prefixes that are kept.
  std::vector<std::string> options() {
    return {"--context", "1024", "--parallel", "4", "--kv-dir", folder_.path(),
            "--prefix-store", folder_ / "store"};
  }
  // MiB of the least budget that is accepted with these options.
  int64_t least_budget() {
    std::vector<std::string> words = {"serve", model(), "--memory", "1MiB", "--port", "0",
                                      "--threads", "2"};
    for (const std::string& word : options()) words.push_back(word);
    const Finished f = headrace(folder_, words);
    EXPECT_EQ(f.code, 3) << f.err;
    const size_t at = f.err.find("(--memory ");
    return at == std::string::npos ? 0 : std::stoll(f.err.substr(at + 10));
  }
  void start_in(Group* group, int64_t mib) {
    group->limit(mib * kMebi);
    Process::Options o;
    o.in_child = [group] { group->join(); };
    start(options(), std::to_string(mib) + "MiB", o);
  }
  // The texts of prompts long and short, of three priorities, all at once and again, beside clients
  // that do not read their streams.
  std::vector<std::string> load() {
    std::vector<HttpClient> slow;
    for (int i = 0; i < 3; ++i) {
      slow.push_back(client());
      slow.back().send(post("/v1/completions",
                            Json({{"prompt", std::string(300, 's')}, {"max_tokens", 100},
                                  {"logprobs", 5}, {"ignore_eos", true}, {"stream", true}})
                                .dump()));
    }
    std::vector<std::future<std::string>> texts;
    for (int i = 0; i < 12; ++i) {
      texts.push_back(std::async(std::launch::async, [this, i] {
        return complete(std::string(i % 3 == 0 ? 600 : 90, static_cast<char>('a' + i % 9)), 12,
                        {{"priority", i % 4}});
      }));
    }
    std::vector<std::string> out;
    for (auto& text : texts) out.push_back(text.get());
    return out;
  }
  // RssAnon and VmSwap, which no page cache explains.
  int64_t private_bytes() const {
    const std::string status = slurp("/proc/" + std::to_string(process_->pid()) + "/status");
    int64_t sum = 0;
    for (const char* name : {"RssAnon:", "VmSwap:"}) {
      const size_t at = status.find(name);
      if (at != std::string::npos) sum += std::stoll(status.substr(at + 8)) * 1024;
    }
    return sum;
  }
};

TEST_F(ServeInAGroup, WhoseLimitIsItsBudgetItIsNeverKilledAndSaysTheSame) {
  Group group;
  if (!group.there()) GTEST_SKIP() << "no memory control group (v1) may be made here";
  const int64_t least = least_budget();
  ASSERT_GT(least, 8);
  std::vector<std::string> texts;
  for (const int64_t mib : {least, least + 7, 2 * least}) {
    start_in(&group, mib);
    const std::vector<std::string> now = load();
    if (texts.empty()) texts = now;
    EXPECT_EQ(now, texts) << mib << " MiB";
    EXPECT_LE(private_bytes(), mib * kMebi);
    EXPECT_LE(peak_rss(), mib * kMebi);
    EXPECT_EQ(stop().code, 0) << mib << " MiB";
    EXPECT_FALSE(group.has_killed()) << mib << " MiB";
  }
}

// What it will hold is known before it is taken.
TEST_F(ServeInAGroup, WhoseLimitIsBelowItsBudgetItSaysSoInsteadOfBeingKilled) {
  Group group;
  if (!group.there()) GTEST_SKIP() << "no memory control group (v1) may be made here";
  const int64_t budget = least_budget() + 8;
  group.limit((budget - 4) * kMebi);
  Process::Options o;
  o.in_child = [&] { group.join(); };
  std::vector<std::string> words = {"serve", model(), "--memory", std::to_string(budget) + "MiB",
                                    "--port", "0", "--threads", "2"};
  for (const std::string& word : options()) words.push_back(word);
  const Finished f = Process(folder_, words, o).wait();
  EXPECT_EQ(f.code, 3) << f.err;
  EXPECT_EQ(f.out, "");
  EXPECT_NE(f.err.find("control group"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("--memory " + std::to_string(budget - 4) + "MiB at most"),
            std::string::npos)
      << f.err;
}

// Others of the group hold a part of its limit: no reason to refuse (they may go), but it is said.
// Either of them may be killed then: only the warning is looked for.
TEST_F(ServeInAGroup, WhereOthersHoldTooMuchOfTheLimitItWarnsAndNamesTheGroup) {
  Group group;
  if (!group.there()) GTEST_SKIP() << "no memory control group (v1) may be made here";
  const int64_t budget = least_budget() + 8;
  group.limit((budget + 8) * kMebi);
  Process::Options o;
  o.in_child = [&] { group.join(); };
  // A sibling that holds 24 MiB until it is killed.
  const pid_t sibling = ::fork();
  ASSERT_GE(sibling, 0);
  if (sibling == 0) {
    group.join();
    std::vector<char> held(24 * kMebi, 'x');
    for (;;) ::pause();
  }
  wait_until([&] { return group.usage() >= 24 * kMebi; });
  std::vector<std::string> words = {"serve", model(), "--memory", std::to_string(budget) + "MiB",
                                    "--port", "0", "--threads", "2"};
  for (const std::string& word : options()) words.push_back(word);
  Process process(folder_, words, o);
  EXPECT_TRUE(process.wait_for_error("control group"));
  process.send(SIGKILL);
  const Finished f = process.wait();
  ::kill(sibling, SIGKILL);
  ::waitpid(sibling, nullptr, 0);
  EXPECT_NE(f.err.find("but control group " + group.name() + " has"), std::string::npos) << f.err;
}

TEST_F(ServeInAGroup, AllOfItsMemoryIsTakenAtTheStart) {
  start({"--context", "1024", "--kv-dir", folder_.path()}, "96MiB");
  const int64_t before = private_bytes();
  (void)load();
  // Heaps and stacks move a little; pages of KV, weights and workspace do not.
  EXPECT_LE(private_bytes(), before + 2 * kMebi);
  EXPECT_EQ(stop().code, 0);
}

}  // namespace
}  // namespace headrace::testing

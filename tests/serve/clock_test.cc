// Nothing that the server waits for is measured by a clock that can be set: whoever sets it (NTP, a
// person, a machine that was suspended) ends no connection and delays no answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace headrace {
namespace {

// Where the time of day is told to somebody, and how often: never compared with anything.
const std::map<std::string, int> kTold = {
    {"serve/reply_state.cc", 1},  // the Date header
    {"serve/server.cc", 2},       // `created` of models and answers
    {"model/chat_template.cc", 1},
    {"kv/prefix_store.cc", 1},    // when an entry, a name was written, for people
    {"kv/prefix_writer.cc", 1},
};

TEST(Clocks, NoWaitDependsOnTheTimeOfDay) {
  const std::vector<std::string> words = {
      "system_clock",   "high_resolution_clock", "CLOCK_REALTIME", "gettimeofday",
      "time(nullptr)",  "time(NULL)",            "system_timer",   "deadline_timer",
      "TIME_UTC",       "pthread_cond_timedwait", "sem_timedwait", "pthread_mutex_timedlock"};
  const std::filesystem::path root = HEADRACE_SOURCE_DIR "/headrace";
  std::map<std::string, int> found;
  for (const char* folder : {"base", "tier", "model", "run", "kv", "session", "serve"}) {
    for (const auto& file : std::filesystem::directory_iterator(root / folder)) {
      std::ifstream in(file.path());
      for (std::string line; std::getline(in, line);) {
        const bool told = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
          return line.find(word) != std::string::npos;
        });
        if (told) ++found[std::string(folder) + "/" + file.path().filename().string()];
      }
    }
  }
  EXPECT_EQ(found, kTold);
}

}  // namespace
}  // namespace headrace

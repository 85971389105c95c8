// Jobs for an engine of a small model, what came of them, and what a Session alone would have said.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/serve/engine.h"
#include "headrace/session/generate.h"
#include "tests/session/batch_models.h"

namespace headrace::test {

// What one job was told, from the engine's thread.
struct Heard {
  struct Choice {
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<Logprob> chosen;
    std::vector<std::vector<Logprob>> alternatives;
    int ends = 0;
    Finish finish = Finish::kError;
  };
  std::map<int, Choice> choices;
  int ends = 0;
  bool late = false;  // something came after its end
  JobUsage usage;
  Status status;
};

class Ears {
 public:
  // Fills job->events; `stop_after` pieces of text the client is gone (0: never).
  std::shared_ptr<Heard> listen(Job* job, int stop_after = 0) {
    auto heard = std::make_shared<Heard>();
    {
      const std::lock_guard lock(mutex_);
      ++open_;
    }
    auto pieces = std::make_shared<int>(0);
    job->events.on_text = [this, heard, pieces, stop_after](const Emitted& e) {
      const std::lock_guard lock(mutex_);
      Heard::Choice& c = heard->choices[e.choice];
      heard->late |= heard->ends > 0 || c.ends > 0;
      c.text += e.text;
      c.tokens.insert(c.tokens.end(), e.tokens.begin(), e.tokens.end());
      c.chosen.insert(c.chosen.end(), e.chosen.begin(), e.chosen.end());
      c.alternatives.insert(c.alternatives.end(), e.alternatives.begin(), e.alternatives.end());
      changed_.notify_all();
      return stop_after == 0 || ++*pieces < stop_after;
    };
    job->events.on_choice_end = [this, heard](int choice, Finish finish) {
      const std::lock_guard lock(mutex_);
      heard->late |= heard->ends > 0;
      ++heard->choices[choice].ends;
      heard->choices[choice].finish = finish;
    };
    job->events.on_end = [this, heard](const JobUsage& usage, const Status& status) {
      const std::lock_guard lock(mutex_);
      ++heard->ends;
      heard->usage = usage;
      heard->status = status;
      --open_;
      changed_.notify_all();
    };
    return heard;
  }
  void forget() {  // a job that was refused
    const std::lock_guard lock(mutex_);
    --open_;
  }
  void wait_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ == 0; });
  }
  void wait_text(const std::shared_ptr<Heard>& heard) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return heard->ends > 0 || !heard->choices[0].text.empty(); });
  }
  void wait_end(const std::shared_ptr<Heard>& heard) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return heard->ends > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
};

// What `headrace run` says to the same.
class Reference {
 public:
  Reference(const Model& model, int64_t context, KvFormat format = KvFormat::kF16)
      : model_(model) {
    SessionOptions o;
    o.context = context;
    o.prompt_tokens = context / 2;
    o.new_tokens = context / 4;
    o.kv_format = format;
    o.machine = Machine::defaults(1);
    o.memory_bytes = *least_memory(model, o) + 64 * kMiB;
    session_ = start_session(model, o);
  }

  Heard::Choice answer(const Job& job, int number = 0) {
    GenerateOptions g;
    g.max_tokens = job.max_tokens;
    g.ignore_end = job.ignore_end;
    g.sampling = job.sampling;
    g.sampling.seed += static_cast<uint64_t>(number);
    session_->reset();
    Heard::Choice out;
    StreamDecoder decoder(model_.tokenizer, {});
    GenerateStats stats;
    const Status status =
        generate(*session_, model_.tokenizer, job.prompt, g,
                 [&](int32_t token) {
                   out.tokens.push_back(token);
                   out.text += decoder.push(token);
                   return true;
                 }, &stats);
    EXPECT_TRUE(status.ok()) << status.message();
    out.text += decoder.finish();
    out.finish = stats.ended ? Finish::kStop : Finish::kLength;
    return out;
  }

  // Every choice of a job that ended well.
  void expect_same(const Job& job, const Heard& heard) {
    EXPECT_TRUE(heard.status.ok()) << heard.status.message();
    EXPECT_EQ(heard.ends, 1);
    EXPECT_FALSE(heard.late);
    ASSERT_EQ(heard.choices.size(), static_cast<size_t>(job.n));
    for (const auto& [number, choice] : heard.choices) {
      const Heard::Choice alone = answer(job, number);
      EXPECT_EQ(choice.tokens, alone.tokens) << "choice " << number;
      EXPECT_EQ(choice.text, alone.text);
      EXPECT_EQ(choice.finish, alone.finish);
      EXPECT_EQ(choice.ends, 1);
    }
  }

 private:
  const Model& model_;
  std::unique_ptr<Session> session_;
};

}  // namespace headrace::test

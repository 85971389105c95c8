#include "headrace/serve/engine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <latch>
#include <thread>

#include "headrace/base/split_mix.h"
#include "headrace/tier/fault_tier.h"
#include "tests/serve/engine_jobs.h"

namespace headrace::test {
namespace {

constexpr int64_t kContext = 512;

struct Settings {
  int64_t context = kContext;
  int32_t places = 4;
  int32_t blocks = 0;
  int64_t block_tokens = 64;
  int64_t speculate = 0;
  std::string folder;
  Bytes above = 512 * kKiB;
  EngineOptions engine;
  WrapTier weights, blocks_tier;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() : small_(streamed_llama()) {}

  std::unique_ptr<BatchSession> session(const Settings& s) {
    BatchOptions o;
    o.places = s.places;
    o.context = s.context;
    o.step_rows = 96;
    o.speculate = s.speculate;
    o.block_tokens = s.block_tokens;
    o.blocks = s.blocks;
    o.kv_folder = s.folder;
    return start_batch(model(), o, {s.above, s.weights, s.blocks_tier});
  }

  std::unique_ptr<Engine> engine(Settings s, std::unique_ptr<Drafter> drafter = nullptr) {
    s.engine.speculate = s.speculate;
    auto session = this->session(s);
    if (session == nullptr) return nullptr;  // said why
    auto started = Engine::start(model(), std::move(session), s.engine, std::move(drafter));
    EXPECT_TRUE(started.ok()) << started.status().message();
    return started.ok() ? std::move(*started) : nullptr;
  }

  Job job(int64_t prompt, int64_t max_tokens, uint64_t seed = 1) {
    Job j;
    j.prompt = prompt_of(prompt, model().config.vocab - 1, seed);
    j.max_tokens = max_tokens;
    return j;
  }

  Job random_job(SplitMix* random) {
    Job j = job(1 + random->below(200), 1 + random->below(40), random->next());
    if (random->below(2) == 0) {
      j.sampling.temperature = 0.8;
      j.sampling.top_k = 20;
      j.sampling.seed = random->next();
    }
    if (random->below(4) == 0) j.n = 1 + random->below(3);
    j.priority = random->below(3);
    return j;
  }

  std::shared_ptr<Heard> submit(Engine& engine, Job job, int stop_after = 0) {
    auto heard = ears_.listen(&job, stop_after);
    Refusal why;
    last_ = engine.submit(std::move(job), &why);
    EXPECT_TRUE(last_.valid()) << why.status.message();
    if (!last_.valid()) ears_.forget();
    return heard;
  }

  const Model& model() const { return *small_.model; }
  Reference& reference() {
    if (reference_ == nullptr) reference_ = std::make_unique<Reference>(model(), kContext);
    return *reference_;
  }

  // Random jobs beside each other say what each says alone.
  void run_random(const Settings& s, int count, uint64_t seed) {
    const auto engine = this->engine(s);
    ASSERT_NE(engine, nullptr);
    SplitMix random(seed);
    std::vector<Job> jobs;
    std::vector<std::shared_ptr<Heard>> heard;
    for (int i = 0; i < count; ++i) {
      jobs.push_back(random_job(&random));
      heard.push_back(submit(*engine, jobs.back()));
    }
    ears_.wait_all();
    for (size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(i);
      reference().expect_same(jobs[i], *heard[i]);
    }
    const EngineMetrics m = engine->metrics();
    EXPECT_EQ(m.jobs_done, count);
    EXPECT_EQ(m.running + m.preempted + m.waiting, 0);
  }

  SmallModel small_;
  BlockFolder folder_;
  Ears ears_;
  JobId last_;

 private:
  std::unique_ptr<Reference> reference_;
};

TEST_F(EngineTest, ManyJobsAtOnceSayWhatEachSaysAlone) { run_random({}, 24, 1); }

TEST_F(EngineTest, SoTheyDoWithTheFewestBlocksAndADisk) {
  Settings s;
  s.blocks = kContext / 64;
  s.folder = folder_.folder();
  run_random(s, 24, 2);
}

TEST_F(EngineTest, SoTheyDoWithDrafts) {
  Settings s;
  s.speculate = 6;
  run_random(s, 24, 3);
}

TEST_F(EngineTest, SoTheyDoWithDraftsAndTheFewestBlocksAndADisk) {
  Settings s;
  s.speculate = 4;
  s.places = 3;
  s.blocks = kContext / 64;
  s.folder = folder_.folder();
  run_random(s, 24, 4);
}

TEST_F(EngineTest, MoreAnswersThanPlacesEachWithASeedOfItsOwn) {
  Settings s;
  s.places = 2;
  const auto engine = this->engine(s);
  Job j = job(130, 12);
  j.n = 5;
  j.sampling.temperature = 1;
  j.sampling.seed = 77;
  const auto heard = submit(*engine, j);
  ears_.wait_all();
  reference().expect_same(j, *heard);
  EXPECT_NE(heard->choices[0].tokens, heard->choices[1].tokens);
  // The prompt was read once: the others read its last tile at most.
  EXPECT_LT(engine->metrics().rows, 130 + 5 * (12 + 64));
}

TEST_F(EngineTest, APromptThatWasReadBeforeIsAdopted) {
  const auto engine = this->engine({});
  const Job j = job(200, 4);
  const auto first = submit(*engine, j);
  ears_.wait_all();
  const auto second = submit(*engine, j);
  ears_.wait_all();
  EXPECT_EQ(first->usage.cached_tokens, 0);
  EXPECT_EQ(second->usage.cached_tokens, 192);
  EXPECT_EQ(first->choices[0].tokens, second->choices[0].tokens);
}

TEST_F(EngineTest, APromptThatBeginsAsOneThatIsReadWaitsForIt) {
  const auto engine = this->engine({});
  Job j = job(300, 4);
  const auto first = submit(*engine, j);
  j.prompt.resize(250);  // shorter: it would go first
  const auto second = submit(*engine, j);
  ears_.wait_all();
  EXPECT_EQ(first->usage.cached_tokens, 0);
  EXPECT_EQ(second->usage.cached_tokens, 192);
  reference().expect_same(j, *second);
}

TEST_F(EngineTest, AShortPromptDoesNotWaitForALongOneThatBeginsAlikeAndWaitsItself) {
  Settings s;
  s.context = 2048;
  s.blocks = 64;  // for all of them at once
  const auto engine = this->engine(s);
  ASSERT_NE(engine, nullptr);
  std::string order;  // of what is said; the engine's thread writes it
  std::latch all(1);
  const auto submit_named = [&](Job j, char name) {
    auto heard = ears_.listen(&j);
    j.events.on_text = [&, name, tell = j.events.on_text](const Emitted& e) {
      if (name == 'X') all.wait();
      order += name;
      return tell(e);
    };
    Refusal why;
    EXPECT_TRUE(engine->submit(std::move(j), &why).valid()) << why.status.message();
    return heard;
  };
  // One system prompt, then a book, a longer book and a question.
  const Job system = job(64, 2);
  const auto with = [&](int64_t more, uint64_t seed) {
    Job j = system;
    const Job rest = job(more, 2, seed);
    j.prompt.insert(j.prompt.end(), rest.prompt.begin(), rest.prompt.end());
    return j;
  };
  submit_named(job(1, 1, 9), 'X');
  submit_named(with(1200, 2), 'A');
  submit_named(with(1700, 3), 'B');
  const auto question = submit_named(with(70, 4), 'V');
  all.count_down();
  ears_.wait_all();
  EXPECT_LT(order.find('V'), order.find('A')) << order;
  EXPECT_LT(order.find('A'), order.find('B')) << order;
  EXPECT_EQ(question->usage.cached_tokens, 64);  // of A, which it waited for
}

TEST_F(EngineTest, ANextEngineFindsInTheStoreWhatThisOneRead) {
  Settings s;
  s.block_tokens = 256;
  s.engine.prefix_folder = folder_.folder() + "/store";
  const Job j = job(300, 20);
  for (int run = 0; run < 2; ++run) {
    const auto engine = this->engine(s);
    ASSERT_NE(engine, nullptr);
    const auto heard = submit(*engine, j);
    engine->drain();
    reference().expect_same(j, *heard);
    EXPECT_EQ(heard->usage.cached_tokens, run * 256);
    EXPECT_EQ(engine->metrics().store_hits, run);
    EXPECT_EQ(engine->metrics().store_misses, 1 - run);
  }
}

TEST_F(EngineTest, ALongPromptComesBackFromTheStoreWhileOthersGoOn) {
  Settings s;
  s.context = 2048;
  s.block_tokens = 256;
  s.engine.prefix_folder = folder_.folder() + "/long";
  s.engine.stretch = 1;  // no time beside those who decode: a block a turn
  Reference alone(model(), s.context);
  const Job first = job(1500, 8, 5);
  Job stream = job(20, 80);
  stream.ignore_end = true;
  {
    const auto engine = this->engine(s);
    ASSERT_NE(engine, nullptr);
    submit(*engine, first);
    engine->drain();
  }
  const auto engine = this->engine(s);
  ASSERT_NE(engine, nullptr);
  const auto beside = submit(*engine, stream);
  ears_.wait_text(beside);
  const int64_t steps = engine->metrics().steps;
  const auto found = submit(*engine, first);
  ears_.wait_text(found);
  const int64_t between = engine->metrics().steps - steps;
  ears_.wait_all();
  alone.expect_same(first, *found);
  alone.expect_same(stream, *beside);
  EXPECT_EQ(found->usage.cached_tokens, 1280);
  EXPECT_EQ(engine->metrics().store_hits, 1);
  EXPECT_GE(between, 5) << "five blocks, a step after each";
}

TEST_F(EngineTest, AHigherPriorityGoesFirstAndWhoMadeRoomSaysTheSame) {
  Settings s;
  s.places = 1;
  s.folder = folder_.folder();
  const auto engine = this->engine(s);
  const Job low = job(150, 300);
  Job high = job(70, 5, 9);
  high.priority = 1;
  Job ignoring = low;
  ignoring.ignore_end = high.ignore_end = true;
  const auto slow = submit(*engine, ignoring);
  ears_.wait_text(slow);
  const auto fast = submit(*engine, high);
  ears_.wait_end(fast);
  EXPECT_EQ(slow->ends, 0) << "it goes on afterwards";
  ears_.wait_all();
  reference().expect_same(ignoring, *slow);
  reference().expect_same(high, *fast);
  const EngineMetrics m = engine->metrics();
  EXPECT_EQ(m.preemptions, 1);
  EXPECT_EQ(m.resumptions, 1);
}

TEST_F(EngineTest, WithoutADiskAHigherPriorityWaitsForTheEndOfWhatRuns) {
  Settings s;
  s.places = 1;
  const auto engine = this->engine(s);
  Job low = job(40, 60);
  low.ignore_end = true;
  Job high = job(70, 5, 9);
  high.priority = 1;
  const auto slow = submit(*engine, low);
  ears_.wait_text(slow);
  const auto fast = submit(*engine, high);
  ears_.wait_end(fast);
  EXPECT_EQ(slow->ends, 1);
  EXPECT_EQ(engine->metrics().preemptions, 0);
}

TEST_F(EngineTest, WhatCanNeverFitIsRefusedWithItsNumbers) {
  const auto engine = this->engine({});
  Refusal why;
  EXPECT_FALSE(engine->submit(job(400, 200), &why).valid());
  EXPECT_EQ(why.kind, Refusal::Kind::kNever);
  EXPECT_EQ(why.status.code(), Code::kDoesNotFit);
  EXPECT_NE(why.status.message().find("512"), std::string::npos) << why.status.message();
  EXPECT_FALSE(engine->submit(job(4, INT64_MAX), &why).valid());
  EXPECT_EQ(why.status.code(), Code::kDoesNotFit);
  Job bad = job(3, 3);
  bad.prompt[1] = static_cast<int32_t>(model().config.vocab);
  EXPECT_FALSE(engine->submit(bad, &why).valid());
  EXPECT_EQ(why.status.code(), Code::kUsage);
  bad.prompt.clear();
  EXPECT_FALSE(engine->submit(bad, &why).valid());
  bad = job(3, 3);
  bad.sampling.temperature = -1;
  EXPECT_FALSE(engine->submit(bad, &why).valid());
  EXPECT_EQ(engine->metrics().jobs_refused, 5);
  const auto heard = submit(*engine, job(5, 3));
  ears_.wait_all();
  EXPECT_TRUE(heard->status.ok());
}

TEST_F(EngineTest, TheQueueIsBoundedAndSaysWhenToComeAgain) {
  Settings s;
  s.places = 1;
  s.engine.queue_jobs = 2;
  const auto engine = this->engine(s);
  std::vector<std::shared_ptr<Heard>> heard;
  Refusal why;
  for (int i = 0; i < 50 && why.kind == Refusal::Kind::kNone; ++i) {
    Job j = job(60, 200);
    j.ignore_end = true;
    heard.push_back(ears_.listen(&j));
    if (!engine->submit(j, &why).valid()) ears_.forget();
  }
  EXPECT_EQ(why.kind, Refusal::Kind::kBusy);
  EXPECT_GE(why.retry_after_s, 1);
  EXPECT_LE(heard.size(), 5u);
}

TEST_F(EngineTest, DrainEndsWhatWasAcceptedAndAcceptsNothingMore) {
  const auto engine = this->engine({});
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 6; ++i) heard.push_back(submit(*engine, job(30, 20, 5)));
  engine->drain();
  for (const auto& h : heard) {
    EXPECT_EQ(h->ends, 1);
    EXPECT_TRUE(h->status.ok());
  }
  Refusal why;
  EXPECT_FALSE(engine->submit(job(1, 1), &why).valid());
  EXPECT_EQ(why.kind, Refusal::Kind::kDraining);
}

TEST_F(EngineTest, StopEndsWhatRunsAndWhatWaitsWithItsReason) {
  Settings s;
  s.places = 2;
  const auto engine = this->engine(s);
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 6; ++i) {
    Job j = job(30, 400);
    j.ignore_end = true;
    heard.push_back(submit(*engine, j));
  }
  ears_.wait_text(heard[0]);
  engine->stop("time is up");
  engine->drain();
  for (const auto& h : heard) {
    EXPECT_EQ(h->ends, 1);
    EXPECT_EQ(h->status.code(), Code::kCancelled);
    EXPECT_EQ(h->status.message(), "time is up");
  }
  Refusal why;
  EXPECT_FALSE(engine->submit(job(1, 1), &why).valid());
  EXPECT_EQ(why.kind, Refusal::Kind::kDraining);
}

TEST_F(EngineTest, DestructionCancelsWhatRunsAndWhatWaits) {
  std::vector<std::shared_ptr<Heard>> heard;
  {
    Settings s;
    s.places = 2;
    const auto engine = this->engine(s);
    for (int i = 0; i < 6; ++i) {
      Job j = job(30, 400);
      j.ignore_end = true;
      heard.push_back(submit(*engine, j));
    }
    ears_.wait_text(heard[0]);
  }
  for (const auto& h : heard) {
    EXPECT_EQ(h->ends, 1);
    EXPECT_EQ(h->status.code(), Code::kCancelled);
  }
}

TEST_F(EngineTest, AClientThatIsGoneTakesNothingWithIt) {
  const auto engine = this->engine({});
  Job j = job(30, 300);
  j.ignore_end = true;
  const auto gone = submit(*engine, j, 3);
  Job other = job(40, 30, 6);
  const auto stays = submit(*engine, other);
  ears_.wait_all();
  EXPECT_EQ(gone->status.code(), Code::kCancelled);
  EXPECT_EQ(gone->choices[0].finish, Finish::kCancelled);
  EXPECT_LT(gone->usage.completion_tokens, 10);
  reference().expect_same(other, *stays);
}

TEST_F(EngineTest, AStormOfCancellationsLosesNobodyAndNothing) {
  Settings s;
  s.places = 3;
  s.blocks = kContext / 64;
  s.speculate = 3;
  s.folder = folder_.folder();
  const auto engine = this->engine(s);
  SplitMix random(8);
  std::vector<Job> jobs;
  std::vector<JobId> ids;
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 60; ++i) {
    jobs.push_back(random_job(&random));
    heard.push_back(submit(*engine, jobs.back()));
    ids.push_back(last_);
  }
  std::vector<std::thread> clients;
  for (int t = 0; t < 2; ++t) {
    clients.emplace_back([&, t] {
      SplitMix mine(static_cast<uint64_t>(t) + 20);
      for (int i = 0; i < 40; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(mine.below(10)));
        engine->cancel(ids[static_cast<size_t>(mine.below(60))]);
      }
    });
  }
  for (std::thread& c : clients) c.join();
  ears_.wait_all();
  int cancelled = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(i);
    cancelled += heard[i]->status.code() == Code::kCancelled;
    if (heard[i]->status.ok()) reference().expect_same(jobs[i], *heard[i]);
    EXPECT_EQ(heard[i]->ends, 1);
  }
  EXPECT_GT(cancelled, 0);
  const EngineMetrics m = engine->metrics();
  EXPECT_EQ(m.jobs_done + m.jobs_cancelled, 60);
  EXPECT_EQ(m.running + m.preempted, 0);
}

// A weights tier whose transfers fail at the given ones, counted over all recoveries.
WrapTier failing(std::shared_ptr<std::vector<FaultPlan>> plans) {
  auto opened = std::make_shared<size_t>(0);
  return [plans, opened](std::unique_ptr<Tier> inner) -> Result<std::unique_ptr<Tier>> {
    FaultPlan plan;
    if (*opened < plans->size()) plan = (*plans)[*opened];
    ++*opened;
    return make_fault_tier(std::move(inner), plan);
  };
}

TEST_F(EngineTest, AFailedStepCostsARetryAndNoText) {
  auto plans = std::make_shared<std::vector<FaultPlan>>();
  for (int64_t at : {150, 250, 200}) plans->push_back({.fail_at = at});
  Settings s;
  s.weights = failing(plans);
  s.above = 64 * kKiB;
  const auto engine = this->engine(s);
  std::vector<Job> jobs;
  std::vector<std::shared_ptr<Heard>> heard;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back(job(70, 25, i + 1));
    heard.push_back(submit(*engine, jobs.back()));
  }
  ears_.wait_all();
  EXPECT_EQ(engine->metrics().step_failures, 3);
  for (size_t i = 0; i < jobs.size(); ++i) reference().expect_same(jobs[i], *heard[i]);
}

TEST_F(EngineTest, ADiskThatIsGoneEndsJobsWithItsErrorAndOneThatIsBackServes) {
  auto plans = std::make_shared<std::vector<FaultPlan>>();
  plans->push_back({.fail_at = 30, .fail_for_ever = true});
  plans->push_back({.fail_at = 1, .fail_for_ever = true});
  Settings s;
  s.weights = failing(plans);
  s.above = 64 * kKiB;
  const auto engine = this->engine(s);
  const auto lost = submit(*engine, job(70, 25));
  ears_.wait_all();
  EXPECT_EQ(lost->status.code(), Code::kIo) << lost->status.message();
  EXPECT_EQ(lost->choices[0].finish, Finish::kError);
  const Job j = job(20, 10);
  const auto served = submit(*engine, j);
  ears_.wait_all();
  reference().expect_same(j, *served);
  EXPECT_EQ(engine->metrics().jobs_failed, 1);
}

TEST_F(EngineTest, AModelFileThatIsWrittenToEndsJobsWithItsName) {
  Settings s;
  s.above = 64 * kKiB;
  const auto engine = this->engine(s);
  const auto before = submit(*engine, job(20, 10));
  ears_.wait_all();
  EXPECT_TRUE(before->status.ok());
  std::ofstream(small_.path(), std::ios::app) << "more";
  Status status;
  for (int i = 0; i < 2000 && status.ok(); ++i) {  // it is looked at once a second
    const auto after = submit(*engine, job(100, 100));
    ears_.wait_all();
    status = after->status;
  }
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("model.gguf"), std::string::npos) << status.message();
  const auto next = submit(*engine, job(20, 10));
  ears_.wait_all();
  EXPECT_EQ(next->status.code(), Code::kIo) << "at once";
}

TEST_F(EngineTest, BlocksThatCannotBeStoredOrDoNotComeBackChangeNoText) {
  for (int64_t fail_at : {1, 2, 3, 5, 8}) {
    for (bool for_ever : {false, true}) {
      SCOPED_TRACE(fail_at);
      Settings s;
      s.places = 2;
      s.blocks = kContext / 64;
      s.folder = folder_.folder();
      s.blocks_tier = [=](std::unique_ptr<Tier> inner) -> Result<std::unique_ptr<Tier>> {
        return make_fault_tier(std::move(inner), {.fail_at = fail_at, .fail_for_ever = for_ever});
      };
      run_random(s, 10, 40);
    }
  }
}

// A bias lets a few tokens alone be said: soon they are said again.
Job repeating(Job j) {
  j.ignore_end = true;
  j.sampling.logit_bias = {{40, 100}, {41, 100}, {42, 100}};
  return j;
}

TEST_F(EngineTest, DraftsOfRepeatedTextAreAcceptedAndChangeNothing) {
  Settings with;
  with.speculate = 8;
  with.engine.measure = false;
  const auto engine = this->engine(with);
  const Job j = repeating(job(20, 200));
  Job sampled = j;
  sampled.sampling.temperature = 0.3;
  const auto heard = submit(*engine, j);
  const auto drawn = submit(*engine, sampled);
  ears_.wait_all();
  reference().expect_same(j, *heard);
  reference().expect_same(sampled, *drawn);
  EXPECT_GT(heard->usage.drafted, 0);
  EXPECT_GT(heard->usage.accepted, 0);
  EXPECT_GT(drawn->usage.drafted, 0);
  EXPECT_LE(drawn->usage.accepted, drawn->usage.drafted);
  EXPECT_EQ(heard->usage.completion_tokens, 200);
}

// Knows what will be said, and says something else now and then.
class Oracle : public Drafter {
 public:
  explicit Oracle(std::vector<std::vector<int32_t>> texts) : texts_(std::move(texts)) {}
  void propose(std::span<DraftAsk> asks) override {
    for (DraftAsk& ask : asks) {
      ask.draft.clear();
      for (const auto& text : texts_) {
        if (text.size() <= ask.tokens.size() ||
            !std::equal(ask.tokens.begin(), ask.tokens.end(), text.begin()))
          continue;
        for (size_t i = ask.tokens.size();
             i < text.size() && static_cast<int64_t>(ask.draft.size()) < ask.most; ++i)
          ask.draft.push_back(random_.below(5) == 0 ? (text[i] + 1) % 300 : text[i]);
        break;
      }
    }
  }
  void forget(int32_t) override {}
  Nanos token_ns(int64_t) const override { return 0; }

 private:
  std::vector<std::vector<int32_t>> texts_;
  SplitMix random_{3};
};

TEST_F(EngineTest, GuessesThatAreRightMostlyAndWrongSometimesChangeNothing) {
  for (const bool disk : {false, true}) {
    SplitMix random(60);
    std::vector<Job> jobs;
    std::vector<std::vector<int32_t>> texts;
    for (int i = 0; i < 16; ++i) {
      jobs.push_back(random_job(&random));
      jobs.back().max_tokens += 60;
      jobs.back().ignore_end = true;
      for (int n = 0; n < jobs.back().n; ++n) {
        texts.push_back(jobs.back().prompt);
        const auto answer = reference().answer(jobs.back(), n).tokens;
        texts.back().insert(texts.back().end(), answer.begin(), answer.end());
      }
    }
    Settings s;
    s.speculate = 12;
    s.engine.measure = false;
    if (disk) s.folder = folder_.folder();
    if (disk) s.blocks = kContext / 64;
    const auto engine = this->engine(s, std::make_unique<Oracle>(texts));
    std::vector<std::shared_ptr<Heard>> heard;
    for (const Job& j : jobs) heard.push_back(submit(*engine, j));
    ears_.wait_all();
    for (size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(i);
      reference().expect_same(jobs[i], *heard[i]);
    }
    const EngineMetrics m = engine->metrics();
    EXPECT_GT(m.accepted, 100);
    EXPECT_LT(m.accepted, m.drafted);
  }
}

// A draft model as cheap as it would be if it were small.
class Cheap : public Drafter {
 public:
  explicit Cheap(std::unique_ptr<DraftModel> inner) : inner_(std::move(inner)) {}
  void propose(std::span<DraftAsk> asks) override { inner_->propose(asks); }
  void forget(int32_t choice) override { inner_->forget(choice); }
  Nanos token_ns(int64_t) const override { return 1; }

 private:
  std::unique_ptr<DraftModel> inner_;
};

TEST_F(EngineTest, ADraftModelThatSaysTheSameIsAcceptedAlways) {
  Settings with;
  with.speculate = 4;
  with.engine.measure = false;
  auto drafter = DraftModel::open(model(), model(), session({}));
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  const auto engine = this->engine(with, std::make_unique<Cheap>(std::move(*drafter)));
  std::vector<Job> jobs;
  std::vector<std::shared_ptr<Heard>> heard;
  for (uint64_t i = 0; i < 6; ++i) {
    jobs.push_back(job(150, 60, i + 1));
    jobs.back().ignore_end = true;
    if (i >= 4) jobs.back().sampling.temperature = 0.3;
    heard.push_back(submit(*engine, jobs.back()));
  }
  ears_.wait_all();
  for (size_t i = 0; i < jobs.size(); ++i) reference().expect_same(jobs[i], *heard[i]);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_GT(heard[i]->usage.drafted, 20);
    EXPECT_EQ(heard[i]->usage.accepted, heard[i]->usage.drafted) << "greedy, and the same model";
  }
}

TEST_F(EngineTest, ADraftModelWhoseStepsFailCostsDraftsAlone) {
  Settings with, failing_one;
  with.speculate = 4;
  with.engine.measure = false;
  auto plans = std::make_shared<std::vector<FaultPlan>>();
  plans->push_back({.fail_at = 200, .fail_for_ever = true});
  plans->push_back({.fail_at = 1, .fail_for_ever = true});
  failing_one.weights = failing(plans);
  failing_one.above = 64 * kKiB;
  auto drafter = DraftModel::open(model(), model(), session(failing_one));
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  const DraftModel& draft = **drafter;
  const auto engine = this->engine(with, std::make_unique<Cheap>(std::move(*drafter)));
  const Job j = job(50, 150);
  const auto heard = submit(*engine, j);
  engine->drain();
  reference().expect_same(j, *heard);
  EXPECT_GE(draft.failures(), 1);
}

TEST_F(EngineTest, ADraftModelFollowsAsManyTextsAsItHasRoomFor) {
  Settings with, narrow;
  with.speculate = 4;
  with.engine.measure = false;
  narrow.blocks = kContext / 64;  // eight; each text comes to need five
  auto drafter = DraftModel::open(model(), model(), session(narrow));
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  const DraftModel& draft = **drafter;
  const auto engine = this->engine(with, std::make_unique<Cheap>(std::move(*drafter)));
  std::vector<std::shared_ptr<Heard>> heard;
  for (uint64_t i = 0; i < 4; ++i) {
    Job j = job(200, 100, i + 1);
    j.ignore_end = true;
    heard.push_back(submit(*engine, j));
  }
  engine->drain();
  EXPECT_EQ(draft.failures(), 0);
  EXPECT_GT(heard[0]->usage.accepted, 20);
}

TEST_F(EngineTest, BothPlansOfAModelAndItsDraftAreWithinTheBudget) {
  BatchOptions o;
  o.places = 3;
  o.context = kContext;
  o.step_rows = 96;
  o.speculate = 4;
  auto draft = plan_draft(model(), o, 24 * kMiB);
  ASSERT_TRUE(draft.ok()) << draft.status().message();
  EXPECT_LE(draft_memory(*draft), 24 * kMiB);
  o.beside_bytes = draft_memory(*draft);
  auto target = start_batch(model(), o);
  ASSERT_NE(target, nullptr);
  const BatchPlan plan = target->plan();
  EXPECT_LE(plan.ledger.reserved(), plan.options.memory_bytes);
  EXPECT_GE(plan.ledger.reserved(), draft_memory(*draft) + plan.arena_bytes);
  auto follower = BatchSession::start(model(), std::move(*draft));
  ASSERT_TRUE(follower.ok()) << follower.status().message();
  auto drafter = DraftModel::open(model(), model(), std::move(*follower));
  ASSERT_TRUE(drafter.ok());
  EngineOptions options;
  options.speculate = 4;
  options.measure = false;
  auto engine = Engine::start(model(), std::move(target), options,
                              std::make_unique<Cheap>(std::move(*drafter)));
  ASSERT_TRUE(engine.ok());
  Job j = job(50, 60);
  j.ignore_end = true;
  const auto heard = submit(**engine, j);
  ears_.wait_all();
  reference().expect_same(j, *heard);
  EXPECT_GT(heard->usage.accepted, 0);
}

TEST_F(EngineTest, ADraftModelOfAnotherVocabularyIsRefused) {
  testing::TinyShape shape = streamed_llama();
  shape.vocab = 336;
  const std::string path = folder_.folder() + "/other.gguf";
  write_model(shape, path);
  const auto other = load_model(path);
  ASSERT_TRUE(other.ok());
  const auto drafter = DraftModel::open(model(), **other, nullptr);
  EXPECT_EQ(drafter.status().code(), Code::kUnsupported);
  EXPECT_NE(drafter.status().message().find("336"), std::string::npos);
}

TEST_F(EngineTest, StopStringsEndATextBeforeThem) {
  const auto engine = this->engine({});
  Job j = job(33, 40, 3);
  j.ignore_end = true;
  const Heard::Choice whole = reference().answer(j);
  // Across the border of two tokens, wherever that is.
  const std::string stop = whole.text.substr(whole.text.size() / 2, 5);
  j.stop = {stop};
  const auto heard = submit(*engine, j);
  ears_.wait_all();
  EXPECT_EQ(heard->choices[0].text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(heard->choices[0].finish, Finish::kStop);
}

TEST_F(EngineTest, LogprobsAreOfTheTokensTheyComeWithAndOfNoOthers) {
  Settings s;
  s.speculate = 4;
  const auto engine = this->engine(s);
  Job j = job(33, 40, 3);
  j.ignore_end = true;
  j.logprobs = 3;
  const auto heard = submit(*engine, j);
  ears_.wait_all();
  const Heard::Choice& c = heard->choices[0];
  ASSERT_EQ(c.tokens.size(), 40u);
  ASSERT_EQ(c.chosen.size(), 40u);
  ASSERT_EQ(c.alternatives.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(c.chosen[i].token, c.tokens[i]);
    ASSERT_EQ(c.alternatives[i].size(), 3u);
    EXPECT_EQ(c.alternatives[i][0].token, c.tokens[i]) << "greedy";
    EXPECT_EQ(c.alternatives[i][0].value, c.chosen[i].value);
  }
}

TEST_F(EngineTest, CountsWhatItDid) {
  const auto engine = this->engine({});
  EXPECT_TRUE(engine->last_timeline().empty());
  Job j = job(50, 10);
  j.ignore_end = true;
  submit(*engine, j);
  ears_.wait_all();
  engine->drain();
  const EngineMetrics m = engine->metrics();
  EXPECT_EQ(m.generated_tokens, 10);
  EXPECT_EQ(m.prompt_tokens, 50);
  EXPECT_EQ(m.rows, 50 + 9);
  EXPECT_EQ(m.steps, 10);
  EXPECT_EQ(m.first_token.count(), 1);
  EXPECT_EQ(m.between_tokens.count(), 9);
  EXPECT_EQ(m.queue_wait.count(), 1);
  EXPECT_GT(m.step_seconds, 0);
  EXPECT_EQ(m.recent.tokens, 10);
  EXPECT_EQ(m.recent.rows, 50 + 9);
  EXPECT_GT(m.streamed_bytes, 0);
  Bytes device = 0;
  for (const MemoryUse& use : m.memory) {
    EXPECT_LE(use.bytes, use.limit) << use.tier << " " << use.what;
    if (use.tier == "device") device += use.bytes;
  }
  EXPECT_LE(device, engine->plan().options.memory_bytes);
  EXPECT_TRUE(parse_chrome_json(engine->last_timeline()).ok());
}

}  // namespace
}  // namespace headrace::test

// Random lives of several sequences in a batch session, each row compared with a Session alone.
#pragma once

#include <map>
#include <utility>

#include "headrace/base/split_mix.h"
#include "tests/kv/flaky_tier.h"
#include "tests/session/batch_models.h"

namespace headrace::test {

struct RandomBatch {
  const char* name = "";
  testing::TinyShape shape;
  KvFormat format = KvFormat::kF16;
  int threads = 1;
  Bytes above = 0;       // the least budget
  bool disk = false;
  bool bad_weights = false, bad_blocks = false;
  int cycles = 1000;
};

class BatchLives {
 public:
  static constexpr int64_t kLength = 384;

  explicit BatchLives(const RandomBatch& c)
      : c_(c), m_(c.shape), texts_(*m_.model, c.format, kLength, {0, 100, 128, 200, 0}),
        vocab_(static_cast<size_t>(m_.model->config.vocab)) {
    BatchOptions o;
    o.places = 4;
    o.context = kLength;
    o.step_rows = 100;
    o.speculate = 3;
    o.block_tokens = 64;
    o.blocks = 11;  // two whole sequences do not fit
    o.kv_format = c.format;
    o.threads = c.threads;
    if (c.disk) o.kv_folder = folder_.folder();
    BatchSetting s;
    s.above = c.above;
    if (c.bad_weights) s.wrap_weights = wrap(&weights_);
    if (c.bad_blocks) s.wrap_blocks = wrap(&blocks_);
    batch_ = start_batch(*m_.model, o, s);
    if (c.bad_weights) weights_.fail_one_in = 700;
    if (c.bad_blocks) blocks_ = {.fail_one_in = 25, .flip_one_in = 25};
  }

  void run(uint64_t seed) {
    random_ = SplitMix(seed);
    ASSERT_NE(batch_, nullptr);
    for (int i = 0; i < c_.cycles && !::testing::Test::HasFatalFailure(); ++i) {
      one();
      if (i % 64 != 0) continue;
      const Status good = batch_->cache().verify();
      ASSERT_TRUE(good.ok()) << good.message();
    }
  }
  int64_t rows_checked() const { return rows_; }
  int64_t refused() const { return refused_; }
  int64_t recoveries() const { return recoveries_; }
  int64_t bad_parts() const { return bad_parts_; }
  const BlockCacheCounts& counts() const { return batch_->cache().counts(); }
  Bytes loaded() const { return batch_->moved().loaded; }

 private:
  struct Life {
    size_t text = 0;
    int64_t length = 0;
    bool out = false;  // preempted
  };
  using Entry = std::map<int32_t, Life>::iterator;

  WrapTier wrap(const testing::Flaky* flaky) {
    return [this, flaky](std::unique_ptr<Tier> inner) -> Result<std::unique_ptr<Tier>> {
      return std::unique_ptr<Tier>(new testing::FlakyTier(std::move(inner), flaky, ++tiers_));
    };
  }

  // Ok, or an error of a kind that this setting has.
  bool ok(const Status& status) {
    if (status.ok()) return true;
    const bool faulty = c_.bad_weights || c_.bad_blocks;
    EXPECT_TRUE(status.code() == Code::kDoesNotFit ||
                (faulty && (status.code() == Code::kIo || status.code() == Code::kBadFile)))
        << status.message();
    ++refused_;
    return false;
  }

  size_t like(size_t text, int64_t length) {
    const auto other = static_cast<size_t>(random_.below(texts_.size()));
    return texts_.alike(text, other, length) ? other : text;
  }

  void one() {
    if (lives_.empty()) return open();
    auto e = lives_.begin();
    std::advance(e, random_.below(lives_.size()));
    const KvSequence id(e->first);
    Life& life = e->second;
    ASSERT_EQ(batch_->length(id), life.length);
    switch (random_.below(14)) {
      case 0: return open();
      case 1: return fork(id, life);
      case 2: {
        const int64_t by = random_.below(random_.below(2) == 0 ? 4 : 100);
        const auto kept = batch_->truncate(id, std::max<int64_t>(0, life.length - by));
        ASSERT_TRUE(kept.ok());
        life.length = *kept;
        return;
      }
      case 3: {
        if (random_.below(2) == 0 && life.length < kLength) return;
        EXPECT_TRUE(batch_->close(id).ok());
        lives_.erase(e);
        return;
      }
      case 4: return out_or_in(id, life);
      case 5: return blocks(id, life);
      default: return step();
    }
  }

  void open() {
    const auto id = batch_->open();
    if (!ok(id.status())) return;
    Life life;
    life.text = static_cast<size_t>(random_.below(texts_.size()));
    const auto kept =
        batch_->adopt(*id, texts_.tokens(life.text, 0, 1 + random_.below(kLength - 1)));
    ASSERT_TRUE(kept.ok());
    life.length = *kept;
    lives_[id->value] = life;
  }

  void fork(KvSequence id, const Life& life) {
    const auto child = batch_->fork(id, random_.below(static_cast<uint64_t>(life.length) + 1));
    if (!ok(child.status())) return;
    Life other = life;
    other.out = false;
    other.length = batch_->length(*child);
    other.text = like(life.text, other.length);
    lives_[child->value] = other;
  }

  void out_or_in(KvSequence id, Life& life) {
    if (!c_.disk) return;
    if (life.out) {
      if (ok(batch_->resume(id))) life.out = false;
    } else if (ok(batch_->preempt(id).status())) {
      life.out = true;
    }
  }

  // What is read of a block is what a sequence of the same tokens has in its place.
  void blocks(KvSequence id, const Life& life) {
    const int64_t whole = life.length / 64;
    if (whole == 0) return;
    const int64_t g = random_.below(static_cast<uint64_t>(whole));
    std::vector<std::byte> bytes(static_cast<size_t>(batch_->plan().block_bytes));
    if (!ok(batch_->read_block(id, g, bytes))) return;
    std::vector<int32_t> before(texts_.tokens(life.text, 0, (g + 1) * 64).begin(),
                                texts_.tokens(life.text, 0, (g + 1) * 64).end());
    std::vector<std::byte>& known = known_[before];
    if (known.empty()) known = bytes;
    EXPECT_TRUE(known == bytes) << "block " << g;
  }

  void step() {
    std::vector<BatchSession::Part> parts;
    std::vector<Life*> of;
    int64_t rows = 100, outputs = 16;
    for (auto& [id, life] : lives_) {
      if (life.out || life.length == kLength || random_.below(3) == 0) continue;
      life.text = like(life.text, life.length);
      const int64_t most = std::min(rows, kLength - life.length);
      const int64_t n = std::min<int64_t>(most, random_.below(4) == 0 ? 1 + random_.below(90)
                                                                      : 1 + random_.below(3));
      if (n < 1) continue;
      const int64_t wanted = std::min<int64_t>({n, outputs, random_.below(5)});
      parts.push_back({KvSequence(id), texts_.tokens(life.text, life.length, n), wanted});
      of.push_back(&life);
      rows -= n;
      outputs -= wanted;
    }
    if (parts.empty()) return;
    const auto logits = batch_->step(parts);
    if (!ok(logits.status())) return after_refusal();
    size_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!ok(parts[i].status)) {
        ++bad_parts_;
        ASSERT_LE(parts[i].sound, of[i]->length);
        of[i]->length = *batch_->truncate(parts[i].sequence, parts[i].sound);
        continue;
      }
      of[i]->length += static_cast<int64_t>(parts[i].tokens.size());
      for (int64_t k = parts[i].outputs; k > 0; --k, ++row) {
        ASSERT_TRUE(texts_.are(logits->subspan(row * vocab_, vocab_), of[i]->text,
                               of[i]->length - k))
            << "sequence " << parts[i].sequence.value << ", position " << of[i]->length - k;
      }
      rows_ += static_cast<int64_t>(parts[i].tokens.size());
    }
    ASSERT_EQ(logits->size(), row * vocab_);
  }

  void after_refusal() {
    if (batch_->failed()) {
      for (auto& [id, life] : lives_) {
        const int64_t now = batch_->length(KvSequence(id));
        ASSERT_TRUE(now == life.length || now == life.length / 64 * 64);
        life.length = now;
      }
      while (batch_->failed()) {
        ASSERT_TRUE(batch_->recover().ok());
        ++recoveries_;
      }
      return;
    }
    for (auto& [id, life] : lives_) ASSERT_EQ(batch_->length(KvSequence(id)), life.length);
    // Room for others.
    auto e = lives_.begin();
    std::advance(e, random_.below(lives_.size()));
    EXPECT_TRUE(batch_->close(KvSequence(e->first)).ok());
    lives_.erase(e);
  }

  const RandomBatch c_;
  const BlockFolder folder_;
  const SmallModel m_;
  const Texts texts_;
  const size_t vocab_;
  testing::Flaky weights_, blocks_;
  uint64_t tiers_ = 10;
  std::unique_ptr<BatchSession> batch_;
  SplitMix random_{1};
  std::map<int32_t, Life> lives_;
  std::map<std::vector<int32_t>, std::vector<std::byte>> known_;
  int64_t rows_ = 0, refused_ = 0, recoveries_ = 0, bad_parts_ = 0;
};

inline testing::TinyShape tiny_of(const char* architecture) {
  testing::TinyShape s;
  s.architecture = architecture;
  if (s.architecture == "gemma3") s.window = 24;
  return s;
}

// Every family, format and kind of trouble; `cycles` of each.
inline std::vector<RandomBatch> random_batches(int cycles) {
  testing::TinyShape llama = streamed_llama();
  llama.layers = 3;
  testing::TinyShape qwen2 = llama;
  qwen2.architecture = "qwen2";
  testing::TinyShape gemma = streamed_gemma3_q4k();
  gemma.layers = 2;
  return {
      {"Llama", tiny_of("llama"), KvFormat::kF16, 1, 16 * kMiB, false, false, false, cycles},
      {"LlamaQ8Disk", tiny_of("llama"), KvFormat::kQ8, 1, 0, true, false, false, cycles},
      {"Qwen2Disk", tiny_of("qwen2"), KvFormat::kBF16, 1, 0, true, false, false, cycles},
      {"Gemma3Disk", tiny_of("gemma3"), KvFormat::kF16, 1, 0, true, false, false, cycles},
      {"Qwen3Q4", tiny_of("qwen3"), KvFormat::kQ4, 1, 0, false, false, false, cycles},
      {"StreamedLlama", llama, KvFormat::kF16, 2, kMiB / 4, true, false, false, cycles / 4},
      {"StreamedQwen2", qwen2, KvFormat::kQ8, 2, kMiB / 2, true, false, false, cycles / 4},
      {"StreamedGemma3", gemma, KvFormat::kF16, 1, kMiB / 4, true, false, false, cycles / 4},
      {"BadWeights", llama, KvFormat::kF16, 1, kMiB / 4, true, true, false, cycles / 4},
      {"BadBlocks", tiny_of("llama"), KvFormat::kF16, 1, 0, true, false, true, cycles},
      {"AllBad", llama, KvFormat::kQ8, 2, kMiB / 2, true, true, true, cycles / 4},
  };
}

inline void PrintTo(const RandomBatch& b, std::ostream* out) { *out << b.name; }

}  // namespace headrace::test

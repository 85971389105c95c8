// ScriptedBackend: stands between the file tier and the real system calls, and answers
// some of them otherwise: short counts, errnos, end of file, late and out of order.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "headrace/tier/io_backend.h"

namespace headrace::testing_tier {

struct Answer {
  // >= 0: at most so many bytes are reported, and what the request delivered beyond them
  // is overwritten. -errno: that, and nothing moves. kPass: what the system says.
  static constexpr int64_t kPass = INT64_MAX;
  int64_t result = kPass;
};

// Called once for each request, in the order of submission (0, 1, ...).
using Script = std::function<Answer(const IoRequest&, int64_t number)>;

class ScriptedBackend final : public IoBackend {
 public:
  // With a `shuffle_seed` completions are handed out late and in another order.
  ScriptedBackend(std::unique_ptr<IoBackend> real, Script script,
                  uint64_t shuffle_seed = 0)
      : real_(std::move(real)),
        script_(std::move(script)),
        shuffle_(shuffle_seed != 0),
        random_(shuffle_seed) {}

  void submit(const IoRequest& request) override {
    Pending pending{request, script_(request, number_++)};
    ++in_flight_;
    most_in_flight_ = std::max(most_in_flight_, in_flight_);
    if (pending.answer.result < 0) {
      held_.push_back({request.tag, pending.answer.result});
      return;
    }
    if (pending_.size() <= request.tag) pending_.resize(request.tag + 1);
    pending_[request.tag] = pending;
    ++in_real_;
    real_->submit(request);
  }
  void flush() override { real_->flush(); }
  int reap(std::span<IoCompletion> out, bool block) override {
    collect(block && held_.empty());
    if (shuffle_) std::shuffle(held_.begin(), held_.end(), random_);
    size_t count = std::min(out.size(), held_.size());
    if (shuffle_ && count > 0) count = random_() % (count + 1);
    if (count == 0 && block) count = std::min<size_t>(1, held_.size());
    for (size_t i = 0; i < count; ++i) out[i] = held_[i];
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    in_flight_ -= static_cast<int>(count);
    return static_cast<int>(count);
  }
  Bytes memory_bytes() const override { return real_->memory_bytes(); }
  int most_in_flight() const { return most_in_flight_; }

 private:
  struct Pending {
    IoRequest request;
    Answer answer;
  };
  void collect(bool block) {
    if (in_real_ == 0) return;
    IoCompletion batch[64];
    const int n = real_->reap(batch, block);
    in_real_ -= n;
    for (int i = 0; i < n; ++i) {
      const Pending& p = pending_[batch[i].tag];
      if (batch[i].result > p.answer.result) {
        if (!p.request.write)
          std::memset(p.request.data + p.answer.result, 0xee,
                      static_cast<size_t>(batch[i].result - p.answer.result));
        batch[i].result = p.answer.result;
      }
      held_.push_back(batch[i]);
    }
  }

  std::unique_ptr<IoBackend> real_;
  Script script_;
  bool shuffle_;
  std::mt19937_64 random_;
  std::vector<Pending> pending_;
  std::deque<IoCompletion> held_;
  int64_t number_ = 0;
  int in_real_ = 0, in_flight_ = 0, most_in_flight_ = 0;
};

}  // namespace headrace::testing_tier

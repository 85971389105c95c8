// A small training run: a folder, its data, a plan of it, a trainer. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "headrace/train/trainer.h"
#include "tests/tier/tier_testing.h"
#include "tests/train/step_models.h"

namespace headrace::test {

// A run folder, its data, and whatever a test wants of a run.
struct TestRun {
  explicit TestRun(StepModel m = small_llama()) : model(std::move(m)) {
    o.config.name = "test";
    o.config.out = folder.path() + "/run";
    std::filesystem::create_directories(o.config.out);
    o.config.precision = model.precision;
    o.config.batch = 2;
    o.config.sequence = 16;
    o.config.accumulation = 2;
    o.config.steps = 10;
    o.config.optimizer.rate = 1e-2;
    o.config.data.format = "u16";
    o.config.data.files = {folder.path() + "/data.u16"};
    std::ofstream data(o.config.data.files[0], std::ios::binary);
    uint32_t x = 1;
    for (int i = 0; i < 4000; ++i) {
      x = x * 1664525u + 1013904223u;
      // Two in three tokens follow from the one before: something to learn.
      const uint16_t token = i % 3 == 0 ? static_cast<uint16_t>((x >> 16) % 67)
                                        : static_cast<uint16_t>((token_ * 5 + 3) % 67);
      token_ = token;
      data.write(reinterpret_cast<const char*>(&token), sizeof token);
    }
    data.close();
    o.memory_bytes = 4 * kGiB;
    o.threads = 1;
    o.profile = false;
    o.tiers = {{"host", "", kGiB}};
    o.machine = Machine::defaults(1);
    o.machine.tiers[1].store_bytes_per_s = o.machine.tiers[1].load_bytes_per_s;
  }

  Status open_data() {
    if (data != nullptr) return {};
    HR_ASSIGN(data, Dataset::open(o.config, o.config.data.files, "train", nullptr, model.vocab));
    return {};
  }

  Result<TrainPlan> plan() const { return plan_training(o, model); }

  Result<std::unique_ptr<Trainer>> start(const std::string& checkpoint = "",
                                         const EngineOptions& options = {}) {
    HR_TRY(open_data());
    TrainPlan p;
    if (planned) {
      p = *planned;
    } else {
      HR_ASSIGN(p, plan());
    }
    Trainer::Sources s;
    s.data = data.get();
    s.eval_data = data.get();
    s.initial = [this](const Parameter& tile, int64_t begin, std::span<float> out) {
      // By name and place, so that every run has the same.
      uint32_t h = 2166136261u;
      for (char c : tile.name) h = (h ^ static_cast<uint8_t>(c)) * 16777619u;
      for (size_t i = 0; i < out.size(); ++i) {
        uint32_t x = h + static_cast<uint32_t>(tile.row_begin * tile.cols + begin) +
                     static_cast<uint32_t>(i);
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        const float u = static_cast<float>(static_cast<int32_t>(x)) * 0x1p-31f;
        const bool norm = tile.kind == ParameterKind::kVector;
        out[i] = norm ? (tile.name.ends_with("bias") ? 0.0f : 1.0f) : u * 0.1f;
        if (tile.name == spoiled) out[i] = std::numeric_limits<float>::infinity();
      }
      return Status();
    };
    return Trainer::start(std::move(p), s, checkpoint, {}, options);
  }

  // All saved state as bytes, in the order of the parameters.
  static std::vector<std::byte> state(Trainer& t) {
    std::vector<std::byte> out;
    const Graph& g = t.plan().step->workload.graph;
    for (const Parameter& p : t.plan().step->parameters) {
      for (TensorId id : {p.param, p.master, p.m, p.v}) {
        if (!id.valid() || g.at(id).role != Role::kState) continue;
        std::vector<std::byte> bytes(static_cast<size_t>(g.at(id).bytes));
        EXPECT_TRUE(t.engine().read(g.at(id).name, 0, bytes).ok());
        out.insert(out.end(), bytes.begin(), bytes.end());
      }
    }
    return out;
  }

  struct Outcome {
    std::vector<double> losses, norms;
    std::vector<std::byte> state;
    bool operator==(const Outcome&) const = default;
  };
  static Outcome finish(Trainer& t, int64_t steps) {
    Outcome out;
    while (t.done() < steps) {
      auto step = t.step();
      EXPECT_TRUE(step.ok()) << step.status().message();
      if (!step.ok()) return out;
      out.losses.push_back(step->loss);
      out.norms.push_back(step->gradient_norm.value_or(0));
    }
    out.state = state(t);
    return out;
  }
  Outcome outcome(int64_t steps, const EngineOptions& options = {}) {
    auto t = start("", options);
    EXPECT_TRUE(t.ok()) << t.status().message();
    return t.ok() ? finish(**t, steps) : Outcome();
  }
  // The room that a run takes when nothing moves, and shares of it that a plan is found for, most
  // first.
  std::vector<Bytes> arenas(const std::vector<double>& shares = {0.5, 0.25}) const {
    auto p = plan();
    EXPECT_TRUE(p.ok()) << p.status().message();
    std::vector<Bytes> out = {p->arena_bytes};
    TrainOptions smaller = o;
    smaller.threads = 2;  // workspaces grow with threads
    for (double share : shares) {
      smaller.arena_bytes =
          round_up(static_cast<Bytes>(share * static_cast<double>(out[0])), kPage);
      if (plan_training(smaller, model).ok()) out.push_back(smaller.arena_bytes);
    }
    return out;
  }
  // From now on runs start with a plan in this share of the room: made once, for all of them.
  void plan_tight(double share = 0.25) {
    auto whole = plan();
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    o.arena_bytes =
        round_up(static_cast<Bytes>(share * static_cast<double>(whole->arena_bytes)), kPage);
    auto tight = plan();
    ASSERT_TRUE(tight.ok()) << tight.status().message();
    planned = std::move(*tight);
  }

  testing_tier::TempFolder folder;
  StepModel model;
  TrainOptions o;
  std::string spoiled;  // a parameter that starts at infinity
  std::unique_ptr<Dataset> data;
  std::optional<TrainPlan> planned;  // what start() takes instead of planning

 private:
  uint16_t token_ = 0;
};

}  // namespace headrace::test

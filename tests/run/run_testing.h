// What the tests of the executor share: weights for a small graph, a plain evaluation
// with everything resident, and a rig of arena, tier, pool and executor.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "headrace/kernel/kernel.h"
#include "headrace/plan/plan.h"
#include "headrace/run/executor.h"
#include "headrace/tier/arena.h"
#include "headrace/tier/fault_tier.h"
#include "headrace/tier/host_tier.h"
#include "tests/plan/small_graphs.h"

namespace headrace::test {

// The graph with the workspaces of its kernels, and the bytes of its file.
struct RunnableGraph {
  std::shared_ptr<const Graph> graph;
  std::vector<std::byte> file;
  int64_t vocab = 0;
};

inline void fill_weight(const Tensor& t, std::byte* to, std::mt19937_64& random) {
  std::uniform_real_distribution<float> uniform(-0.2f, 0.2f);
  if (t.dtype == DType::kF32) {
    for (Bytes i = 0; i < t.source.bytes / 4; ++i) {
      const float v = uniform(random);
      std::memcpy(to + i * 4, &v, 4);
    }
    return;
  }
  for (Bytes i = 0; i < t.source.bytes; ++i) to[i] = static_cast<std::byte>(random());
  const int block = info(t.dtype).block_bytes;
  for (Bytes b = 0; b < t.source.bytes; b += block) {
    // f16 scales near 1/128; q4_1 has a second one, the minimum.
    for (int at = 0; at < (t.dtype == DType::kQ4_1 ? 4 : 2); at += 2) {
      const uint16_t half = static_cast<uint16_t>(0x2000 | (random() & 1023));
      std::memcpy(to + b + at, &half, 2);
    }
  }
}

inline RunnableGraph runnable(const SmallGraph& small, int threads, uint64_t seed = 1) {
  Graph g = *small.graph;
  for (Op& op : g.ops) op.workspace = workspace_bytes(g, op, threads);
  RunnableGraph out;
  out.vocab = small.vocab;
  out.file.assign(static_cast<size_t>(small.file_bytes), std::byte{0xAA});
  std::mt19937_64 random(seed);
  for (const Tensor& t : g.tensors) {
    if (t.source.valid()) fill_weight(t, out.file.data() + t.source.offset, random);
  }
  out.graph = std::make_shared<const Graph>(std::move(g));
  return out;
}

inline StepRows random_rows(const RunnableGraph& r, std::mt19937_64& random) {
  StepRows rows;
  const int64_t n =
      1 + static_cast<int64_t>(random() % static_cast<uint64_t>(r.graph->max_rows));
  for (int64_t i = 0; i < n; ++i) {
    rows.tokens.push_back(
        static_cast<int32_t>(random() % static_cast<uint64_t>(r.vocab)));
    rows.sequences.push_back(0);
    rows.positions.push_back(static_cast<int32_t>(i));
    rows.output_rows.push_back(static_cast<int32_t>(i));
  }
  return rows;
}

struct LineDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};

// Every tensor in memory of its own, ops one after another: "out" of the rows given.
inline std::vector<float> plain_output(const RunnableGraph& r, const StepRows& rows,
                                       int threads = 1) {
  const Graph& g = *r.graph;
  ThreadPool pool(threads, false);
  const auto aligned = [](Bytes bytes) {
    void* p = std::aligned_alloc(kPage, static_cast<size_t>(round_up(bytes + 1, kPage)));
    return std::unique_ptr<std::byte, LineDeleter>(static_cast<std::byte*>(p));
  };
  std::vector<std::unique_ptr<std::byte, LineDeleter>> memory;
  std::vector<std::byte*> at;
  for (const Tensor& t : g.tensors) {
    memory.push_back(aligned(t.bytes));
    at.push_back(memory.back().get());
    if (t.role == Role::kWeight) {
      std::memcpy(at.back(), r.file.data() + t.source.offset,
                  static_cast<size_t>(t.bytes));
    }
    if (t.role == Role::kConstant) {
      std::memcpy(at.back(), t.constant.data(), static_cast<size_t>(t.bytes));
    }
    if (t.role != Role::kGathered) continue;
    const Bytes width = row_bytes(t.dtype, t.cols);
    for (int64_t i = 0; i < rows.rows(); ++i) {
      const int32_t token = rows.tokens[static_cast<size_t>(i)];
      std::memcpy(at.back() + i * gathered_row_stride(t) + gathered_skew(t, token),
                  r.file.data() + t.source.offset + token * width,
                  static_cast<size_t>(width));
    }
  }
  for (const Op& op : g.ops) {
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs, updates;
    for (TensorId t : op.inputs) inputs.push_back(t.valid() ? at[t.index()] : nullptr);
    for (TensorId t : op.outputs) outputs.push_back(at[t.index()]);
    for (TensorId t : op.updates) updates.push_back(at[t.index()]);
    const auto workspace = aligned(op.workspace);
    find_kernel(op, DeviceKind::kCpu)(
        OpContext{g,
                  op,
                  inputs,
                  outputs,
                  updates,
                  {workspace.get(), static_cast<size_t>(op.workspace)},
                  rows,
                  pool});
  }
  std::vector<float> out;
  for (size_t t = 0; t < g.tensors.size(); ++t) {
    if (g.tensors[t].role != Role::kOutput) continue;
    out.resize(static_cast<size_t>(rows.rows() * g.tensors[t].cols));
    std::memcpy(out.data(), at[t], out.size() * sizeof(float));
  }
  return out;
}

// Copies on the calling thread, so that death tests may fork.
inline std::unique_ptr<Tier> memory_tier(const RunnableGraph& r) {
  MappedOptions options;
  options.worker = false;
  auto tier = open_host_tier({static_cast<Bytes>(r.file.size())}, options);
  EXPECT_TRUE(tier.ok()) << tier.status().message();
  auto memory = (*tier)->direct({0, 0, static_cast<Bytes>(r.file.size())});
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  std::memcpy(memory->data(), r.file.data(), r.file.size());
  return std::move(*tier);
}

class Rig {
 public:
  Rig(const RunnableGraph& r, Bytes arena_bytes, const FaultPlan& faults = {},
      int threads = 1)
      : pool(threads, false),
        arena(std::move(Arena::create(arena_bytes).value())),
        tier(make_fault_tier(memory_tier(r), faults)),
        executor(std::make_unique<Executor>(
            arena, std::vector<Tier*>{nullptr, tier.get()}, pool)) {
    fill(arena.at(0, arena.bytes()));
  }

  PreparedPtr prepare(const Program& p) {
    auto prepared = executor->prepare(p);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return prepared.ok() ? std::move(*prepared) : nullptr;
  }

  // Fills with 0xFF what nobody may rely on between two runs: all that is not resident at
  // exit.
  void poison_free_bytes(const Program& p) {
    std::vector<std::pair<Bytes, Bytes>> kept;
    for (const Residency& r : p.residencies) {
      if (r.end == p.exit()) kept.push_back({r.offset, r.offset + r.bytes});
    }
    std::sort(kept.begin(), kept.end());
    Bytes at = 0;
    for (const auto& [begin, end] : kept) {
      if (begin > at) fill(arena.at(at, begin - at));
      at = std::max(at, end);
    }
    fill(arena.at(at, arena.bytes() - at));
  }

  std::vector<float> output(const Prepared& p, const StepRows& rows) const {
    const std::span<const float> all = executor->output(p, "out");
    const int64_t max_rows = Executor::program_of(p).graph->max_rows;
    const size_t cols = all.size() / static_cast<size_t>(max_rows);
    return {all.begin(),
            all.begin() + static_cast<std::ptrdiff_t>(cols * rows.tokens.size())};
  }

  ThreadPool pool;
  Arena arena;
  std::unique_ptr<Tier> tier;
  std::unique_ptr<Executor> executor;

 private:
  static void fill(std::span<std::byte> bytes) {
    std::memset(bytes.data(), 0xFF, bytes.size());
  }
};

inline Program planned(const std::shared_ptr<const Graph>& graph, Bytes arena) {
  static const Machine machine = Machine::defaults(1);
  auto p = plan_cyclic({"test", graph, &machine, arena, {graph->max_rows, 16}});
  EXPECT_TRUE(p.ok()) << p.status().message();
  const Status s = verify(*p);
  EXPECT_TRUE(s.ok()) << s.message();
  return *p;
}
inline Program bridged(const Program& target, const std::vector<Placed>& state) {
  auto p = plan_bridge(target, state);
  EXPECT_TRUE(p.ok()) << p.status().message();
  const Status s = verify(*p);
  EXPECT_TRUE(s.ok()) << s.message();
  return *p;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace headrace::test

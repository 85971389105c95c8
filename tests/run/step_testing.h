// A rig for Programs over several tiers, and the plain evaluation that they are held to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headrace/kernel/codec.h"
#include "headrace/run/executor.h"
#include "headrace/tier/emulated_tier.h"
#include "headrace/tier/fault_tier.h"
#include "headrace/tier/file_tier.h"
#include "headrace/tier/host_tier.h"
#include "headrace/tier/remote_tier.h"
#include "tests/run/random_step.h"
#include "tests/tier/tier_testing.h"

namespace headrace::test {

struct PageFree {
  void operator()(std::byte* p) const { std::free(p); }
};
using PageBuffer = std::unique_ptr<std::byte, PageFree>;
inline PageBuffer page_buffer(Bytes bytes) {
  const auto size = static_cast<size_t>(round_up(bytes + 1, kPage));
  PageBuffer out(static_cast<std::byte*>(std::aligned_alloc(kPage, size)));
  std::memset(out.get(), 0xFF, size);
  return out;
}

// Numbers in [-1, 1).
inline std::vector<std::byte> random_floats(Bytes bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  for (size_t i = 0; i + 4 <= out.size(); i += 4) {
    const float v = static_cast<float>(static_cast<int32_t>(random()) >> 8) * 0x1p-23f;
    std::memcpy(out.data() + i, &v, 4);
  }
  return out;
}

// The bytes of the weights' file and of the states at the start: by tensor, from `seed`.
inline std::vector<std::byte> weight_file(const RandomStep& step, uint64_t seed = 1) {
  std::vector<std::byte> out(static_cast<size_t>(step.file_bytes), std::byte{0xAA});
  for (const Tensor& t : step.graph->tensors) {
    if (!t.source.valid()) continue;
    const auto bytes = random_floats(t.bytes, seed + static_cast<uint64_t>(t.source.offset));
    std::memcpy(out.data() + t.source.offset, bytes.data(), bytes.size());
  }
  return out;
}
inline std::map<std::string, std::vector<std::byte>> first_states(const Graph& g,
                                                                  uint64_t seed = 9) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const Tensor& t : g.tensors) {
    if (t.role == Role::kState) out[t.name] = random_floats(t.bytes, ++seed);
  }
  return out;
}

// Every tensor in memory of its own, ops in the graph's order, nothing ever moved.
class PlainStep {
 public:
  PlainStep(const RandomStep& step, const std::vector<std::byte>& file) : g_(*step.graph) {
    const auto states = first_states(g_);
    for (const Tensor& t : g_.tensors) {
      memory_.push_back(page_buffer(t.bytes));
      std::byte* to = memory_.back().get();
      const auto size = static_cast<size_t>(t.bytes);
      if (t.source.valid()) std::memcpy(to, file.data() + t.source.offset, size);
      if (t.role == Role::kState) std::memcpy(to, states.at(t.name).data(), size);
    }
  }
  // `after` is called with the number of each op once it has run.
  void run(const std::function<void(size_t)>& after = nullptr) {
    StepRows rows;
    rows.tokens = rows.sequences = rows.positions = {0};
    for (size_t o = 0; o < g_.ops.size(); ++o) {
      const Op& op = g_.ops[o];
      std::vector<const std::byte*> inputs;
      std::vector<std::byte*> outputs, updates;
      for (TensorId t : op.inputs) inputs.push_back(memory_[t.index()].get());
      for (TensorId t : op.outputs) outputs.push_back(memory_[t.index()].get());
      for (TensorId t : op.updates) updates.push_back(memory_[t.index()].get());
      const PageBuffer workspace = page_buffer(op.workspace);
      find_kernel(op, DeviceKind::kCpu)(
          OpContext{g_, op, inputs, outputs, updates,
                    {workspace.get(), static_cast<size_t>(op.workspace)}, rows, pool_});
      if (after) after(o);
    }
  }
  // Makes a tensor what is left of it when it is encoded and decoded (not for kBytePlane).
  void pass_through(TensorId tensor, Codec codec) {
    const Tensor& t = g_.at(tensor);
    const std::span<std::byte> plain(memory_[tensor.index()].get(), static_cast<size_t>(t.bytes));
    std::vector<std::byte> form(static_cast<size_t>(encoded_bytes(codec, t)));
    encode(codec, plain, form, nullptr, pool_);
    HR_CHECK(decode(codec, form, plain, nullptr, pool_).ok(), "it was just encoded");
  }
  std::vector<std::byte> bytes(const std::string& name) const {
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      const std::byte* from = memory_[t].get();
      if (g_.tensors[t].name == name) return {from, from + g_.tensors[t].bytes};
    }
    return {};
  }

 private:
  const Graph& g_;
  std::vector<PageBuffer> memory_;
  ThreadPool pool_{1, false};
};

enum class Kind { kHost, kHostThread, kFile, kRemote, kEmulated };

struct StepRig {
  // Puts something around the tier numbered.
  using Wrap = std::function<std::unique_ptr<Tier>(std::unique_ptr<Tier>, size_t)>;

  // Tier t (from 1) has object 0 = `file` where it is the source, and object 1 for the copies of
  // `p`.
  StepRig(const Program& p, const std::vector<Kind>& kinds, const std::vector<std::byte>& file,
          ExecutorOptions options = {}, const Wrap& wrap = nullptr);

  // Runs once; false with a message when it fails.
  Status run(Trace* trace = nullptr) {
    StepRows rows;
    rows.tokens = rows.sequences = rows.positions = rows.output_rows = {0};
    return executor->run(*prepared, rows, trace);
  }
  // In two parts that no tier's alignment divides.
  void write_states() {
    for (const auto& [name, bytes] : first_states(*graph)) {
      const std::span<const std::byte> all(bytes);
      const size_t split = all.size() / 3;
      const Status tail = executor->write_state(*prepared, name, all.subspan(split),
                                                static_cast<Bytes>(split));
      ASSERT_TRUE(tail.ok()) << tail.message();
      const Status head = executor->write_state(*prepared, name, all.first(split));
      ASSERT_TRUE(head.ok()) << head.message();
    }
  }
  // Output and states are those of the plain step.
  void compare(const PlainStep& plain, const std::string& where) {
    const auto out = executor->output(*prepared, "out");
    const auto want = plain.bytes("out");
    ASSERT_EQ(out.size_bytes(), want.size()) << where;
    EXPECT_EQ(std::memcmp(out.data(), want.data(), want.size()), 0) << where << ": out";
    for (const auto& [name, unused] : first_states(*graph)) {
      auto got = executor->read_state(*prepared, name);
      ASSERT_TRUE(got.ok()) << got.status().message();
      EXPECT_TRUE(*got == plain.bytes(name)) << where << ": " << name;
      const size_t begin = got->size() / 5, count = got->size() / 2;
      std::vector<std::byte> part(count);
      const Status read =
          executor->read_state(*prepared, name, part, static_cast<Bytes>(begin));
      ASSERT_TRUE(read.ok()) << read.message();
      EXPECT_EQ(std::memcmp(part.data(), got->data() + begin, count), 0) << where << ": " << name;
    }
  }

  std::shared_ptr<const Graph> graph;
  ThreadPool pool{1, false};
  std::unique_ptr<Arena> arena;
  ManualClock clock;  // of emulated tiers
  std::vector<std::unique_ptr<Tier>> tiers;
  std::unique_ptr<Executor> executor;
  PreparedPtr prepared;
};

// The folder of file tiers; they leave nothing in it.
inline const std::string& scratch_folder() {
  static const testing_tier::TempFolder folder;
  return folder.path();
}

inline std::unique_ptr<Tier> open_kind(Kind kind, const std::vector<Bytes>& objects,
                                       ManualClock& clock, const TierInfo& info) {
  const MappedOptions inline_copies{256, false};
  switch (kind) {
    case Kind::kHost: return std::move(open_host_tier(objects, inline_copies).value());
    case Kind::kHostThread: return std::move(open_host_tier(objects).value());
    case Kind::kRemote: {
      const RemotePool pool{PoolKind::kScratchFile, "/dev/shm/headrace_step_test", -1};
      auto tier = open_remote_tier(pool, objects, inline_copies);
      EXPECT_TRUE(tier.ok()) << tier.status().message();
      return std::move(*tier);
    }
    case Kind::kFile: {
      FileTierOptions options;
      options.access = FileAccess::kScratch;
      options.scratch_bytes = *std::max_element(objects.begin(), objects.end());
      options.register_buffers = false;
      auto tier =
          open_file_tier({scratch_folder() + "/a", scratch_folder() + "/b"}, nullptr, options);
      EXPECT_TRUE(tier.ok()) << tier.status().message();
      return std::move(*tier);
    }
    case Kind::kEmulated: {
      const LinkModel model{info.load_bytes_per_s, info.latency_ns, info.duplex,
                            info.store_bytes_per_s};
      auto tier = open_emulated_tier(std::move(open_host_tier(objects, inline_copies).value()),
                                     std::make_shared<EmulatedLink>(model, clock), 4096);
      return std::move(*tier);
    }
  }
  return nullptr;
}

inline StepRig::StepRig(const Program& p, const std::vector<Kind>& kinds,
                 const std::vector<std::byte>& file, ExecutorOptions options, const Wrap& wrap)
    : graph(p.graph) {
  arena = std::make_unique<Arena>(
      std::move(Arena::create(std::max(kPage, p.arena_bytes)).value()));
  std::memset(arena->base(), 0xFF, static_cast<size_t>(arena->bytes()));
  const std::vector<Bytes> copies = copy_bytes(p);
  std::vector<Tier*> list = {nullptr};
  options.copies.resize(1);
  for (size_t t = 1; t < p.tiers.size(); ++t) {
    const Bytes size = std::max(kPage, round_up(static_cast<Bytes>(file.size()), kPage));
    const Bytes room = std::max(kPage, round_up(copies[t], kPage));
    auto tier = open_kind(kinds[t - 1], {size, room}, clock, p.tiers[t]);
    const PageBuffer bytes = page_buffer(size);
    std::copy(file.begin(), file.end(), bytes.get());
    auto ticket = tier->store({bytes.get(), static_cast<size_t>(size)}, {0, 0, size});
    EXPECT_TRUE(ticket.ok() && tier->wait(*ticket).ok());
    if (wrap) tier = wrap(std::move(tier), t);
    tiers.push_back(std::move(tier));
    list.push_back(tiers.back().get());
    options.copies.push_back({1, 0, room});
  }
  if (std::find(kinds.begin(), kinds.end(), Kind::kEmulated) != kinds.end()) options.clock = &clock;
  executor = std::make_unique<Executor>(*arena, list, pool, options);
  auto made = executor->prepare(p);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (made.ok()) prepared = std::move(*made);
}

}  // namespace headrace::test

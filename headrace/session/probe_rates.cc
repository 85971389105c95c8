#include "headrace/session/probe_rates.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "headrace/base/system.h"
#include "headrace/kernel/matmul.h"
#include "headrace/kernel/quant.h"
#include "headrace/tier/arena.h"

namespace headrace {
namespace {

constexpr int64_t kCols = 2048;  // of every weight: whole blocks of all types
constexpr int64_t kRows = 128;   // "many rows": the size of a prefill chunk
constexpr int64_t kTileRows = 512;

// Median nanoseconds of fn(), once unmeasured first.
template <typename F>
Nanos median_ns(int repeats, F&& fn) {
  fn();
  std::vector<Nanos> times;
  for (int i = 0; i < repeats; ++i) {
    const Nanos begin = monotonic_ns();
    fn();
    times.push_back(monotonic_ns() - begin);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return std::max<Nanos>(1, times[static_cast<size_t>(repeats / 2)]);
}

double per_second(double amount, Nanos ns) {
  return amount * 1e9 / static_cast<double>(ns);
}

// Bytes that are ordinary numbers in every type: any two of them, as f16 or bf16, and any
// four, as f32, are normal and small.
void fill_weights(std::span<std::byte> bytes) {
  uint32_t state = 1;
  for (std::byte& b : bytes) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::byte>(0x24 + (state >> 24) % 24);
  }
}

uint64_t read_all(std::span<const std::byte> bytes, ThreadPool& pool) {
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) * 8, 0);
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  pool.for_range(static_cast<int64_t>(bytes.size() / 64), 64,
                 [&](int64_t b, int64_t e, int worker) {
                   uint64_t lanes[8] = {};
                   for (int64_t i = b; i < e; ++i) {
                     for (int64_t j = 0; j < 8; ++j) lanes[j] ^= words[i * 8 + j];
                   }
                   for (const uint64_t lane : lanes)
                     sums[static_cast<size_t>(worker) * 8] ^= lane;
                 });
  uint64_t all = 0;
  for (const uint64_t s : sums) all ^= s;
  return all;
}

class RateProbe {
 public:
  RateProbe(const RateOptions& options, ThreadPool& pool, Arena& arena)
      : o_(options), pool_(pool) {
    weights_ = arena.at(0, options.memory_bytes);
    rest_ = arena.at(options.memory_bytes, arena.bytes() - options.memory_bytes);
    fill_weights(weights_);
    fill_weights(rest_);
  }

  // Beside the weights: activations in both forms, results and workspaces.
  static Bytes extra_bytes(int threads) {
    Bytes scratch = 0;
    for (int t = 0; t < kDTypeCount; ++t) {
      if (weight_type(static_cast<DType>(t))) {
        scratch =
            std::max(scratch, matmul_scratch_bytes(static_cast<DType>(t), kCols, kRows));
      }
    }
    return kRows * (row_bytes(DType::kF32, kCols) + row_bytes(DType::kActQ8, kCols) + 8) +
           kRows * kTileRows * 4 + threads * round_up(scratch, kLine) + 16 * kLine;
  }

  static bool weight_type(DType t) {
    return info(t).quantised || t == DType::kF32 || t == DType::kF16 || t == DType::kBF16;
  }

  Status run(Machine* m) {
    HR_TRY(begin("memory"));
    volatile uint64_t sink = 0;
    m->memory_bytes_per_s =
        per_second(static_cast<double>(weights_.size()),
                   median_ns(o_.repeats, [&] { sink = read_all(weights_, pool_); }));
    prepare_operands();
    for (int t = 0; t < kDTypeCount; ++t) {
      const DType type = static_cast<DType>(t);
      m->matmul_per_s[static_cast<size_t>(t)] =
          m->matvec_bytes_per_s[static_cast<size_t>(t)] = 0;
      if (!weight_type(type)) continue;
      HR_TRY(begin(name_of(type)));
      measure_type(type, m);
    }
    HR_TRY(begin("vectors"));
    measure_vectors(m);
    measure_overhead(m);
    return {};
  }

 private:
  Status begin(const char* what) const {
    if (o_.before && !o_.before(what))
      return error(Code::kCancelled, "stopped on request");
    return {};
  }

  std::byte* take(Bytes bytes) {
    std::byte* at = rest_.data() + used_;
    used_ += round_up(bytes, kLine);
    HR_CHECK(used_ <= static_cast<Bytes>(rest_.size()),
             "the probe's memory holds its operands");
    return at;
  }

  void prepare_operands() {
    floats_ = reinterpret_cast<float*>(take(kRows * row_bytes(DType::kF32, kCols)));
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      floats_[i] = static_cast<float>((i * 7919) % 1000 - 500) / 500;
    }
    quantised_ = take(kRows * row_bytes(DType::kActQ8, kCols));
    for (int64_t r = 0; r < kRows; ++r) {
      quantize_row(floats_ + r * kCols, kCols,
                   quantised_ + r * row_bytes(DType::kActQ8, kCols));
    }
    y_ = reinterpret_cast<float*>(take(kRows * kTileRows * 4));
    workspace_ = {rest_.data() + used_, rest_.size() - static_cast<size_t>(used_)};
  }

  MatmulArgs args(DType type, int64_t rows) const {
    MatmulArgs a;
    a.type = type;
    a.k = kCols;
    a.weight = weights_.data();
    const DType form = info(type).quantised ? DType::kActQ8 : DType::kF32;
    a.a =
        form == DType::kActQ8 ? quantised_ : reinterpret_cast<const std::byte*>(floats_);
    a.a_stride = row_bytes(form, kCols);
    a.m = rows;
    a.y = y_;
    a.y_stride = kTileRows;
    return a;
  }

  void measure_type(DType type, Machine* m) {
    const Bytes tile = row_bytes(type, kCols) * kTileRows;
    const int64_t tiles = static_cast<int64_t>(weights_.size()) / tile;
    // One row: every tile once, from memory.
    const Nanos vector_ns = median_ns(o_.repeats, [&] {
      for (int64_t i = 0; i < tiles; ++i) {
        MatmulArgs a = args(type, 1);
        a.weight += i * tile;
        matmul(a, kTileRows, workspace_, pool_);
      }
    });
    m->matvec_bytes_per_s[static_cast<size_t>(type)] =
        per_second(static_cast<double>(tiles * tile), vector_ns);
    const Nanos matrix_ns = median_ns(
        o_.repeats, [&] { matmul(args(type, kRows), kTileRows, workspace_, pool_); });
    m->matmul_per_s[static_cast<size_t>(type)] =
        per_second(static_cast<double>(kRows * kTileRows * kCols), matrix_ns);
  }

  // RMS norm stands for the elementwise ops.
  void measure_vectors(Machine* m) {
    Graph g;
    g.max_rows = kRows;
    const auto tensor = [&](const char* name, Role role, int64_t rows) {
      Tensor t;
      t.name = name;
      t.role = role;
      t.rows = rows;
      t.cols = kCols;
      t.bytes = rows * kCols * 4;
      return g.add(std::move(t));
    };
    Op op;
    op.kind = OpKind::kRmsNorm;
    op.name = "norm";
    op.inputs = {tensor("x", Role::kActivation, kRows), tensor("w", Role::kWeight, 1),
                 TensorId()};
    op.outputs = {tensor("y", Role::kActivation, kRows)};
    op.attrs[Attr::kEps] = 1e-5;
    const std::byte* const inputs[] = {reinterpret_cast<const std::byte*>(floats_),
                                       reinterpret_cast<const std::byte*>(floats_),
                                       nullptr};
    std::byte* const outputs[] = {weights_.data()};
    StepRows rows;
    for (int32_t i = 0; i < kRows; ++i) {
      rows.tokens.push_back(0);
      rows.sequences.push_back(0);
      rows.positions.push_back(i);
    }
    const KernelFn kernel = find_kernel(op, DeviceKind::kCpu);
    HR_CHECK(kernel != nullptr, "a norm kernel");
    const OpContext context{g, op, inputs, outputs, {}, workspace_, rows, pool_};
    m->vector_per_s = per_second(static_cast<double>(kRows * kCols),
                                 median_ns(4 * o_.repeats, [&] { kernel(context); }));
  }

  void measure_overhead(Machine* m) {
    constexpr int kCalls = 2000;
    const Nanos ns = median_ns(o_.repeats, [&] {
      for (int i = 0; i < kCalls; ++i) pool_.run([](int) {});
    });
    // Two readings of the clock and a poll of the tier go with each op, too.
    m->op_overhead_ns = std::max<Nanos>(300, ns / kCalls + 200);
  }

  const RateOptions& o_;
  ThreadPool& pool_;
  std::span<std::byte> weights_;
  std::span<std::byte> rest_;
  Bytes used_ = 0;
  float* floats_ = nullptr;         // [kRows, kCols]
  std::byte* quantised_ = nullptr;  // the same as act_q8
  float* y_ = nullptr;              // [kRows, kTileRows]
  std::span<std::byte> workspace_;
};

}  // namespace

Status measure_rates(const RateOptions& options, ThreadPool& pool, Machine* machine) {
  const Bytes total =
      options.memory_bytes + round_up(RateProbe::extra_bytes(pool.size()), kPage);
  HR_ASSIGN(Arena arena, Arena::create(total));
  arena.touch(0, arena.bytes());
  return RateProbe(options, pool, arena).run(machine);
}

}  // namespace headrace

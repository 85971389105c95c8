// Measures training kernels other than products: attention, AdamW, norms, activation functions.
//
//   train_bench [--isa scalar,avx2,avx512_vnni] [--type f32,bf16] [--threads 1] [--repeat 7]
//               [--only hr.attention,...]
//
// Each line is the median (and the best) of `repeat` runs of one op at the shape of a LLaMA of d512
// L8 H8 ffn1408, batch 8 x 512: attention in GFLOP/s of the causal half, AdamW in GB/s beside a
// plain loop of four reads and three writes over as much memory, others in GB/s of their operands.
// CPU time for one thread. Run on an idle machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "headrace/kernel/train.h"

namespace headrace {
namespace {

constexpr int64_t kTokens = 4096, kSequence = 512, kWidth = 512, kHeads = 8, kFfn = 1408;
constexpr int64_t kParams = 16 * 1024 * 1024;  // of AdamW: 64 MiB an array, beyond any cache

double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Times {
  double median, best;
};

Times time_of(const std::function<void()>& run, int repeat, int threads) {
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> times;
  for (int i = 0; i <= repeat; ++i) {
    const double begin = seconds(clock);
    run();
    if (i > 0) times.push_back(seconds(clock) - begin);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

// One op with operands of small random values.
class Case {
 public:
  Case(std::string kernel, std::map<Attr, double> attrs) {
    op_.kind = OpKind::kKernel;
    op_.kernel = std::move(kernel);
    op_.attrs = std::move(attrs);
    rows_.tokens.assign(static_cast<size_t>(kTokens), 0);
    rows_.step = 1;
    rows_.rates = {1e-3};
  }
  Case& input(DType type, int64_t rows, int64_t cols) {
    op_.inputs.push_back(tensor(type, rows, cols));
    return *this;
  }
  Case& output(DType type, int64_t rows, int64_t cols) {
    op_.outputs.push_back(tensor(type, rows, cols));
    return *this;
  }
  Case& update(DType type, int64_t rows, int64_t cols) {
    op_.updates.push_back(tensor(type, rows, cols));
    return *this;
  }
  const std::string& name() const { return op_.kernel; }
  // Bytes of operands, updates twice.
  double bytes() const {
    double sum = 0;
    for (const auto* ids : {&op_.inputs, &op_.outputs, &op_.updates, &op_.updates}) {
      for (TensorId id : *ids) sum += static_cast<double>(graph_.at(id).bytes);
    }
    return sum;
  }

  Times run(int threads, int repeat) {
    ThreadPool pool(threads);
    op_.workspace = train_workspace(graph_, op_, threads);
    std::byte* workspace = memory(op_.workspace);
    std::vector<const std::byte*> inputs;
    for (TensorId id : op_.inputs) inputs.push_back(data_[id.index()]);
    const auto at = [&](const std::vector<TensorId>& ids) {
      std::vector<std::byte*> addresses;
      for (TensorId id : ids) addresses.push_back(data_[id.index()]);
      return addresses;
    };
    const auto outputs = at(op_.outputs), updates = at(op_.updates);
    const OpContext ctx{graph_,  op_,   inputs, outputs, updates,
                        {workspace, static_cast<size_t>(op_.workspace)}, rows_, pool};
    const TrainKernel* kernel = find_train_kernel(op_.kernel);
    const Times times = time_of([&] { kernel->run(ctx); }, repeat, threads);
    std::free(workspace);
    return times;
  }
  ~Case() {
    for (std::byte* data : data_) std::free(data);
  }
  Case(Case&&) = default;
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

 private:
  static std::byte* memory(Bytes bytes) {
    void* p = std::aligned_alloc(static_cast<size_t>(kPage),
                                 static_cast<size_t>(round_up(bytes + 1, kPage)));
    if (p == nullptr) std::abort();
    return static_cast<std::byte*>(p);
  }
  TensorId tensor(DType type, int64_t rows, int64_t cols) {
    Tensor t;
    t.name = "t" + std::to_string(graph_.tensors.size());
    t.dtype = type;
    t.rows = rows;
    t.cols = cols;
    t.bytes = rows * row_bytes(type, cols);
    data_.push_back(memory(t.bytes));
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * cols; ++i) {
      state = state * 1664525u + 1013904223u;
      const float x = static_cast<float>(state >> 8) * 0x1p-24f;
      if (type == DType::kF32) {
        std::memcpy(data_.back() + 4 * i, &x, 4);
      } else {
        std::memcpy(data_.back() + 2 * i, reinterpret_cast<const char*>(&x) + 2, 2);
      }
    }
    return graph_.add(t);
  }

  Graph graph_;
  Op op_;
  StepRows rows_;
  std::vector<std::byte*> data_;
};

std::vector<Case> cases(DType c) {
  const std::map<Attr, double> attention = {
      {Attr::kHeads, kHeads}, {Attr::kKvHeads, kHeads}, {Attr::kHeadDim, kWidth / kHeads},
      {Attr::kSequence, kSequence}, {Attr::kScale, 0.125}};
  auto rope = attention;
  rope[Attr::kRopeHalfSplit] = 1;
  const int64_t t = kTokens, n = kWidth;
  const DType f = DType::kF32;
  std::vector<Case> all;
  const auto add = [&](const char* kernel, std::map<Attr, double> attrs) -> Case& {
    all.emplace_back(kernel, std::move(attrs));
    return all.back();
  };
  add("hr.attention", attention).input(c, t, 3 * n).output(c, t, n).output(f, t, kHeads);
  add("hr.attention_grad", attention).input(c, t, n).input(c, t, 3 * n).input(c, t, n)
      .input(f, t, kHeads).output(c, t, 3 * n);
  add("hr.rope", rope).input(c, t, 3 * n).input(f, 1, 32).output(c, t, 3 * n);
  add("hr.norm", {{Attr::kAct, 0}, {Attr::kEps, 1e-5}}).input(c, t, n).input(f, 1, n)
      .output(c, t, n).output(f, t, 1);
  add("hr.norm_dx", {{Attr::kAct, 0}}).input(c, t, n).input(c, t, n).input(f, 1, n)
      .input(f, t, 1).output(c, t, n);
  add("hr.norm_dw", {{Attr::kAct, 0}}).input(c, t, n).input(c, t, n).input(f, t, 1)
      .update(f, 1, n);
  add("hr.act", {{Attr::kAct, 0}}).input(c, t, 2 * kFfn).output(c, t, kFfn);
  add("hr.act_grad", {{Attr::kAct, 0}}).input(c, t, kFfn).input(c, t, 2 * kFfn)
      .output(c, t, 2 * kFfn);
  add("hr.dropout", {{Attr::kProbability, 0.1}}).input(c, t, n).output(c, t, n);
  add("hr.add", {}).input(c, t, n).input(c, t, n).output(c, t, n);
  add("hr.sum_squares", {}).input(f, 1, kParams).output(f, 1, 2);
  auto& adamw = add("hr.adamw", {{Attr::kBeta1, 0.9}, {Attr::kBeta2, 0.95}, {Attr::kEps, 1e-8}});
  adamw.input(f, 1, kParams).update(c, 1, kParams).update(f, 1, kParams).update(f, 1, kParams);
  return all;
}

// p, m, v = p, m, v + g, over as much memory as AdamW's.
double plain_loop(int threads, int repeat) {
  std::vector<float> p(kParams, 1), m(kParams, 1), v(kParams, 1), g(kParams, 1);
  ThreadPool pool(threads);
  const Times times = time_of(
      [&] {
        pool.for_range(kParams, 16384, [&](int64_t begin, int64_t end, int) {
          float *a = p.data(), *b = m.data(), *c = v.data();
          const float* d = g.data();
#pragma GCC ivdep
          for (int64_t i = begin; i < end; ++i) {
            a[i] += d[i];
            b[i] += d[i];
            c[i] += d[i];
          }
        });
      },
      repeat, threads);
  return 7.0 * 4 * kParams / times.median / 1e9;
}

bool listed(const std::string& list, const char* name) {
  return ("," + list + ",").find("," + std::string(name) + ",") != std::string::npos;
}

int bench_main(int argc, char** argv) {
  std::map<std::string, std::string> options = {
      {"--isa", "avx2,avx512_vnni"}, {"--type", "f32,bf16"}, {"--threads", "1"},
      {"--repeat", "7"}, {"--only", ""}};
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const int threads = std::atoi(options["--threads"].c_str());
  const int repeat = std::atoi(options["--repeat"].c_str());
  const double pairs = 4.0 * kTokens * (kSequence / 2.0) * kWidth;  // flops of two products
  std::printf("plain loop: %.2f GB/s\n", plain_loop(threads, repeat));
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni}) {
    if (!supported(isa) || !listed(options["--isa"], name_of(isa))) continue;
    force_isa(isa);
    for (DType type : {DType::kF32, DType::kBF16}) {
      if (!listed(options["--type"], name_of(type))) continue;
      for (Case& one : cases(type)) {
        if (!options["--only"].empty() && !listed(options["--only"], one.name().c_str())) continue;
        const Times times = one.run(threads, repeat);
        const double flops = one.name() == "hr.attention"        ? pairs
                             : one.name() == "hr.attention_grad" ? 2.5 * pairs
                                                                 : 0;
        std::printf("%-18s %-12s %-5s %9.3f ms (best %.3f) %8.2f GB/s", one.name().c_str(),
                    name_of(isa), name_of(type), times.median * 1e3, times.best * 1e3,
                    one.bytes() / times.median / 1e9);
        if (flops > 0) std::printf(" %8.2f GFLOP/s", flops / times.median / 1e9);
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::bench_main(argc, argv); }

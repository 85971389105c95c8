#include "headrace/snapshot/blame.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

constexpr const char* kPartNames[] = {"forward",       "backward", "gradients", "optimizer",
                                      "communication", "other",    "not recorded"};

// Files of PyTorch whose folders a snapshot may have lost (sorted).
constexpr std::array<std::string_view, 22> kTorchFiles = {
    "__init__.py",   "_contextlib.py", "_jit_internal.py", "_tensor.py",    "activation.py",
    "adam.py",       "adamw.py",       "checkpoint.py",    "container.py",  "dropout.py",
    "eval_frame.py", "function.py",    "functional.py",    "graph.py",      "grad_mode.py",
    "linear.py",     "lr_scheduler.py", "module.py",       "normalization.py", "optimizer.py",
    "sgd.py",        "sparse.py"};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view base_name(std::string_view file) {
  const size_t slash = file.find_last_of("/\\");
  return slash == std::string_view::npos ? file : file.substr(slash + 1);
}

bool is_python(const StackFrame& f) { return f.file.ends_with(".py") || f.file.starts_with('<'); }

bool is_of_user(const StackFrame& f) {
  if (!is_python(f) || has(f.file, "site-packages/") || has(f.file, "/torch/")) return false;
  const std::string_view base = base_name(f.file);
  return std::find(kTorchFiles.begin(), kTorchFiles.end(), base) == kTorchFiles.end();
}

}  // namespace

const char* name_of(StepPart part) { return kPartNames[static_cast<size_t>(part)]; }

StepPart part_of(const MemorySnapshot& snapshot, int32_t stack) {
  if (stack < 0) return StepPart::kUnknown;
  bool forward = false, backward = false;
  for (const int32_t number : snapshot.stacks[static_cast<size_t>(stack)]) {
    const StackFrame& f = snapshot.frames[static_cast<size_t>(number)];
    if (has(f.name, "ncclComm") || has(f.name, "c10d::")) return StepPart::kCommunication;
    if (has(f.name, "AccumulateGrad")) return StepPart::kGradient;
    if (is_python(f) && has(base_name(f.file), "optimizer")) return StepPart::kOptimizer;
    backward |= has(f.name, "autograd::Engine");
    forward |= is_python(f) && f.name == "forward";
  }
  // A forward inside of backward is a checkpoint's recomputation.
  if (backward) return StepPart::kBackward;
  return forward ? StepPart::kForward : StepPart::kOther;
}

std::string blame(const MemorySnapshot& snapshot, int32_t stack) {
  if (stack < 0) return "not recorded";
  const StackFrame* python = nullptr;
  for (const int32_t number : snapshot.stacks[static_cast<size_t>(stack)]) {
    const StackFrame& f = snapshot.frames[static_cast<size_t>(number)];
    if (is_of_user(f)) {
      return text_of("%s:%lld %s", std::string(base_name(f.file)).c_str(),
                     static_cast<long long>(f.line), f.name.c_str());
    }
    if (python == nullptr && is_python(f)) python = &f;
  }
  if (python != nullptr) {
    return text_of("%s:%lld %s", std::string(base_name(python->file)).c_str(),
                   static_cast<long long>(python->line), python->name.c_str());
  }
  // The autograd engine's threads have no Python below them.
  for (const int32_t number : snapshot.stacks[static_cast<size_t>(stack)]) {
    constexpr std::string_view kNode = "torch::autograd::generated::";
    const std::string& name = snapshot.frames[static_cast<size_t>(number)].name;
    if (name.starts_with(kNode)) {
      return name.substr(kNode.size(), name.find_first_of("_:(", kNode.size()) - kNode.size());
    }
    if (has(name, "AccumulateGrad")) return "AccumulateGrad";
  }
  const std::string op = operator_of(snapshot, stack);
  return op.empty() ? "not recorded" : op;
}

std::string operator_of(const MemorySnapshot& snapshot, int32_t stack) {
  constexpr std::string_view kPrefix = "at::_ops::";
  if (stack < 0) return {};
  for (const int32_t number : snapshot.stacks[static_cast<size_t>(stack)]) {
    const std::string& name = snapshot.frames[static_cast<size_t>(number)].name;
    if (!name.starts_with(kPrefix)) continue;
    return name.substr(kPrefix.size(), name.find("::", kPrefix.size()) - kPrefix.size());
  }
  return {};
}

}  // namespace headrace

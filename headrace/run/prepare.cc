#include "headrace/run/prepared.h"

namespace headrace {
namespace {

class Preparer {
 public:
  Preparer(Prepared& out, const Arena& arena, HeldNames& names)
      : out_(out), p_(out.program), g_(*p_.graph), arena_(arena), names_(names) {
    by_tensor_.resize(g_.tensors.size());
    workspace_.resize(g_.ops.size());
    for (const Residency& r : p_.residencies) {
      if (r.tensor.valid()) {
        by_tensor_[r.tensor.index()].push_back(&r);
      } else {
        workspace_[r.op.index()] = &r;
      }
    }
  }

  Status run() {
    for (int32_t s = 0; s < p_.exit().value; ++s) {
      const Instr& i = p_.instrs[static_cast<size_t>(s)];
      if (i.kind == InstrKind::kCompute) {
        HR_TRY(add_compute(s, i));
      } else {
        add_transfer(s, i);
      }
    }
    for (const Residency& r : p_.residencies) {
      if (!r.tensor.valid() || r.begin != kEntry) continue;
      const Tensor& t = g_.at(r.tensor);
      if (t.role == Role::kWeight) out_.entry.push_back({names_.id_of(t.name), r.offset});
      if (t.role == Role::kConstant) {
        out_.constants.push_back({&t.constant, arena_.at(r.offset, r.bytes).data()});
      }
    }
    return {};
  }

 private:
  const Residency& residency_at(TensorId t, int32_t step) const {
    for (const Residency* r : by_tensor_[t.index()]) {
      if (r->begin.value <= step && step < r->end.value) return *r;
    }
    HR_CHECK(false, "an operand is not resident: verify() would have said so");
  }

  // The address of the tensor itself: weights start `skew` bytes into their extent.
  std::byte* address(TensorId t, int32_t step) const {
    const Residency& r = residency_at(t, step);
    const Tensor& tensor = g_.at(t);
    const Bytes skew = tensor.role == Role::kWeight ? load_extent(tensor.source).skew : 0;
    return arena_.at(r.offset, r.bytes).data() + skew;
  }

  Status add_compute(int32_t step, const Instr& i) {
    const Op& op = g_.at(i.op);
    ComputeStep c;
    c.op = &op;
    c.kernel = find_kernel(op.kind, DeviceKind::kCpu);
    if (c.kernel == nullptr) {
      return error(Code::kUnsupported, "no kernel computes %s ('%s')", name_of(op.kind),
                   op.name.c_str());
    }
    for (TensorId t : op.inputs) {
      c.inputs.push_back(t.valid() ? address(t, step) : nullptr);
      if (!t.valid()) continue;
      if (g_.at(t).role == Role::kWeight) c.weights.push_back(names_.id_of(g_.at(t).name));
      if (g_.at(t).role == Role::kGathered) c.gathered = true;
    }
    for (TensorId t : op.outputs) c.outputs.push_back(address(t, step));
    for (TensorId t : op.updates) c.updates.push_back(address(t, step));
    if (const Residency* w = workspace_[i.op.index()]) c.workspace = arena_.at(w->offset, w->bytes);
    out_.index.push_back(static_cast<int32_t>(out_.computes.size()));
    out_.computes.push_back(std::move(c));
    return {};
  }

  void add_transfer(int32_t step, const Instr& i) {
    TransferStep t;
    t.tensor = &g_.at(i.tensor);
    if (i.kind != InstrKind::kGather) t.held = names_.id_of(t.tensor->name);
    if (i.kind != InstrKind::kDetach) {
      const Residency& r = residency_at(i.tensor, step);
      t.to = arena_.at(r.offset, r.bytes);
      const LoadExtent e = load_extent(t.tensor->source);
      t.from = {t.tensor->source.file, e.offset, e.bytes};
    }
    out_.index.push_back(static_cast<int32_t>(out_.transfers.size()));
    out_.transfers.push_back(t);
  }

  Prepared& out_;
  const Program& p_;
  const Graph& g_;
  const Arena& arena_;
  HeldNames& names_;
  std::vector<std::vector<const Residency*>> by_tensor_;
  std::vector<const Residency*> workspace_;
};

}  // namespace

void PreparedDeleter::operator()(Prepared* p) const { delete p; }

Result<PreparedPtr> prepare_program(Program program, const Arena& arena, HeldNames& names) {
  if (program.arena_bytes > arena.bytes()) {
    return error(Code::kDoesNotFit, "program '%s' needs an arena of %lld bytes, this one has %lld",
                 program.name.c_str(), static_cast<long long>(program.arena_bytes),
                 static_cast<long long>(arena.bytes()));
  }
  PreparedPtr prepared(new Prepared);
  prepared->program = std::move(program);
  HR_TRY(Preparer(*prepared, arena, names).run());
  return prepared;
}

}  // namespace headrace

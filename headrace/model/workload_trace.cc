// Kernel traces as workloads. The data are those of the artifact of Zhang et al., "G10: Enabling an
// efficient unified GPU memory and storage architecture with smart tensor migrations", MICRO 2023;
// what a trace becomes is said in workload.h.
#include <algorithm>
#include <unordered_map>

#include "headrace/model/file_reader.h"
#include "headrace/base/json_fields.h"
#include "headrace/model/workload.h"
#include "headrace/model/workload_parts.h"

namespace headrace::workload {

using Json = nlohmann::json;

namespace {

struct Kernel {
  std::string name;
  int64_t id = 0;
  double seconds = 0;
  std::vector<int64_t> in, out;  // ids of the file
};

struct Stored {
  int64_t id = 0;
  Bytes bytes = 0;
  bool persistent = false;
  TensorId current;  // the version that a reader gets now
  int32_t versions = 0;
  bool written = false;
};

class TraceReader {
 public:
  Result<Workload> read(std::string_view json) {
    HR_ASSIGN(const Json rest, read_elements(json, [this](const std::string& section,
                                                          const std::string& key, const Json& e) {
                if (section == "tensors") return take_tensor(key, e);
                if (section == "kernels") return take_kernel(e);
                return error(Code::kBadFile, "'%s' holds an object where none belongs",
                             printable(section).c_str());
              }));
    HR_TRY(read_rest(rest));
    for (size_t k = 0; k < kernels_.size(); ++k) HR_TRY(convert(k));
    finish_persistent();
    HR_TRY(check_order(w_.graph));
    return std::move(w_);
  }

 private:
  Status read_rest(const Json& rest) {
    const JsonFields f(rest, "the trace");
    HR_TRY(f.only({"name", "time_unit", "kernels", "tensors", "comment"}));
    HR_TRY(f.text("name", &w_.graph.name));
    std::string unit = "s";
    HR_TRY(f.text("time_unit", &unit));
    if (unit != "s") return f.bad("time_unit", "is not 's'");
    const Json* kernels = f.find("kernels");
    const Json* tensors = f.find("tensors");
    if (kernels == nullptr || !kernels->is_array() || !kernels->empty()) {
      return f.bad("kernels", "is not a list of objects");
    }
    if (tensors == nullptr || !tensors->is_object() || !tensors->empty()) {
      return f.bad("tensors", "is not an object of objects");
    }
    if (kernels_.empty()) return error(Code::kBadFile, "the trace has no kernels");
    return {};
  }

  Status take_tensor(const std::string& key, const Json& e) {
    const JsonFields f(e, "tensor " + printable(key));
    HR_TRY(f.only({"bytes", "persistent"}));
    Stored t;
    const bool digits = !key.empty() && key.size() <= 18 &&
                        key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) return error(Code::kBadFile, "tensor '%s' has no number", printable(key).c_str());
    t.id = std::stoll(key);
    HR_TRY(f.integer("bytes", 1, kMostTensorBytes, &t.bytes));
    if (t.bytes == 0) return f.bad("bytes", "is missing");
    HR_TRY(f.flag("persistent", &t.persistent));
    if (!index_.emplace(t.id, stored_.size()).second) {
      return error(Code::kBadFile, "tensor %s is listed twice", key.c_str());
    }
    stored_.push_back(t);
    return {};
  }

  Status take_kernel(const Json& e) {
    if (static_cast<int64_t>(kernels_.size()) >= kMostWorkloadOps) {
      return error(Code::kBadFile, "more than %lld kernels",
                   static_cast<long long>(kMostWorkloadOps));
    }
    Kernel k;
    k.id = static_cast<int64_t>(kernels_.size());
    const JsonFields f(e, "kernel", kernels_.size());
    HR_TRY(f.only({"id", "name", "t", "in", "out"}));
    HR_TRY(f.integer("id", 0, INT64_MAX, &k.id));
    HR_TRY(f.text("name", &k.name));
    if (k.name.empty()) return f.bad("name", "is missing or empty");
    if (f.find("t") == nullptr) return f.bad("t", "is missing");
    HR_TRY(f.number("t", 0, kMostOpSeconds, &k.seconds));
    HR_TRY(read_ids(f, "in", &k.in));
    HR_TRY(read_ids(f, "out", &k.out));
    kernels_.push_back(std::move(k));
    return {};
  }

  Status read_ids(const JsonFields& f, const char* key, std::vector<int64_t>* out) {
    const Json* list = f.find(key);
    if (list == nullptr) return {};
    if (!list->is_array()) return f.bad(key, "is not a list of numbers");
    for (const Json& id : *list) {
      if (!id.is_number_integer() || id < 0 || id > INT64_MAX) {
        return f.bad(key, "holds something that is not the number of a tensor");
      }
      out->push_back(id.get<int64_t>());
    }
    return {};
  }

  // Indices into stored_, each once.
  Result<std::vector<size_t>> stored_of(const Kernel& k, const std::vector<int64_t>& ids) {
    std::vector<size_t> out;
    for (const int64_t id : ids) {
      const auto it = index_.find(id);
      if (it == index_.end()) {
        return error(Code::kBadFile, "kernel %lld ('%s') names tensor %lld, which does not exist",
                     static_cast<long long>(k.id), printable(k.name).c_str(),
                     static_cast<long long>(id));
      }
      out.push_back(it->second);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // A tensor for the present life of stored_[s].
  TensorId new_version(size_t s, DataClass data_class) {
    Stored& stored = stored_[s];
    Tensor t;
    t.name = text_of("t%lld", static_cast<long long>(stored.id));
    if (++stored.versions > 1) t.name += text_of(".v%d", stored.versions);
    t.dtype = DType::kI8;
    t.role = stored.persistent ? Role::kState : Role::kActivation;
    t.cols = t.bytes = stored.bytes;
    t.data_class = data_class;
    stored.current = w_.graph.add(std::move(t));
    return stored.current;
  }

  Status convert(size_t index) {
    const Kernel& k = kernels_[index];
    HR_ASSIGN(const std::vector<size_t> in, stored_of(k, k.in));
    HR_ASSIGN(const std::vector<size_t> out, stored_of(k, k.out));
    Op op;
    op.kind = OpKind::kKernel;
    op.kernel = k.name;
    op.name = k.name + text_of(".%lld", static_cast<long long>(k.id));
    op.attrs[Attr::kSeconds] = k.seconds;
    for (const size_t s : in) {
      const bool in_place = std::binary_search(out.begin(), out.end(), s);
      if (!stored_[s].current.valid()) {
        const TensorId id = new_version(s, DataClass::kInput);
        if (!stored_[s].persistent) {
          op.outputs.push_back(id);
          PlacementRule rule;
          rule.tensor = id;
          rule.recompute = false;
          w_.rules.push_back(std::move(rule));
          continue;
        }
      }
      (in_place ? op.updates : op.inputs).push_back(stored_[s].current);
    }
    const bool backward = k.name.find("Backward") != std::string::npos ||
                          k.name.find("Gredient") != std::string::npos;
    for (const size_t s : out) {
      stored_[s].written = true;
      if (std::binary_search(in.begin(), in.end(), s)) continue;
      if (!stored_[s].persistent) {
        op.outputs.push_back(
            new_version(s, backward ? DataClass::kGradient : DataClass::kActivation));
      } else {
        if (!stored_[s].current.valid()) new_version(s, DataClass::kInput);
        op.updates.push_back(stored_[s].current);
      }
    }
    w_.graph.ops.push_back(std::move(op));
    return {};
  }

  // Those that no kernel touches take memory all the same.
  void finish_persistent() {
    for (size_t s = 0; s < stored_.size(); ++s) {
      if (!stored_[s].persistent) continue;
      if (!stored_[s].current.valid()) {
        new_version(s, DataClass::kOther);
      } else if (stored_[s].written) {
        w_.graph.tensors[stored_[s].current.index()].data_class = DataClass::kWeight;
      }
    }
  }

  Workload w_;
  std::vector<Kernel> kernels_;
  std::vector<Stored> stored_;
  std::unordered_map<int64_t, size_t> index_;  // looked up, never walked
};

}  // namespace

Result<Workload> parse_trace(std::string_view json) { return TraceReader().read(json); }

}  // namespace headrace::workload

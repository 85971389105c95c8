// Our workload format, and reading element by element.
#include "headrace/model/workload.h"

#include <algorithm>
#include <unordered_map>

#include "headrace/base/json_fields.h"
#include "headrace/base/json_text.h"
#include "headrace/model/step_graph.h"
#include "headrace/model/workload_parts.h"

namespace headrace {
namespace workload {

using Json = nlohmann::json;

namespace {

constexpr int64_t kMostTensors = 2 * kMostWorkloadOps;

}  // namespace

Result<Json> read_elements(std::string_view json, const ElementFn& take) {
  Status status;
  std::string section, element_key;
  const auto filter = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) {
      section = parsed.get<std::string>();
      element_key.clear();
    } else if (event == Json::parse_event_t::key && depth == 2) {
      element_key = parsed.get<std::string>();
    } else if (event == Json::parse_event_t::object_end && depth == 2) {
      if (status.ok()) status = take(section, element_key, parsed);
      return false;
    }
    return true;
  };
  Json rest;
  try {
    rest = Json::parse(json.begin(), json.end(), filter);
  } catch (const Json::exception&) {
    return json_error(json);
  }
  HR_TRY(status);
  if (!rest.is_object()) return error(Code::kBadFile, "not a JSON object");
  return rest;
}

std::vector<std::string_view> top_keys(std::string_view json) {
  std::vector<std::string_view> keys;
  int depth = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '{' || c == '[') {
      if (depth == 0 && c == '[') return {};
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == '"') {
      const size_t begin = ++i;
      while (i < json.size() && json[i] != '"') i += json[i] == '\\' ? 2 : 1;
      if (depth != 1 || i >= json.size()) continue;
      const size_t next = json.find_first_not_of(" \t\r\n", i + 1);
      if (next != std::string_view::npos && json[next] == ':') {
        keys.push_back(json.substr(begin, i - begin));
      }
    } else if (depth == 0 && c != ' ' && c != '\t' && c != '\r' && c != '\n') {
      break;
    }
  }
  return keys;
}

// ---- our format -------------------------------------------------------------------------------

namespace {

Result<DataClass> class_from_name(const JsonFields& fields, const std::string& name) {
  for (int i = 0; i < kDataClassCount; ++i) {
    if (name == name_of(static_cast<DataClass>(i))) return static_cast<DataClass>(i);
  }
  return fields.bad("class", ("is '" + printable(name) + "', not a class of data").c_str());
}

// Names as they are met, numbered.
class Names {
 public:
  int32_t of(const std::string& name) {
    const auto [it, fresh] = ids_.emplace(name, static_cast<int32_t>(texts_.size()));
    if (fresh) texts_.push_back(&it->first);
    return it->second;
  }
  size_t size() const { return texts_.size(); }
  const std::string& text(int32_t id) const { return *texts_[static_cast<size_t>(id)]; }

 private:
  std::unordered_map<std::string, int32_t> ids_;  // looked up, never walked
  std::vector<const std::string*> texts_;
};

class OwnReader {
 public:
  Result<Workload> read(std::string_view json) {
    HR_ASSIGN(const Json rest, read_elements(json, [this](const std::string& section,
                                                          const std::string&, const Json& e) {
                if (section == "tensors") return take_tensor(e);
                if (section == "ops") return take_op(e);
                return error(Code::kBadFile, "'%s' holds an object where none belongs",
                             printable(section).c_str());
              }));
    HR_TRY(read_rest(rest));
    HR_TRY(resolve());
    HR_TRY(check_order(w_.graph));
    return std::move(w_);
  }

 private:
  Status read_rest(const Json& rest) {
    const JsonFields f(rest, "the workload");
    HR_TRY(f.only({"headrace_workload", "name", "cyclic", "comment", "tensors", "ops"}));
    int64_t version = 0;
    HR_TRY(f.integer("headrace_workload", INT64_MIN, INT64_MAX, &version));
    if (version != 1) {
      return error(Code::kBadFile, "the workload is of format %lld; this program reads format 1",
                   static_cast<long long>(version));
    }
    HR_TRY(f.text("name", &w_.graph.name));
    HR_TRY(f.flag("cyclic", &w_.cyclic));
    for (const char* list : {"tensors", "ops"}) {
      const Json* value = f.find(list);
      if (value == nullptr) return f.bad(list, "is missing");
      if (!value->is_array()) return f.bad(list, "is not a list");
      if (!value->empty()) return f.bad(list, "holds something that is not an object");
    }
    if (w_.graph.ops.empty()) return error(Code::kBadFile, "the workload has no ops");
    return {};
  }

  Status take_tensor(const Json& e) {
    if (static_cast<int64_t>(w_.graph.tensors.size()) >= kMostTensors) {
      return error(Code::kBadFile, "more than %lld tensors", static_cast<long long>(kMostTensors));
    }
    Tensor t;
    const JsonFields f(e, "tensor", w_.graph.tensors.size());
    HR_TRY(f.text("name", &t.name));
    HR_TRY(f.only({"name", "bytes", "shape", "dtype", "class", "persistent", "output", "kv", "file",
                   "offset", "pinned", "recompute", "forbidden_tiers", "codecs", "remote_memory"}));
    if (t.name.empty()) return f.bad("name", "is missing or empty");
    HR_TRY(read_size(f, &t));
    HR_TRY(read_role(f, &t));
    HR_TRY(read_rule(f, t));
    const size_t id = static_cast<size_t>(names_.of(t.name));
    if (id >= tensor_of_name_.size()) tensor_of_name_.resize(id + 1);
    if (tensor_of_name_[id].valid()) return f.bad("name", "is that of an earlier tensor as well");
    tensor_of_name_[id] = w_.graph.add(std::move(t));
    return {};
  }

  // bytes, or a shape; with both, they must agree.
  Status read_size(const JsonFields& f, Tensor* t) {
    std::string type = "i8";
    HR_TRY(f.text("dtype", &type));
    const auto dtype = dtype_from_name(type);
    if (!dtype.ok()) return f.bad("dtype", ("is '" + printable(type) + "', not a type").c_str());
    t->dtype = *dtype;
    int64_t bytes = 0;
    HR_TRY(f.integer("bytes", 1, kMostTensorBytes, &bytes));
    if (f.find("shape") != nullptr) {
      HR_TRY(read_shape(f, t));
      if (bytes > 0 && bytes != t->bytes) {
        return f.bad("bytes",
                     text_of("is %lld, but the shape has %lld bytes", static_cast<long long>(bytes),
                             static_cast<long long>(t->bytes))
                         .c_str());
      }
      return {};
    }
    if (bytes == 0) return f.bad("bytes", "is missing, and so is 'shape'");
    const DTypeInfo& i = info(t->dtype);
    if (i.block_bytes == 0 || bytes % i.block_bytes != 0) {
      return f.bad("bytes", ("is not a whole number of " + type + " elements").c_str());
    }
    t->cols = bytes / i.block_bytes * i.block_elements;
    t->bytes = bytes;
    return {};
  }

  Status read_shape(const JsonFields& f, Tensor* t) {
    const Json& shape = *f.find("shape");
    if (!shape.is_array() || shape.empty()) return f.bad("shape", "is not a list of sizes");
    // All but the last dimension are rows.
    for (size_t i = 0; i < shape.size(); ++i) {
      const bool whole =
          shape[i].is_number_integer() && shape[i] >= 1 && shape[i] <= kMostTensorBytes;
      if (!whole) return f.bad("shape", "holds a size that is not a whole number above zero");
      const int64_t size = shape[i].get<int64_t>();
      if (i + 1 == shape.size()) {
        t->cols = size;
      } else if (t->rows > kMostTensorBytes / size) {
        return f.bad("shape", "is too large");
      } else {
        t->rows *= size;
      }
    }
    if (t->dtype != DType::kActQ8 && t->cols % info(t->dtype).block_elements != 0) {
      return f.bad("shape", "has rows that are not whole blocks of its type");
    }
    const Bytes row = row_bytes(t->dtype, t->cols);
    if (row > kMostTensorBytes / t->rows) return f.bad("shape", "is too large");
    t->bytes = row * t->rows;
    return {};
  }

  Status read_role(const JsonFields& f, Tensor* t) {
    bool persistent = false, output = false;
    HR_TRY(f.flag("persistent", &persistent));
    HR_TRY(f.flag("output", &output));
    int64_t file = -1;
    HR_TRY(f.integer("file", 0, INT32_MAX, &file));
    if (file >= 0) {
      t->source.file = static_cast<int32_t>(file);
      t->source.bytes = t->bytes;
      HR_TRY(f.integer("offset", 0, kMostTensorBytes, &t->source.offset));
    } else if (f.find("offset") != nullptr) {
      return f.bad("offset", "has no 'file'");
    }
    if (output && (persistent || file >= 0)) {
      return f.bad("output", "is for tensors that the step makes, not for persistent ones");
    }
    HR_TRY(read_slot(f, persistent && file < 0, t));
    t->role = file >= 0    ? Role::kWeight
              : persistent ? Role::kState
              : output     ? Role::kOutput
                           : Role::kActivation;
    t->data_class = t->slot.layer >= 0        ? DataClass::kKv
                    : persistent || file >= 0 ? DataClass::kWeight
                                              : DataClass::kActivation;
    std::string name = name_of(t->data_class);
    HR_TRY(f.text("class", &name));
    HR_ASSIGN(t->data_class, class_from_name(f, name));
    return {};
  }

  Status read_slot(const JsonFields& f, bool state, Tensor* t) {
    const Json* kv = f.find("kv");
    if (kv == nullptr) return {};
    if (!state) return f.bad("kv", "is for persistent tensors that are not in a file");
    int32_t parts[3] = {};
    bool good = kv->is_array() && kv->size() == 3;
    for (size_t i = 0; good && i < 3; ++i) {
      good = (*kv)[i].is_number_integer() && (*kv)[i] >= 0 && (*kv)[i] <= INT32_MAX;
      if (good) parts[i] = (*kv)[i].get<int32_t>();
    }
    if (!good) return f.bad("kv", "is not [layer, sequence, segment]");
    t->slot = {parts[0], parts[1], parts[2]};
    return {};
  }

  // The tensor is the one about to be added.
  Status read_rule(const JsonFields& f, const Tensor& t) {
    PlacementRule rule;
    HR_TRY(f.flag("pinned", &rule.pinned));
    HR_TRY(f.flag("recompute", &rule.recompute));
    HR_TRY(f.texts("forbidden_tiers", &rule.forbidden_tiers));
    std::vector<std::string> codecs;
    HR_TRY(f.texts("codecs", &codecs));
    for (const std::string& name : codecs) {
      const auto codec = codec_from_name(name);
      if (!codec.ok()) return f.bad("codecs", codec.status().message().c_str());
      if (*codec == Codec::kNone || encoded_bytes(*codec, t) == 0) {
        return f.bad("codecs", ("lists '" + name + "', which is for f32 tensors").c_str());
      }
      rule.codecs.push_back(*codec);
    }
    if (const Json* remote = f.find("remote_memory"); remote != nullptr) {
      const JsonFields r(*remote, f.what() + ": remote_memory");
      HR_TRY(r.only({"max_size", "prefetch_priority"}));
      rule.remote = true;
      HR_TRY(r.integer("max_size", 0, kMostTensorBytes, &rule.remote_max_bytes));
      int64_t priority = 0;
      HR_TRY(r.integer("prefetch_priority", INT32_MIN, INT32_MAX, &priority));
      rule.prefetch_priority = static_cast<int32_t>(priority);
    }
    if (rule == PlacementRule{}) return {};
    rule.tensor = TensorId(static_cast<int64_t>(w_.graph.tensors.size()));
    w_.rules.push_back(std::move(rule));
    return {};
  }

  Status take_op(const Json& e) {
    Graph& g = w_.graph;
    if (static_cast<int64_t>(g.ops.size()) >= kMostWorkloadOps) {
      return error(Code::kBadFile, "more than %lld ops", static_cast<long long>(kMostWorkloadOps));
    }
    Op op;
    op.kind = OpKind::kKernel;
    const JsonFields f(e, "op", g.ops.size());
    HR_TRY(f.text("name", &op.name));
    if (op.name.empty()) op.name = text_of("op%zu", g.ops.size());
    HR_TRY(f.only({"name", "kernel", "inputs", "outputs", "updates", "seconds", "flops", "traffic",
                   "workspace", "recompute"}));
    op.kernel = op.name;
    HR_TRY(f.text("kernel", &op.kernel));
    HR_TRY(read_attr(f, "seconds", Attr::kSeconds, kMostOpSeconds, &op));
    HR_TRY(read_attr(f, "flops", Attr::kFlops, 1e24, &op));
    HR_TRY(read_attr(f, "traffic", Attr::kTraffic, 1e18, &op));
    HR_TRY(f.integer("workspace", 0, kMostTensorBytes, &op.workspace));
    bool recompute = true;
    HR_TRY(f.flag("recompute", &recompute));
    if (!recompute) op.attrs[Attr::kRecompute] = 0;
    HR_TRY(read_operands(f, "inputs", &op.inputs));
    HR_TRY(read_operands(f, "outputs", &op.outputs));
    HR_TRY(read_operands(f, "updates", &op.updates));
    if (op.inputs.empty() && op.outputs.empty() && op.updates.empty()) {
      return f.bad("inputs", "is empty, and so are 'outputs' and 'updates'");
    }
    g.ops.push_back(std::move(op));
    return {};
  }

  Status read_attr(const JsonFields& f, const char* key, Attr attr, double most, Op* op) {
    if (f.find(key) == nullptr) return {};
    double value = 0;
    HR_TRY(f.number(key, 0, most, &value));
    op->attrs[attr] = value;
    return {};
  }

  // Ids for now: of a name n, -2 - i for the number i of a tensor. resolve() makes them TensorIds.
  Status read_operands(const JsonFields& f, const char* key, std::vector<TensorId>* out) {
    const Json* list = f.find(key);
    if (list == nullptr) return {};
    if (!list->is_array()) return f.bad(key, "is not a list of tensors");
    out->reserve(list->size());
    for (const Json& operand : *list) {
      if (operand.is_string()) {
        if (static_cast<int64_t>(names_.size()) > 2 * kMostTensors) {
          return error(Code::kBadFile, "more than %lld names of tensors",
                       static_cast<long long>(2 * kMostTensors));
        }
        out->push_back(TensorId(names_.of(operand.get_ref<const std::string&>())));
      } else if (operand.is_number_integer() && operand >= 0 && operand < kMostTensors) {
        out->push_back(TensorId(-2 - operand.get<int64_t>()));
      } else {
        return f.bad(key, "holds something that is neither the name nor the number of a tensor");
      }
    }
    return {};
  }

  // Operands become TensorIds; one that an op names twice in a list counts once.
  Status resolve() {
    tensor_of_name_.resize(names_.size());
    std::vector<int64_t> seen(w_.graph.tensors.size(), -1);
    int64_t list_number = 0;
    for (Op& op : w_.graph.ops) {
      const int64_t first_list = list_number;
      for (auto* list : {&op.inputs, &op.outputs, &op.updates}) {
        HR_TRY(resolve_list(op, first_list, list_number++, seen, list));
      }
    }
    return {};
  }

  // seen[t]: the last list that named tensor t, lists counted through the file.
  Status resolve_list(const Op& op, int64_t first_list, int64_t number, std::vector<int64_t>& seen,
                      std::vector<TensorId>* list) {
    size_t kept = 0;
    for (const TensorId raw : *list) {
      const TensorId id =
          raw.value <= -2 ? TensorId(-2 - int64_t{raw.value}) : tensor_of_name_[raw.index()];
      if (!id.valid() || id.index() >= w_.graph.tensors.size()) {
        const std::string name = raw.value <= -2 ? text_of("number %d", id.value)
                                                 : "'" + printable(names_.text(raw.value)) + "'";
        return error(Code::kBadFile, "op '%s' names tensor %s, which does not exist",
                     printable(op.name).c_str(), name.c_str());
      }
      if (seen[id.index()] == number) continue;
      if (seen[id.index()] >= first_list) {
        return error(Code::kBadFile,
                     "op '%s' lists tensor '%s' twice: what it reads and writes in place is listed "
                     "under 'updates' alone",
                     printable(op.name).c_str(), printable(w_.graph.at(id).name).c_str());
      }
      seen[id.index()] = number;
      (*list)[kept++] = id;
    }
    list->resize(kept);
    return {};
  }

  Workload w_;
  Names names_;
  std::vector<TensorId> tensor_of_name_;
};

}  // namespace

Result<Workload> parse_own(std::string_view json) { return OwnReader().read(json); }

}  // namespace workload

namespace {

bool has(const std::vector<std::string_view>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool is_trace(const std::vector<std::string_view>& keys) {
  return has(keys, "kernels") && has(keys, "tensors");
}

}  // namespace

Result<Workload> parse_workload(std::string_view json) {
  const auto keys = workload::top_keys(json);
  if (has(keys, "headrace_workload")) return workload::parse_own(json);
  if (is_trace(keys)) return workload::parse_trace(json);
  if (has(keys, "step")) {
    HR_ASSIGN(const StepConfig config, parse_step_config(json));
    return build_step(config);
  }
  return error(Code::kBadFile,
               "not a workload: it has neither 'headrace_workload', nor 'kernels' and 'tensors', "
               "nor 'step' (see docs/guide/workload.md)");
}

}  // namespace headrace

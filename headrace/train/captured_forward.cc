#include "headrace/train/captured_forward.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "headrace/base/json_fields.h"
#include "headrace/base/json_text.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostSize = 1 << 24;       // of a row or a column: products of two stay exact
constexpr size_t kMostOps = 20'000;          // of all micro-batches together
constexpr int64_t kMostGroups = 64;          // that measuring ops has rates for

std::string shown(const std::string& name) { return "'" + printable(name) + "'"; }

Result<Json> document_of(std::string_view text, const char* what) {
  std::string repeated;
  Json document = parse_once(text, &repeated);
  if (document.is_discarded()) return json_error(text).within(what);
  if (!repeated.empty()) {
    return JsonFields(document, what).bad(repeated.c_str(), "is there twice in one object");
  }
  return document;
}

// The elements of the array at `key`; none when it is absent.
Status elements_of(const JsonFields& f, const char* key, std::vector<const Json*>* out) {
  const Json* list = f.find(key);
  if (list == nullptr) return {};
  if (!list->is_array()) return f.bad(key, "is not a list");
  for (const Json& element : *list) out->push_back(&element);
  return {};
}

// Names are short and have no spaces.
Status name_at(const JsonFields& f, const char* key, std::string* out) {
  HR_TRY(f.text(key, out));
  const auto visible = [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 127; };
  const bool plain =
      !out->empty() && out->size() <= 512 && std::all_of(out->begin(), out->end(), visible);
  return plain ? Status() : f.bad(key, "is not a name of 1 to 512 bytes without spaces");
}

// Dimensions [rows, cols], or [n]: then *rows is 1.
Status shape_at(const JsonFields& f, bool may_be_one, int64_t* rows, int64_t* cols, bool* one) {
  const Json* shape = f.find("shape");
  const bool list = shape->is_array() && (shape->size() == 2 || (may_be_one && shape->size() == 1));
  const char* form = may_be_one ? "is not a list of one or two whole numbers from 1 to 2^24"
                                : "is not a list of two whole numbers from 1 to 2^24";
  if (!list) return f.bad("shape", form);
  std::vector<int64_t> sizes;
  for (const Json& size : *shape) {
    if (!size.is_number_integer() || size < 1 || size > kMostSize) return f.bad("shape", form);
    sizes.push_back(size.get<int64_t>());
  }
  *one = sizes.size() == 1;
  *rows = *one ? 1 : sizes[0];
  *cols = sizes.back();
  return {};
}

Status dtype_at(const JsonFields& f, DType* out) {
  std::string name;
  HR_TRY(f.text("dtype", &name));
  if (name.empty()) return {};
  if (name == "f32" || name == "bf16") {
    *out = name == "f32" ? DType::kF32 : DType::kBF16;
    return {};
  }
  return error(Code::kUnsupported, "%s: dtype %s is not supported; f32 and bf16 are",
               f.what().c_str(), shown(name).c_str());
}

class Reader {
 public:
  Status run(const Json& document);
  CapturedForward take() { return std::move(out_); }

 private:
  Status precision(const JsonFields& f);
  Status parameter(const Json& json, size_t number);
  Status remote_memory(const Json& json, CapturedParameter* p);
  Status constant(const Json& json, size_t number);
  Status input(const Json& json, size_t number);
  Status micro_batch(const Json& json, size_t number);
  Status op(const Json& json, const std::string& where, CapturedOp* out);
  Status attrs(const JsonFields& f, CapturedOp* out);

  CapturedForward out_;
  size_t ops_ = 0;
};

Status Reader::run(const Json& document) {
  const JsonFields f(document, "the captured forward pass");
  HR_TRY(f.only({"headrace_forward", "name", "precision", "rows", "sequences", "parameters",
                 "constants", "inputs", "micro_batches"}));
  HR_TRY(f.all({"headrace_forward", "rows", "parameters", "micro_batches"}));
  int64_t version = 0;
  HR_TRY(f.integer("headrace_forward", 1, 1, &version));
  HR_TRY(f.text("name", &out_.name));
  HR_TRY(precision(f));
  HR_TRY(f.integer("rows", 1, kMostSize, &out_.rows));
  HR_TRY(f.integer("sequences", 1, kMostSize, &out_.sequences));
  struct List {
    const char* key;
    Status (Reader::*read)(const Json&, size_t);
  };
  constexpr std::array kLists = {List{"parameters", &Reader::parameter},
                                 List{"constants", &Reader::constant},
                                 List{"inputs", &Reader::input},
                                 List{"micro_batches", &Reader::micro_batch}};
  for (const List& list : kLists) {
    std::vector<const Json*> elements;
    HR_TRY(elements_of(f, list.key, &elements));
    for (size_t i = 0; i < elements.size(); ++i) HR_TRY((this->*list.read)(*elements[i], i));
  }
  if (out_.parameters.empty()) return f.bad("parameters", "is empty");
  if (out_.micro_batches.empty()) return f.bad("micro_batches", "is empty");
  return {};
}

Status Reader::precision(const JsonFields& f) {
  std::string name = "f32";
  HR_TRY(f.text("precision", &name));
  for (const Precision p : {Precision::kF32, Precision::kBf16, Precision::kBf16Stochastic}) {
    if (name != name_of(p)) continue;
    out_.precision = p;
    return {};
  }
  return error(Code::kUnsupported,
               "%s: precision %s is not supported; f32, bf16 and bf16_stochastic are",
               f.what().c_str(), shown(name).c_str());
}

Status Reader::parameter(const Json& json, size_t number) {
  const JsonFields f(json, "parameter", number);
  HR_TRY(f.only({"name", "shape", "dtype", "trainable", "group", "transposed", "aliases",
                 "remote_memory"}));
  HR_TRY(f.all({"name", "shape", "dtype"}));
  CapturedParameter p;
  HR_TRY(name_at(f, "name", &p.name));
  HR_TRY(shape_at(f, true, &p.rows, &p.cols, &p.vector));
  HR_TRY(dtype_at(f, &p.dtype));
  HR_TRY(f.flag("trainable", &p.trainable));
  HR_TRY(f.flag("transposed", &p.transposed));
  HR_TRY(f.integer("group", 0, kMostGroups - 1, &p.group));
  HR_TRY(f.texts("aliases", &p.aliases));
  if (p.transposed && p.vector) return f.bad("transposed", "is true of one dimension");
  if (p.transposed) std::swap(p.rows, p.cols);
  if (const Json* remote = f.find("remote_memory")) {
    HR_TRY(remote_memory(*remote, &p).within(f.what()));
  }
  out_.parameters.push_back(std::move(p));
  return {};
}

Status Reader::remote_memory(const Json& json, CapturedParameter* p) {
  const JsonFields f(json, "remote_memory");
  HR_TRY(f.only({"max_size", "prefetch_priority"}));
  p->remote = true;
  int64_t priority = 0;
  HR_TRY(f.integer("max_size", 0, int64_t{1} << 47, &p->remote_max_bytes));
  HR_TRY(f.integer("prefetch_priority", -1'000'000, 1'000'000, &priority));
  p->prefetch_priority = static_cast<int32_t>(priority);
  return {};
}

Status Reader::constant(const Json& json, size_t number) {
  const JsonFields f(json, "constant", number);
  HR_TRY(f.only({"name", "values"}));
  HR_TRY(f.all({"name", "values"}));
  CapturedConstant c;
  HR_TRY(name_at(f, "name", &c.name));
  const Json* values = f.find("values");
  std::vector<double> numbers(values->is_array() ? values->size() : 0);
  if (numbers.empty() || numbers.size() > 65536) {
    return f.bad("values", "is not a list of 1 to 65536 numbers");
  }
  HR_TRY(f.numbers("values", numbers));
  for (const double number : numbers) {
    c.values.push_back(static_cast<float>(number));
    if (!std::isfinite(c.values.back())) return f.bad("values", "has a number beyond f32");
  }
  out_.constants.push_back(std::move(c));
  return {};
}

Status Reader::input(const Json& json, size_t number) {
  const JsonFields f(json, "input", number);
  HR_TRY(f.only({"name", "shape", "dtype", "count"}));
  HR_TRY(f.all({"name", "shape"}));
  CapturedInput in;
  bool one = false;
  HR_TRY(name_at(f, "name", &in.value.name));
  HR_TRY(shape_at(f, true, &in.value.rows, &in.value.cols, &one));
  HR_TRY(dtype_at(f, &in.value.dtype));
  HR_TRY(f.integer("count", 1, kMostSize, &in.count));
  out_.inputs.push_back(std::move(in));
  return {};
}

Status Reader::micro_batch(const Json& json, size_t number) {
  const std::string where = text_of("micro-batch %zu", number);
  const JsonFields f(json, where);
  HR_TRY(f.only({"ops", "repeat"}));
  HR_TRY(f.all({"ops"}));
  CapturedMicroBatch batch;
  HR_TRY(f.integer("repeat", 1, 1 << 16, &batch.repeat));
  std::vector<const Json*> ops;
  HR_TRY(elements_of(f, "ops", &ops));
  if (ops.empty()) return f.bad("ops", "is empty");
  if (ops.size() * static_cast<size_t>(batch.repeat) > kMostOps - ops_) {
    return error(Code::kUnsupported, "%s: more than %zu ops in one step", where.c_str(), kMostOps);
  }
  ops_ += ops.size() * static_cast<size_t>(batch.repeat);
  for (size_t i = 0; i < ops.size(); ++i) {
    CapturedOp one;
    HR_TRY(op(*ops[i], text_of("%s, op", where.c_str()), &one));
    batch.ops.push_back(std::move(one));
  }
  out_.micro_batches.push_back(std::move(batch));
  return {};
}

Status Reader::op(const Json& json, const std::string& where, CapturedOp* out) {
  std::string what = where;
  if (json.is_object() && json.contains("name") && json["name"].is_string()) {
    what += " " + shown(json["name"].get_ref<const std::string&>());
  }
  const JsonFields f(json, what);
  HR_TRY(f.only({"op", "name", "in", "out", "attrs"}));
  HR_TRY(f.all({"op", "name", "in", "out"}));
  HR_TRY(name_at(f, "op", &out->kernel));
  HR_TRY(name_at(f, "name", &out->name));
  HR_TRY(f.texts("in", &out->inputs));
  std::vector<const Json*> outputs;
  HR_TRY(elements_of(f, "out", &outputs));
  if (out->inputs.empty() || out->inputs.size() > kMostCapturedOperands) {
    return f.bad("in", "is not a list of 1 to 4096 names");
  }
  if (outputs.empty() || outputs.size() > 16) {
    return f.bad("out", "is not a list of 1 to 16 values");
  }
  for (const Json* value : outputs) {
    const JsonFields v(*value, what + ", output");
    HR_TRY(v.only({"name", "shape", "dtype"}));
    HR_TRY(v.all({"name", "shape"}));
    CapturedValue one;
    bool is_vector = false;
    one.dtype = out_.compute_dtype();
    HR_TRY(name_at(v, "name", &one.name));
    HR_TRY(shape_at(v, false, &one.rows, &one.cols, &is_vector));
    HR_TRY(dtype_at(v, &one.dtype));
    out->outputs.push_back(std::move(one));
  }
  return attrs(f, out);
}

Status Reader::attrs(const JsonFields& f, CapturedOp* out) {
  const Json* attrs = f.find("attrs");
  if (attrs == nullptr) return {};
  if (!attrs->is_object()) return f.bad("attrs", "is not a JSON object");
  for (const auto& [key, value] : attrs->items()) {
    int number = 0;
    while (number < kAttrCount && key != name_of(static_cast<Attr>(number))) ++number;
    const Attr attr = static_cast<Attr>(number);
    // What the op costs is not for the caller to say.
    const bool known = number < kAttrCount && attr != Attr::kSeconds && attr != Attr::kFlops &&
                       attr != Attr::kTraffic;
    if (!known) return f.bad(key.c_str(), "is not an attribute that is known");
    if (value.is_boolean()) {
      out->attrs[attr] = value.get<bool>() ? 1 : 0;
    } else if (value.is_number()) {
      out->attrs[attr] = value.get<double>();
    } else {
      return f.bad(key.c_str(), "is not a number");
    }
  }
  return {};
}

}  // namespace

Result<CapturedForward> parse_captured_forward(std::string_view json) {
  HR_ASSIGN(const Json document, document_of(json, "the captured forward pass"));
  Reader reader;
  HR_TRY(reader.run(document));
  CapturedForward forward = reader.take();
  HR_TRY(check_captured_forward(&forward));
  return forward;
}

Result<CapturedOptimizer> parse_captured_optimizer(std::string_view json) {
  HR_ASSIGN(const Json document, document_of(json, "the optimizer"));
  const JsonFields f(document, "the optimizer");
  HR_TRY(f.only({"kind", "clip_norm", "groups"}));
  HR_TRY(f.all({"kind", "groups"}));
  CapturedOptimizer out;
  std::string kind;
  HR_TRY(f.text("kind", &kind));
  out.adamw = kind == "adamw";
  if (!out.adamw && kind != "sgd") {
    return error(Code::kUnsupported, "the optimizer: kind %s is not supported; adamw and sgd are",
                 shown(kind).c_str());
  }
  HR_TRY(f.number("clip_norm", 0, 1e30, &out.clip_norm));
  std::vector<const Json*> groups;
  HR_TRY(elements_of(f, "groups", &groups));
  if (groups.empty() || groups.size() > static_cast<size_t>(kMostGroups)) {
    return f.bad("groups", text_of("is not a list of 1 to %lld groups",
                                   static_cast<long long>(kMostGroups)).c_str());
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const JsonFields g(*groups[i], "optimizer group", i);
    constexpr double kBelowOne = 1 - 0x1p-53;
    StepNumbers n;
    n.group = static_cast<int64_t>(i);
    if (out.adamw) {
      HR_TRY(g.only({"beta1", "beta2", "eps", "weight_decay"}));
      n.weight_decay = 0.01;
    } else {
      HR_TRY(g.only({"momentum", "weight_decay"}));
    }
    HR_TRY(g.number("beta1", 0, kBelowOne, &n.beta1));
    HR_TRY(g.number("beta2", 0, kBelowOne, &n.beta2));
    HR_TRY(g.number("eps", 1e-300, 1, &n.eps));
    HR_TRY(g.number("momentum", 0, kBelowOne, &n.momentum));
    HR_TRY(g.number("weight_decay", 0, 1e9, &n.weight_decay));
    out.groups.push_back(n);
  }
  return out;
}

}  // namespace headrace

#include "headrace/model/jinja_json.h"

#include <nlohmann/json.hpp>

namespace headrace::jinja {
namespace {

// Builds values as the parser meets them; no document in between.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(Value::none()); }
  bool boolean(bool b) override { return add(Value::boolean(b)); }
  bool number_integer(int64_t i) override { return add(Value::integer(i)); }
  bool number_unsigned(uint64_t u) override {
    if (u > INT64_MAX) return refuse("an integer needs more than 64 bits");
    return add(Value::integer(static_cast<int64_t>(u)));
  }
  bool number_float(double f, const std::string& text) override {
    // The parser hands over integers that are too long as floats.
    if (text.find_first_of(".eE") == std::string::npos)
      return refuse("an integer needs more than 64 bits");
    return add(Value::real(f));
  }
  bool string(std::string& s) override { return add(Value::string(from_utf8(s, true))); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("binary data"); }
  bool start_object(size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(false); }
  bool end_array() override { return close(); }
  bool key(std::string& k) override {
    open_.back().key = Value::string(from_utf8(k, true));
    return true;
  }
  bool parse_error(size_t at, const std::string&,
                   const nlohmann::json::exception&) override {
    status_ = error(Code::kUsage, "not JSON at byte %zu", at);
    return false;
  }

  Status status() const { return status_; }
  Value take() { return std::move(root_); }

 private:
  struct Open {
    bool object = false;
    Value key;
    std::shared_ptr<DictObject> entries;
    std::vector<Value> items;
  };

  bool refuse(const char* why) {
    status_ = error(Code::kUnsupported, "%s", why);
    return false;
  }

  bool open(bool object) {
    if (open_.size() + 2 >= static_cast<size_t>(kMaxNesting))
      return refuse("nests too deep");
    Open& o = open_.emplace_back();
    o.object = object;
    if (object) o.entries = std::make_shared<DictObject>();
    return true;
  }

  bool close() {
    Open o = std::move(open_.back());
    open_.pop_back();
    return add(o.object ? Value::dict(std::move(o.entries))
                        : Value::list(std::move(o.items)));
  }

  bool add(Value v) {
    if (open_.empty())
      root_ = std::move(v);
    else if (open_.back().object)
      open_.back().entries->set(open_.back().key, std::move(v));
    else
      open_.back().items.push_back(std::move(v));
    return true;
  }

  std::vector<Open> open_;
  Value root_;
  Status status_;
};

}  // namespace

Result<Value> value_of_json(std::string_view json, const char* what) {
  Builder builder;
  if (!nlohmann::json::sax_parse(json, &builder)) return builder.status().within(what);
  return builder.take();
}

}  // namespace headrace::jinja

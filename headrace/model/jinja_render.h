// Renderer: runs a parsed template over variables and returns its text.
//
// Errors are sticky: the first one stops the rendering; evaluation functions then return
// undefined values that nobody looks at. A template can neither run for ever nor take
// unbounded memory: see RenderLimits.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/model/jinja_ast.h"
#include "headrace/model/jinja_functions.h"

namespace headrace::jinja {

struct RenderLimits {
  int64_t output_characters = 16 << 20;
  // Evaluations, loop rounds, characters copied and list entries made, together. On top
  // of it comes `steps_per_input` for every character of the variables.
  int64_t steps = 8 << 20;
  int64_t steps_per_input = 64;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Renderer {
 public:
  // `now` is what strftime_now() formats.
  Renderer(const RenderLimits& limits, const std::tm& now) : limits_(limits), now_(now) {}

  // Runs `body` with `variables`, which may be changed. `input_characters` is their size.
  // Errors: kUsage for raise_exception(), kBadFile for what Python would raise,
  // kUnsupported for a limit or something we do not do.
  Result<Text> run(const Body& body, std::shared_ptr<Scope> variables,
                   int64_t input_characters);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using Filter = Value (Renderer::*)(const Value&, const Arguments&, int);
  using Bound = std::vector<std::optional<Value>>;
  friend bool is_known_filter(std::string_view name);

  // jinja_render.cc: statements.
  Flow run_body(const Body& body);
  Flow run_statement(const Statement& s);
  Flow run_if(const Statement& s);
  void run_for(const Statement& s);
  void run_with(const Statement& s);
  void define_macro(const Statement& s);
  bool loop_items(const Statement& s, std::vector<Value>* items);
  void assign(const Statement& s, const Value& value, int line);
  void assign_one(const Target& target, const Value& value, int line);
  void print(const Value& value, int line);
  Value captured(const Body& body, int line);
  void push_scope();
  void pop_scope();

  // jinja_expression.cc
  Value eval(const Expression& e);
  Value eval_unguarded(const Expression& e);
  Value eval_parts(const Expression& e);
  Value eval_dict(const Expression& e);
  Value eval_unary(const Expression& e);
  Value eval_binary(const Expression& e);
  Value eval_compare(const Expression& e);
  Value eval_slice(const Expression& e);
  Value eval_concat(const Expression& e);
  Value lookup(const Expression& e);
  Value arithmetic(const std::string& op, const Value& a, const Value& b, int line);
  Value integer_arithmetic(const std::string& op, int64_t a, int64_t b, int line);
  Value repeat(const Value& sequence, int64_t times, int line);
  bool compare(const std::string& op, const Value& a, const Value& b, int line);
  bool contains(const Value& container, const Value& item, int line);
  Value attribute(const Value& of, std::string_view name, int line);
  Value item(const Value& of, const Value& key, int line);
  Value loop_attribute(const LoopObject& loop, std::string_view name);

  // jinja_calls.cc: functions, methods and macros.
  Arguments evaluate(const std::vector<Argument>& arguments);
  Value call(const Value& callee, const Arguments& arguments, int line);
  Value call_global(const std::string& name, const Arguments& arguments, int line);
  Value call_macro(const FunctionObject& macro, const Arguments& arguments, int line);
  Value call_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value text_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value split_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value affix_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value find_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value format_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value dict_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value list_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value loop_method(const FunctionObject& method, const Arguments& arguments, int line);
  Value range(const Arguments& arguments, int line);

  // jinja_tests.cc
  bool test(const std::string& name, const Value& value, const Arguments& arguments,
            int line);

  // jinja_filters*.cc
  static const std::pair<const char*, Filter>* find_filter(std::string_view name);
  Value filter(const std::string& name, const Value& value, const Arguments& arguments,
               int line);
  Value filter_abs(const Value& v, const Arguments& a, int line);
  Value filter_capitalize(const Value& v, const Arguments& a, int line);
  Value filter_default(const Value& v, const Arguments& a, int line);
  Value filter_dictsort(const Value& v, const Arguments& a, int line);
  Value filter_first(const Value& v, const Arguments& a, int line);
  Value filter_float(const Value& v, const Arguments& a, int line);
  Value filter_indent(const Value& v, const Arguments& a, int line);
  Value filter_int(const Value& v, const Arguments& a, int line);
  Value filter_items(const Value& v, const Arguments& a, int line);
  Value filter_join(const Value& v, const Arguments& a, int line);
  Value filter_last(const Value& v, const Arguments& a, int line);
  Value filter_length(const Value& v, const Arguments& a, int line);
  Value filter_list(const Value& v, const Arguments& a, int line);
  Value filter_lower(const Value& v, const Arguments& a, int line);
  Value filter_map(const Value& v, const Arguments& a, int line);
  Value filter_max(const Value& v, const Arguments& a, int line);
  Value filter_min(const Value& v, const Arguments& a, int line);
  Value filter_reject(const Value& v, const Arguments& a, int line);
  Value filter_rejectattr(const Value& v, const Arguments& a, int line);
  Value filter_replace(const Value& v, const Arguments& a, int line);
  Value filter_reverse(const Value& v, const Arguments& a, int line);
  Value filter_round(const Value& v, const Arguments& a, int line);
  Value filter_safe(const Value& v, const Arguments& a, int line);
  Value filter_select(const Value& v, const Arguments& a, int line);
  Value filter_selectattr(const Value& v, const Arguments& a, int line);
  Value filter_sort(const Value& v, const Arguments& a, int line);
  Value filter_string(const Value& v, const Arguments& a, int line);
  Value filter_sum(const Value& v, const Arguments& a, int line);
  Value filter_title(const Value& v, const Arguments& a, int line);
  Value filter_tojson(const Value& v, const Arguments& a, int line);
  Value filter_trim(const Value& v, const Arguments& a, int line);
  Value filter_unique(const Value& v, const Arguments& a, int line);
  Value filter_upper(const Value& v, const Arguments& a, int line);
  Value select(const Value& v, const Arguments& a, bool keep, bool by_attribute,
               int line);
  Value extreme(const Value& v, const Arguments& a, bool greatest, int line);
  Value path(const Value& of, const Value& attribute, int line);
  Value sort_key(const Value& v, const std::optional<Value>& attribute, bool keep_case,
                 int line);
  bool sort(std::vector<std::pair<Value, Value>>* keyed, bool reverse, int line);

  // jinja_render.cc: tools of all the above.
  // The arguments by parameter name; fails on unknown, double and missing (< required)
  // ones.
  Bound bind(const Arguments& a, const std::vector<const char*>& names, size_t required,
             const char* what, int line);
  bool iterate(const Value& value, std::vector<Value>* items, int line);
  Text text_of(const Value& value, int line);
  Value make_text(Text text, int line);
  Value make_list(std::vector<Value> items, int line, bool tuple = false);
  Value checked(Value container, int line);
  // Counts the work of searching `needle` in `text`, which is their product at worst.
  bool tick_search(TextView text, TextView needle, int line);
  // Counts work; false when the limit is reached or an error happened before.
  bool tick(int64_t steps, int line);
  [[gnu::format(printf, 4, 5)]] Value fail(Code code, int line, const char* format, ...);
  bool failed() const { return !status_.ok(); }

  RenderLimits limits_;
  std::tm now_;
  Status status_;
  std::shared_ptr<Scope> scope_;
  // Kept until the end, then emptied: macros and namespaces may form cycles.
  std::vector<std::shared_ptr<Scope>> macro_scopes_;
  std::vector<std::shared_ptr<DictObject>> namespaces_;
  Text* out_ = nullptr;
  int64_t steps_left_ = 0;
  int nesting_ = 0;
};

}  // namespace headrace::jinja

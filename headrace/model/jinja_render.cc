#include "headrace/model/jinja_render.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "headrace/model/jinja_lexer.h"

namespace headrace::jinja {
namespace {

// Bodies and expressions inside one another, macro calls included: about 1 KB of stack
// each.
constexpr int kMaxRunning = 1000;
constexpr int64_t kMaxWeight = 1 << 22;

}  // namespace

Result<Text> Renderer::run(const Body& body, std::shared_ptr<Scope> variables,
                           int64_t input_characters) {
  steps_left_ = limits_.steps + limits_.steps_per_input * input_characters;
  Text out;
  out_ = &out;
  scope_ = std::move(variables);
  run_body(body);
  for (const auto& scope : macro_scopes_) scope->variables.clear();
  for (const auto& entries : namespaces_) entries->items.clear();
  macro_scopes_.clear();
  scope_ = nullptr;
  if (failed()) return status_;
  return out;
}

Renderer::Flow Renderer::run_body(const Body& body) {
  if (++nesting_ > kMaxRunning)
    fail(Code::kUnsupported, body.empty() ? 0 : body[0]->line,
         "calls nest deeper than %d", kMaxRunning);
  Flow flow = Flow::kNext;
  for (const auto& statement : body) {
    if (failed()) break;
    flow = run_statement(*statement);
    if (flow != Flow::kNext) break;
  }
  --nesting_;
  return flow;
}

Renderer::Flow Renderer::run_statement(const Statement& s) {
  if (!tick(1, s.line)) return Flow::kNext;
  switch (s.type) {
    case StatementType::kText:
      if (tick(static_cast<int64_t>(s.text.size()), s.line)) out_->append(s.text);
      break;
    case StatementType::kPrint:
      print(eval(*s.value), s.line);
      break;
    case StatementType::kIf:
      return run_if(s);
    case StatementType::kFor:
      run_for(s);
      break;
    case StatementType::kSet:
      assign(s, eval(*s.value), s.line);
      break;
    case StatementType::kSetBlock: {
      Value value = captured(s.body, s.line);
      if (s.value && !failed()) {
        // The chain of filters ends in a null operand: the captured text stands there.
        push_scope();
        scope_->set("", value);
        value = eval(*s.value);
        pop_scope();
      }
      assign(s, value, s.line);
      break;
    }
    case StatementType::kFilterBlock: {
      push_scope();
      scope_->set("", captured(s.body, s.line));
      const Value value = eval(*s.value);
      pop_scope();
      print(value, s.line);
      break;
    }
    case StatementType::kMacro:
      define_macro(s);
      break;
    case StatementType::kWith:
      run_with(s);
      break;
    case StatementType::kScope: {
      push_scope();
      const Flow flow = run_body(s.body);
      pop_scope();
      return flow;
    }
    case StatementType::kBreak:
      return Flow::kBreak;
    case StatementType::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::run_if(const Statement& s) {
  for (const auto& [condition, body] : s.branches) {
    if (condition == nullptr || eval(*condition).truth())
      return failed() ? Flow::kNext : run_body(body);
    if (failed()) break;
  }
  return Flow::kNext;
}

// The items of a loop, those that its "if" drops left out.
bool Renderer::loop_items(const Statement& s, std::vector<Value>* items) {
  const Value sequence = eval(*s.value);
  if (failed() || !iterate(sequence, items, s.line)) return false;
  if (!s.filter) return true;
  std::vector<Value> kept;
  for (Value& value : *items) {
    push_scope();
    assign(s, value, s.line);
    const bool keep = !failed() && eval(*s.filter).truth();
    pop_scope();
    if (failed()) return false;
    if (keep) kept.push_back(std::move(value));
  }
  items->swap(kept);
  return true;
}

void Renderer::run_for(const Statement& s) {
  auto loop = std::make_shared<LoopObject>();
  if (!loop_items(s, &loop->items)) return;
  const Value loop_value = Value::loop(loop);
  for (size_t i = 0; i < loop->items.size() && tick(1, s.line); ++i) {
    loop->index0 = i;
    push_scope();
    scope_->set("loop", loop_value);
    assign(s, loop->items[i], s.line);
    const Flow flow = failed() ? Flow::kBreak : run_body(s.body);
    pop_scope();
    if (flow == Flow::kBreak || failed()) break;
  }
  if (loop->items.empty()) {
    push_scope();
    run_body(s.otherwise);
    pop_scope();
  }
}

void Renderer::assign(const Statement& s, const Value& value, int line) {
  if (failed()) return;
  if (!s.unpack) return assign_one(s.targets[0], value, line);
  std::vector<Value> items;
  if (!iterate(value, &items, line)) return;
  if (items.size() != s.targets.size()) {
    fail(Code::kBadFile, line, "%zu values cannot be unpacked to %zu names", items.size(),
         s.targets.size());
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) assign_one(s.targets[i], items[i], line);
}

void Renderer::assign_one(const Target& target, const Value& value, int line) {
  if (target.attribute.empty()) return scope_->set(target.name, value);
  const Value* holder = scope_->find(target.name);
  if (holder == nullptr || holder->kind() != Kind::kNamespace) {
    fail(Code::kBadFile, line, "cannot set an attribute of \"%s\": it is no namespace",
         target.name.c_str());
    return;
  }
  if (value.depth() >= kMaxNesting) {
    fail(Code::kUnsupported, line, "a value nests deeper than %d", kMaxNesting);
    return;
  }
  holder->attributes()->set(Value::ascii(target.attribute), value);
}

void Renderer::run_with(const Statement& s) {
  std::vector<Value> values;
  for (const auto& e : s.values) values.push_back(eval(*e));
  if (failed()) return;
  push_scope();
  for (size_t i = 0; i < values.size(); ++i) scope_->set(s.targets[i].name, values[i]);
  run_body(s.body);
  pop_scope();
}

void Renderer::define_macro(const Statement& s) {
  auto macro = std::make_shared<FunctionObject>();
  macro->name = s.name;
  macro->macro = &s;
  macro->scope = scope_;
  macro_scopes_.push_back(scope_);
  scope_->set(s.name, Value::function(std::move(macro)));
}

void Renderer::print(const Value& value, int line) {
  if (failed()) return;
  const size_t before = out_->size();
  if (!append_str(value, out_))
    fail(Code::kUnsupported, line, "a %s cannot be printed", value.type_name());
  tick(static_cast<int64_t>(out_->size() - before), line);
}

Value Renderer::captured(const Body& body, int line) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  push_scope();
  run_body(body);
  pop_scope();
  out_ = outer;
  return make_text(std::move(text), line);
}

void Renderer::push_scope() {
  auto scope = std::make_shared<Scope>();
  scope->parent = scope_;
  scope_ = std::move(scope);
}

void Renderer::pop_scope() { scope_ = std::shared_ptr<Scope>(scope_->parent); }

Renderer::Bound Renderer::bind(const Arguments& a, const std::vector<const char*>& names,
                               size_t required, const char* what, int line) {
  Bound out(names.size());
  if (a.positional.size() > names.size())
    fail(Code::kBadFile, line, "%s takes at most %zu arguments, not %zu", what,
         names.size(), a.positional.size());
  for (size_t i = 0; i < std::min(a.positional.size(), names.size()); ++i)
    out[i] = a.positional[i];
  for (const auto& [name, value] : a.named) {
    size_t i = 0;
    while (i < names.size() && name != names[i]) ++i;
    if (i == names.size() || out[i])
      fail(Code::kBadFile, line, "%s: unexpected argument \"%s\"", what, name.c_str());
    else
      out[i] = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!out[i]) {
      fail(Code::kBadFile, line, "%s needs the argument \"%s\"", what, names[i]);
      out[i] = Value();
    }
  return out;
}

bool Renderer::iterate(const Value& value, std::vector<Value>* items, int line) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kList:
    case Kind::kTuple:
      *items = value.items();
      break;
    case Kind::kString:
      for (const char32_t c : value.text()) items->push_back(Value::string(Text(1, c)));
      break;
    case Kind::kDict:
      for (const auto& entry : value.entries().items) items->push_back(entry.first);
      break;
    default:
      fail(Code::kBadFile, line, "a %s cannot be iterated", value.type_name());
      return false;
  }
  return tick(static_cast<int64_t>(items->size()), line);
}

Text Renderer::text_of(const Value& value, int line) {
  Text out;
  if (!append_str(value, &out))
    fail(Code::kUnsupported, line, "a %s cannot be written as text", value.type_name());
  tick(static_cast<int64_t>(out.size()), line);
  return out;
}

Value Renderer::make_text(Text text, int line) {
  tick(static_cast<int64_t>(text.size()), line);
  return Value::string(std::move(text));
}

Value Renderer::make_list(std::vector<Value> items, int line, bool tuple) {
  tick(static_cast<int64_t>(items.size()), line);
  return checked(Value::list(std::move(items), tuple), line);
}

Value Renderer::checked(Value container, int line) {
  if (container.depth() >= kMaxNesting || container.weight() > kMaxWeight)
    return fail(Code::kUnsupported, line, "a value is too large or nests too deep");
  return container;
}

bool Renderer::tick_search(TextView text, TextView needle, int line) {
  // Needles of templates are short; only long ones cost more than a pass over the text.
  return tick(static_cast<int64_t>(text.size() * (1 + needle.size() / 64)), line);
}

bool Renderer::tick(int64_t steps, int line) {
  if (failed()) return false;
  steps_left_ -= steps;
  if (steps_left_ >= 0 && static_cast<int64_t>(out_->size()) <= limits_.output_characters)
    return true;
  fail(Code::kUnsupported, line,
       steps_left_ < 0 ? "rendering takes too many steps"
                       : "the rendered text is too long");
  return false;
}

Value Renderer::fail(Code code, int line, const char* format, ...) {
  if (failed()) return Value();
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  status_ = template_error(code, line, "%s", text);
  return Value();
}

}  // namespace headrace::jinja

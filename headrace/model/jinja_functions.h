// What the callable and the loop values of the template engine hold.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "headrace/model/jinja_value.h"

namespace headrace::jinja {

struct Statement;

// Variables of one block; names are looked up from the innermost scope outwards.
struct Scope {
  std::vector<std::pair<std::string, Value>> variables;
  std::shared_ptr<Scope> parent;

  const Value* find(std::string_view name) const {
    for (const Scope* s = this; s != nullptr; s = s->parent.get())
      for (const auto& [n, v] : s->variables)
        if (n == name) return &v;
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    for (auto& [n, v] : variables) {
      if (n != name) continue;
      v = std::move(value);
      return;
    }
    variables.emplace_back(std::string(name), std::move(value));
  }
};

// A global function, a method of `receiver`, or a macro.
struct FunctionObject : Object {
  std::string name;
  bool is_method = false;
  Value receiver;
  const Statement* macro = nullptr;  // outlives the rendering
  std::shared_ptr<Scope> scope;      // where the macro was defined
};

// The variable `loop` inside a for block.
struct LoopObject : Object {
  std::vector<Value> items;
  size_t index0 = 0;
  bool has_last_changed = false;
  Value last_changed;
};

}  // namespace headrace::jinja

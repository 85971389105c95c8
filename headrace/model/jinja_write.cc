// str(), repr() and json.dumps() of template values.
#include <algorithm>

#include "headrace/base/status.h"
#include "headrace/model/jinja_value.h"

namespace headrace::jinja {
namespace {

void append_hex_escape(char32_t c, char32_t bit, Text* out) {
  const std::string hex = c < 0x100     ? text_of("\\x%02x", static_cast<unsigned>(c))
                          : c < 0x10000 ? text_of("\\u%04x", static_cast<unsigned>(c))
                                        : text_of("\\U%08x", static_cast<unsigned>(c));
  for (const char h : hex) out->push_back(static_cast<unsigned char>(h) | bit);
}

// Single quotes, unless the text has some and no double ones.
void append_quoted(TextView text, Text* out) {
  const auto has = [text](char32_t q) {
    return std::any_of(text.begin(), text.end(),
                       [q](char32_t c) { return plain(c) == q; });
  };
  const char32_t quote = has('\'') && !has('"') ? '"' : '\'';
  out->push_back(quote);
  for (const char32_t full : text) {
    const char32_t c = plain(full);
    const char32_t bit = full & kUntrusted;
    const auto escape = [&](char32_t letter) {
      out->push_back('\\' | bit);
      out->push_back(letter | bit);
    };
    if (c == quote || c == '\\')
      escape(c);
    else if (c == '\n')
      escape('n');
    else if (c == '\r')
      escape('r');
    else if (c == '\t')
      escape('t');
    else if (!is_printable(c))
      append_hex_escape(c, bit, out);
    else
      out->push_back(full);
  }
  out->push_back(quote);
}

bool append_items(const std::vector<Value>& items, Text* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) append_ascii(", ", out);
    if (!append_repr(items[i], out)) return false;
  }
  return true;
}

void append_json_string(TextView text, bool ensure_ascii, Text* out) {
  out->push_back('"');
  for (const char32_t full : text) {
    const char32_t c = plain(full);
    const char32_t bit = full & kUntrusted;
    const auto put = [&](std::string_view s) {
      for (const char x : s) out->push_back(static_cast<unsigned char>(x) | bit);
    };
    if (c == '"')
      put("\\\"");
    else if (c == '\\')
      put("\\\\");
    else if (c == '\n')
      put("\\n");
    else if (c == '\r')
      put("\\r");
    else if (c == '\t')
      put("\\t");
    else if (c == '\f')
      put("\\f");
    else if (c == '\b')
      put("\\b");
    else if (c < 0x20)
      put(text_of("\\u%04x", static_cast<unsigned>(c)));
    else if (!ensure_ascii || c < 0x7F)
      out->push_back(full);
    else if (c < 0x10000)
      put(text_of("\\u%04x", static_cast<unsigned>(c)));
    else
      put(text_of("\\u%04x\\u%04x", static_cast<unsigned>(0xD800 + ((c - 0x10000) >> 10)),
                  static_cast<unsigned>(0xDC00 + ((c - 0x10000) & 0x3FF))));
  }
  out->push_back('"');
}

void append_break(const JsonStyle& style, int level, Text* out) {
  if (!style.indent) return;
  out->push_back('\n');
  for (int i = 0; i < level; ++i) out->append(*style.indent);
}

std::string json_number(const Value& value) {
  if (value.kind() == Kind::kInt) return std::to_string(value.as_integer());
  const std::string text = repr_of(value.as_real());
  if (text == "nan") return "NaN";
  if (text == "inf") return "Infinity";
  return text == "-inf" ? "-Infinity" : text;
}

bool append_json_at(const Value& value, const JsonStyle& style, int level, Text* out);

bool append_json_key(const Value& key, const JsonStyle& style, Text* out) {
  if (key.is_string()) {
    append_json_string(key.text(), style.ensure_ascii, out);
    return true;
  }
  if (!key.is_number() && !key.is_none()) return false;
  out->push_back('"');
  append_json_at(key, style, 0, out);
  out->push_back('"');
  return true;
}

bool append_json_dict(const Value& value, const JsonStyle& style, int level, Text* out) {
  std::vector<const std::pair<Value, Value>*> order;
  for (const auto& entry : value.entries().items) order.push_back(&entry);
  if (style.sort_keys)
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      return less(a->first, b->first).value_or(false);
    });
  out->push_back('{');
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0) out->append(style.item_separator);
    append_break(style, level + 1, out);
    if (!append_json_key(order[i]->first, style, out)) return false;
    out->append(style.key_separator);
    if (!append_json_at(order[i]->second, style, level + 1, out)) return false;
  }
  if (!order.empty()) append_break(style, level, out);
  out->push_back('}');
  return true;
}

bool append_json_at(const Value& value, const JsonStyle& style, int level, Text* out) {
  switch (value.kind()) {
    case Kind::kNone:
      append_ascii("null", out);
      return true;
    case Kind::kBool:
      append_ascii(value.truth() ? "true" : "false", out);
      return true;
    case Kind::kInt:
    case Kind::kFloat:
      append_ascii(json_number(value), out);
      return true;
    case Kind::kString:
      append_json_string(value.text(), style.ensure_ascii, out);
      return true;
    case Kind::kList:
    case Kind::kTuple: {
      out->push_back('[');
      const std::vector<Value>& items = value.items();
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out->append(style.item_separator);
        append_break(style, level + 1, out);
        if (!append_json_at(items[i], style, level + 1, out)) return false;
      }
      if (!items.empty()) append_break(style, level, out);
      out->push_back(']');
      return true;
    }
    case Kind::kDict:
      return append_json_dict(value, style, level, out);
    default:
      return false;
  }
}

}  // namespace

bool append_str(const Value& value, Text* out) {
  if (value.is_undefined()) return true;
  if (!value.is_string()) return append_repr(value, out);
  out->append(value.text());
  return true;
}

bool append_repr(const Value& value, Text* out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      append_ascii("Undefined", out);
      return true;
    case Kind::kNone:
      append_ascii("None", out);
      return true;
    case Kind::kBool:
      append_ascii(value.truth() ? "True" : "False", out);
      return true;
    case Kind::kInt:
      append_ascii(std::to_string(value.as_integer()), out);
      return true;
    case Kind::kFloat:
      append_ascii(repr_of(value.as_real()), out);
      return true;
    case Kind::kString:
      append_quoted(value.text(), out);
      return true;
    case Kind::kList:
    case Kind::kTuple: {
      const bool tuple = value.kind() == Kind::kTuple;
      out->push_back(tuple ? '(' : '[');
      if (!append_items(value.items(), out)) return false;
      if (tuple && value.items().size() == 1) out->push_back(',');
      out->push_back(tuple ? ')' : ']');
      return true;
    }
    case Kind::kDict: {
      out->push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.entries().items) {
        if (!first) append_ascii(", ", out);
        first = false;
        if (!append_repr(key, out)) return false;
        append_ascii(": ", out);
        if (!append_repr(item, out)) return false;
      }
      out->push_back('}');
      return true;
    }
    default:
      return false;
  }
}

bool append_json(const Value& value, const JsonStyle& style, Text* out) {
  return append_json_at(value, style, 0, out);
}

}  // namespace headrace::jinja

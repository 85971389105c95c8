#include "headrace/report/text_style.h"

#include <algorithm>
#include <cmath>

#include "headrace/base/status.h"

namespace headrace {

std::string human_time(Nanos ns) {
  const double s = static_cast<double>(ns) / 1e9;
  if (ns < 1000) return text_of("%lld ns", static_cast<long long>(ns));
  if (s < 999.5e-6) return human_number(s * 1e6) + " us";
  if (s < 0.9995) return human_number(s * 1e3) + " ms";
  if (s < 99.95) return human_number(s) + " s";
  const long long whole = std::llround(s);
  if (whole < 3600) return text_of("%lld min %02lld s", whole / 60, whole % 60);
  return text_of("%lld h %02lld min", whole / 3600, whole / 60 % 60);
}

std::string precise_time(Nanos ns) {
  const double s = static_cast<double>(ns) / 1e9;
  if (ns < 1000) return human_time(ns);
  const double x = s < 999.995e-6 ? s * 1e6 : s < 0.999995 ? s * 1e3 : s;
  const char* const unit = s < 999.995e-6 ? "us" : s < 0.999995 ? "ms" : "s";
  if (x >= 9999.5) return grouped(std::llround(x)) + " " + unit;
  const int digits = x < 9.99995 ? 4 : x < 99.9995 ? 3 : x < 999.995 ? 2 : 1;
  return text_of("%.*f %s", digits, x, unit);
}

std::string human_number(double x) {
  const double size = std::fabs(x);
  if (size < 9.995) return text_of("%.2f", x);
  if (size < 99.95) return text_of("%.1f", x);
  return grouped(std::llround(x));
}

std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  const size_t start = n < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > start + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string human_count(double n) {
  static const char* const kUnits[] = {"", " K", " M", " B", " T"};
  int unit = 0;
  while (n >= 999.5 && unit < 4) {
    n /= 1000;
    ++unit;
  }
  if (unit == 0) return text_of("%.0f", n);
  return text_of(n < 9.995 ? "%.2f%s" : n < 99.95 ? "%.1f%s" : "%.0f%s", n, kUnits[unit]);
}

std::string terminal_text(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return out;
}

int columns(std::string_view text) {
  int n = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++n;
    }
  }
  return n;
}

std::string pad_right(std::string_view text, int width) {
  const int missing = std::max(0, width - columns(text));
  return std::string(text) + std::string(static_cast<size_t>(missing), ' ');
}

std::string pad_left(std::string_view text, int width) {
  const int missing = std::max(0, width - columns(text));
  return std::string(static_cast<size_t>(missing), ' ') + std::string(text);
}

std::string bar(double fraction, int width, const TextStyle& style) {
  fraction = std::clamp(std::isfinite(fraction) ? fraction : 0.0, 0.0, 1.0);
  std::string out;
  if (!style.unicode) {
    const int full = static_cast<int>(std::lround(fraction * width));
    for (int i = 0; i < width; ++i) out += i < full ? '#' : '.';
    return out;
  }
  // Eighths of a column: U+2588 is a full block, U+258F to U+2589 one to seven eighths.
  int eighths = static_cast<int>(std::lround(fraction * width * 8));
  if (fraction > 0) eighths = std::max(eighths, 1);
  for (int i = 0; i < width; ++i, eighths -= 8) {
    if (eighths >= 8) {
      out += "\u2588";
    } else if (eighths > 0) {
      out += std::string("\xE2\x96") + static_cast<char>(0x90 - eighths);
    } else {
      out += ' ';
    }
  }
  return out;
}

std::string dim(std::string_view text, const TextStyle& style) {
  return style.color ? "\x1b[2m" + std::string(text) + "\x1b[0m" : std::string(text);
}

std::string bold(std::string_view text, const TextStyle& style) {
  return style.color ? "\x1b[1m" + std::string(text) + "\x1b[0m" : std::string(text);
}

std::string wrapped(std::string_view text, int width, int indent) {
  std::string out, line;
  const auto flush = [&] {
    out += std::string(static_cast<size_t>(indent), ' ') + line + "\n";
    line.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!line.empty() && columns(line) + 1 + columns(word) > width - indent) flush();
    if (!line.empty()) line += ' ';
    line += word;
    at = end + 1;
  }
  if (!line.empty()) flush();
  return out;
}

}  // namespace headrace

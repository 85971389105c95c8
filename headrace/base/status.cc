#include "headrace/base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace headrace {
namespace {

std::string format_va(const char* format, va_list args) {
  va_list copy;
  va_copy(copy, args);
  const int size = std::vsnprintf(nullptr, 0, format, copy);
  va_end(copy);
  std::string out(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  if (size > 0) std::vsnprintf(out.data(), out.size() + 1, format, args);
  return out;
}

}  // namespace

int exit_code(Code code) {
  switch (code) {
    case Code::kOk: return 0;
    case Code::kUsage: return 2;
    case Code::kDoesNotFit: return 3;
    case Code::kBadFile:
    case Code::kUnsupported: return 4;
    case Code::kIo: return 5;
    case Code::kNotFinite: return 6;
    case Code::kCancelled: return 130;
  }
  return 1;
}

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kUsage: return "usage";
    case Code::kDoesNotFit: return "does_not_fit";
    case Code::kBadFile: return "bad_file";
    case Code::kUnsupported: return "unsupported";
    case Code::kIo: return "io";
    case Code::kNotFinite: return "not_finite";
    case Code::kCancelled: return "cancelled";
  }
  return "unknown";
}

Status::Status(Code code, std::string message)
    : rep_(code == Code::kOk ? nullptr
                             : std::make_shared<const Rep>(Rep{code, std::move(message)})) {}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

Status Status::within(const std::string& context) const {
  if (ok()) return *this;
  return Status(code(), context + ": " + message());
}

Status error(Code code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Status status(code, format_va(format, args));
  va_end(args);
  return status;
}

std::string text_of(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string out = format_va(format, args);
  va_end(args);
  return out;
}

std::string human_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while ((value >= 1024 || value <= -1024) && unit < 4) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return text_of("%lld B", static_cast<long long>(bytes));
  return text_of(value < 10 && value > -10 ? "%.2f %s" : "%.1f %s", value, kUnits[unit]);
}

void check_failed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "headrace: internal error at %s:%d: %s (%s)\n", file, line, why,
               condition);
  std::abort();
}

}  // namespace headrace

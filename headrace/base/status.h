// Errors: Status and Result<T> for what the world does to us, HR_CHECK for what we did wrong.
//
// Promises:
//  1. A Status carries a code and one message with names and numbers; ok() costs one pointer test.
//  2. exit_code(code) is the process exit code that the command line documents for it.
//  3. HR_CHECK is on in release builds; it prints the condition and the reason and aborts.
//  4. Nothing here throws.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace headrace {

enum class Code {
  kOk,
  kUsage,        // the caller asked for something meaningless (exit 2)
  kDoesNotFit,   // cannot be done in the memory given (exit 3)
  kBadFile,      // a file is corrupt, truncated or inconsistent (exit 4)
  kUnsupported,  // a valid request for something we do not do; names it (exit 4)
  kIo,           // the system refused a read, write or map; names file, offset, errno (exit 5)
  kNotFinite,    // a computation gave no number: NaN or infinity; names the op (exit 6)
  kCancelled,    // stopped on request (exit 130)
};

// The exit code of the command line for `code`.
int exit_code(Code code);
// A short lower-case name, for messages and JSON ("does_not_fit").
const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message);

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  // Empty when ok.
  const std::string& message() const;
  // The same error with `context` put before the message: "context: message". Ok stays ok.
  Status within(const std::string& context) const;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

// printf-style message. Example: error(Code::kIo, "%s: read at %lld: %s", path, off, why).
[[gnu::format(printf, 2, 3)]] Status error(Code code, const char* format, ...);
// The same text formatting, for other messages.
[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...);
// "1.50 GiB", "98.4 MiB", "812 B": for people. JSON carries plain integers instead.
std::string human_bytes(int64_t bytes);

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}   // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  // Precondition: ok().
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::variant<T, Status> state_;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* why);

}  // namespace headrace

// Aborts with file, line and reason unless `condition` holds. For our own mistakes only.
#define HR_CHECK(condition, why)                                               \
  do {                                                                         \
    if (!(condition)) [[unlikely]]                                             \
      ::headrace::check_failed(__FILE__, __LINE__, #condition, why);           \
  } while (0)

// Returns the Status of `expression` from the enclosing function unless it is ok.
#define HR_TRY(expression)                                                     \
  do {                                                                         \
    if (::headrace::Status hr_status_ = (expression); !hr_status_.ok())        \
      return hr_status_;                                                       \
  } while (0)

#define HR_CONCAT_INNER_(a, b) a##b
#define HR_CONCAT_(a, b) HR_CONCAT_INNER_(a, b)
// HR_ASSIGN(auto x, make_x()): x is the value, or the enclosing function returns the Status.
#define HR_ASSIGN(declaration, expression) \
  HR_ASSIGN_IMPL_(HR_CONCAT_(hr_result_, __COUNTER__), declaration, expression)
#define HR_ASSIGN_IMPL_(tmp, declaration, expression) \
  auto tmp = (expression);                            \
  if (!tmp.ok()) return tmp.status();                 \
  declaration = std::move(tmp).value()

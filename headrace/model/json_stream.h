// JSON read event by event from a file, so that no document is ever held in memory.
//
// A handler overrides the events that it understands; every other event is an error that
// names the place. nlohmann's SAX parser is used: it does not recurse, so nesting cannot
// exhaust the stack. Used by the readers of this folder only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "headrace/model/file_reader.h"

namespace headrace {

class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a bool"); }
  bool number_integer(number_integer_t) override { return unexpected("an integer"); }
  // By default an integer too; values beyond 63 bits are refused.
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number");
  }
  bool string(string_t&) override { return unexpected("a string"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool start_object(size_t) override { return unexpected("an object"); }
  bool key(string_t&) override { return unexpected("a key"); }
  bool end_object() override { return unexpected("the end of an object"); }
  bool start_array(size_t) override { return unexpected("an array"); }
  bool end_array() override { return unexpected("the end of an array"); }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& why) override;

  // The first error; ok while there is none.
  const Status& status() const { return status_; }

 protected:
  // Records the error and stops the parser.
  bool stop(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool unexpected(const char* what) {
    return stop(error(Code::kBadFile, "%s where it does not belong%s%s", what,
                      where().empty() ? "" : ", at ", where().c_str()));
  }
  // What is being read, for messages.
  virtual std::string where() const { return ""; }

 private:
  Status status_;
};

// Gives the next `bytes` bytes of `in`, one JSON document, to `handler`. kBadFile when
// they are not valid JSON; the handler's error when it stopped; kIo. Errors begin with
// the file's name.
Status parse_json(FileReader* in, Bytes bytes, JsonHandler* handler);

}  // namespace headrace

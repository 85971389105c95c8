#include "headrace/report/json_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonWriter, WritesNestedValuesInOrder) {
  JsonWriter w;
  w.begin_object()
      .field("a", 1)
      .key("b")
      .begin_array()
      .value("x")
      .value(true)
      .null()
      .end_array();
  w.key("c").begin_object().end_object().key("d").numbers({1, -2, 3}).end_object();
  const std::string text = w.take();
  EXPECT_EQ(Json::parse(text).dump(),
            R"({"a":1,"b":["x",true,null],"c":{},"d":[1,-2,3]})");
  EXPECT_NE(text.find("\"d\": [1, -2, 3]\n"), std::string::npos) << text;
}

TEST(JsonWriter, EscapesWhatJsonAsksFor) {
  const std::string wild = "quote \" slash \\ tab \t line \n bell \x07 del \x7f é 😀";
  JsonWriter w;
  w.value(wild);
  EXPECT_EQ(Json::parse(w.take()).get<std::string>(), wild);
}

TEST(JsonWriter, NumbersRoundTripAndInfinitiesAreNull) {
  for (const double x : {0.1, 1e300, -2.5e-9, 3.0, 123456789012345678.0}) {
    JsonWriter w;
    w.value(x);
    EXPECT_EQ(Json::parse(w.take()).get<double>(), x);
  }
  JsonWriter w;
  w.begin_array().value(std::numeric_limits<double>::infinity());
  w.value(std::numeric_limits<double>::quiet_NaN()).value(int64_t{1} << 62).end_array();
  EXPECT_EQ(Json::parse(w.take()).dump(), "[null,null,4611686018427387904]");
}

TEST(JsonWriterDeathTest, MisuseAborts) {
  EXPECT_DEATH(JsonWriter().begin_array().key("a"), "a key belongs in an object");
  EXPECT_DEATH(JsonWriter().begin_object().value(1), "needs a key");
  EXPECT_DEATH(JsonWriter().begin_object().take(), "a whole JSON value");
}

}  // namespace
}  // namespace headrace

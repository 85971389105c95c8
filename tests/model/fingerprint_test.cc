#include "headrace/model/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/model/scratch.h"
#include "tests/model/tiny_models.h"

namespace headrace {
namespace {

using testing::Scratch;
using testing::TinyShape;

uint64_t print_of(const std::string& path) {
  const auto model = open_model(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  const auto print = model_fingerprint(*model);
  EXPECT_TRUE(print.ok()) << print.status().message();
  return print.ok() ? *print : 0;
}

uint64_t print_of(const TinyShape& shape, const Scratch& scratch, const char* folder) {
  std::filesystem::create_directories(scratch.path(folder));
  testing::write_tiny_folder(shape, scratch.path(folder));
  return print_of(scratch.path(folder));
}

TEST(Fingerprint, IsThatOfTheModelWhereverItLies) {
  const Scratch scratch;
  EXPECT_EQ(print_of({}, scratch, "a"), print_of({}, scratch, "b"));
}

TEST(Fingerprint, DiffersWithValuesShapesAndConfigs) {
  const Scratch scratch;
  const uint64_t plain = print_of({}, scratch, "plain");
  EXPECT_NE(plain, print_of({.seed = 2}, scratch, "values"));
  EXPECT_NE(plain, print_of({.layers = 3}, scratch, "layers"));
  auto config = nlohmann::json::parse(testing::tiny_config_json({}));
  config["rope_theta"] = 123456.0;
  testing::write_file(scratch.path("values/config.json"), config.dump());
  EXPECT_NE(print_of({.seed = 2}, scratch, "again"), print_of(scratch.path("values")));
}

TEST(Fingerprint, NamesAFileThatEndsEarly) {
  const Scratch scratch;
  testing::write_tiny_folder({}, scratch.folder());
  auto model = open_model(scratch.folder());
  ASSERT_TRUE(model.ok());
  std::filesystem::resize_file(scratch.path("model.safetensors"), 4096);
  const auto print = model_fingerprint(*model);
  ASSERT_FALSE(print.ok());
  EXPECT_EQ(print.status().code(), Code::kIo);
  EXPECT_NE(print.status().message().find("model.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace headrace

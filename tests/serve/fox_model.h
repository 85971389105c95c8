// A test with a model of its own, large enough to be streamed.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "headrace/session/model.h"
#include "tests/e2e/model.h"
#include "tests/model/scratch.h"

namespace headrace::test {

class FoxModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_streamed_model(scratch_.path("fox.gguf"));
    auto model = load_model(scratch_.path("fox.gguf"));
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(model).value();
  }

  testing::Scratch scratch_;
  std::unique_ptr<Model> model_;
};

}  // namespace headrace::test

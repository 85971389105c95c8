#include "headrace/serve/routes.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Routes, EveryPathHasItsMethod) {
  EXPECT_EQ(find_route("GET", "/").route, Route::kPage);
  EXPECT_EQ(find_route("GET", "/health").route, Route::kHealth);
  EXPECT_EQ(find_route("POST", "/v1/chat/completions").route, Route::kChat);
  EXPECT_EQ(find_route("POST", "/v1/completions").status, 200);
  const RouteMatch wrong = find_route("GET", "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.allow, "POST");
  EXPECT_NE(wrong.message.find("GET"), std::string::npos);
  EXPECT_EQ(find_route("DELETE", "/v1/models/x").allow, "GET");
}

TEST(Routes, AModelIsNamedByTheRestOfItsPath) {
  const RouteMatch m = find_route("GET", "/v1/models/org%2Fname%20x%zz%4");
  EXPECT_EQ(m.route, Route::kModel);
  EXPECT_EQ(m.argument, "org/name x%zz%4");
  EXPECT_EQ(find_route("GET", "/v1/models/a/b").argument, "a/b");
}

TEST(Routes, OneSlashAtTheEndIsForgivenAndNothingElse) {
  EXPECT_EQ(find_route("GET", "/v1/models/").route, Route::kModels);
  EXPECT_EQ(find_route("GET", "/health/").route, Route::kHealth);
  EXPECT_EQ(find_route("GET", "/health//").status, 404);
  EXPECT_EQ(find_route("GET", "").status, 404);
  EXPECT_EQ(find_route("GET", "/Health").status, 404);
  const RouteMatch odd = find_route("GET", "/\x01\xff");
  EXPECT_EQ(odd.status, 404);
  EXPECT_NE(odd.message.find("\\x01\\xff"), std::string::npos) << odd.message;
}

TEST(Routes, WhoLeavesOutTheVersionIsToldWhereItIs) {
  const RouteMatch m = find_route("POST", "/chat/completions");
  EXPECT_EQ(m.status, 404);
  EXPECT_EQ(m.message, "there is nothing at /chat/completions; it is at /v1/chat/completions");
  EXPECT_EQ(find_route("GET", "/embeddings").message, "there is nothing at /embeddings");
}

}  // namespace
}  // namespace headrace

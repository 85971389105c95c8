#include "headrace/serve/page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

namespace headrace {
namespace {

std::string header(const Page& page, const std::string& name) {
  for (const auto& [n, value] : page.headers) {
    if (n == name) return value;
  }
  return "";
}

std::string source(const std::string& name) {
  std::ifstream in(HEADRACE_SOURCE_DIR "/headrace/serve/" + name);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(ServerPage, IsTheSourceWithANonceOfItsOwnForEachLoad) {
  std::string whole = source("page.html");
  const std::string mark = "@MARKDOWN@";
  ASSERT_NE(whole.find(mark), std::string::npos);
  whole.replace(whole.find(mark), mark.size(), source("page_markdown.js"));
  const Page one = make_page(), two = make_page();
  EXPECT_NE(one.html, two.html);
  std::smatch nonce;
  const std::string policy = header(one, "Content-Security-Policy");
  ASSERT_TRUE(std::regex_search(policy, nonce, std::regex("'nonce-([0-9a-f]{32})'"))) << policy;
  EXPECT_EQ(std::regex_replace(whole, std::regex("@NONCE@"), nonce[1].str()), one.html);
}

TEST(ServerPage, AsksNobodyElse) {
  const Page page = make_page();
  EXPECT_EQ(page.html.find("http://"), std::string::npos);
  EXPECT_EQ(page.html.find("https://"), std::string::npos);
  EXPECT_EQ(page.html.find("src="), std::string::npos);
  EXPECT_EQ(page.html.find("@import"), std::string::npos);
  const std::string policy = header(page, "Content-Security-Policy");
  EXPECT_EQ(policy.rfind("default-src 'none'; ", 0), 0u);
  EXPECT_NE(policy.find("connect-src 'self';"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
}

TEST(ServerPage, NoTextCanBecomeMarkup) {
  const std::string html = make_page().html;
  for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                          "new Function"}) {
    EXPECT_EQ(html.find(way), std::string::npos) << way;
  }
  EXPECT_FALSE(std::regex_search(html, std::regex("<[^>]* on[a-z]+ *=")))
      << "handlers are added by the script";
}

TEST(ServerPage, NoLinkTakesTheConversationAway) {
  const std::string html = make_page().html;
  const std::regex link("<a [^>]*href=\"/[^>]*>");
  int links = 0;
  const std::sregex_iterator none;
  for (std::sregex_iterator it(html.begin(), html.end(), link); it != none; ++it, ++links) {
    EXPECT_NE(it->str().find("target=\"_blank\""), std::string::npos) << it->str();
  }
  EXPECT_EQ(links, 2);
}

TEST(ServerPage, EveryFieldHasALabel) {
  const std::string html = make_page().html;
  const std::regex field("<(input|textarea|select)[^>]*>");
  int fields = 0;
  const std::sregex_iterator none;
  for (std::sregex_iterator it(html.begin(), html.end(), field); it != none; ++it) {
    const std::string text = it->str();
    std::smatch id;
    ASSERT_TRUE(std::regex_search(text, id, std::regex("id=\"([^\"]+)\""))) << text;
    const std::string before = html.substr(0, static_cast<size_t>(it->position()));
    const bool inside = before.rfind("<label") != std::string::npos &&
                        (before.rfind("</label>") == std::string::npos ||
                         before.rfind("<label") > before.rfind("</label>"));
    EXPECT_TRUE(inside || html.find("for=\"" + id[1].str() + "\"") != std::string::npos) << text;
    ++fields;
  }
  EXPECT_GE(fields, 5);
}

}  // namespace
}  // namespace headrace

#include "headrace/serve/front.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Front> front(const Front::Options& options, std::function<void()> tick = [] {}) {
  auto started = Front::start(options, std::move(tick));
  EXPECT_TRUE(started.ok()) << started.status().message();
  return std::move(started).value();
}

TEST(Front, RunsTasksInTheOrderOfTheirArrival) {
  auto f = front({});
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(f->post(1, [&order, i] { order.push_back(i); }));
  ASSERT_TRUE(f->post(1, [&] { done.set_value(); }));
  done.get_future().wait();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Front, RefusesMoreTasksThanItMayHold) {
  auto f = front({.most_tasks = 3});
  std::promise<void> running, go;
  ASSERT_TRUE(f->post(0, [&] {
    running.set_value();
    go.get_future().wait();
  }));
  running.get_future().wait();
  EXPECT_TRUE(f->post(0, [] {}));
  EXPECT_TRUE(f->post(0, [] {}));
  EXPECT_FALSE(f->post(0, [] {})) << "the one that runs counts";
  EXPECT_EQ(f->tasks(), 3);
  go.set_value();
  while (f->tasks() > 0) std::this_thread::yield();
  EXPECT_TRUE(f->post(0, [] {}));
}

TEST(Front, RefusesMoreBytesThanItMayHoldAndGivesThemBack) {
  auto f = front({.most_bytes = 100});
  std::promise<void> go;
  auto wait = go.get_future();
  ASSERT_TRUE(f->post(60, [&] { wait.wait(); }));
  EXPECT_FALSE(f->post(41, [] {}));
  EXPECT_TRUE(f->post(40, [] {}));
  EXPECT_FALSE(f->post(1, [] {}));
  EXPECT_TRUE(f->post(0, [] {}));
  go.set_value();
  while (f->tasks() > 0) std::this_thread::yield();
  EXPECT_TRUE(f->post(100, [] {}));
  EXPECT_FALSE(f->post(101, [] {})) << "never fits";
}

TEST(Front, TicksWhileItIsIdleAndBetweenTasks) {
  std::atomic<int> ticks{0};
  auto f = front({.period = milliseconds(1)}, [&] { ++ticks; });
  while (ticks < 3) std::this_thread::yield();
  const int idle = ticks;
  // There is always a task that waits, and it ticks all the same.
  std::function<void()> again = [&] {
    if (ticks < idle + 3) {
      std::this_thread::sleep_for(milliseconds(1));
      f->post(0, again);
    }
  };
  f->post(0, again);
  while (ticks < idle + 3) std::this_thread::yield();
}

TEST(Front, DropsWhatWaitsWhenItEnds) {
  auto owned = std::make_shared<int>(1);
  std::promise<void> running, go;
  bool ran = false;
  auto f = front({});
  ASSERT_TRUE(f->post(0, [&] {
    running.set_value();
    go.get_future().wait();
  }));
  running.get_future().wait();
  ASSERT_TRUE(f->post(0, [owned, &ran] { ran = true; }));
  std::thread ender([&] { f.reset(); });
  std::this_thread::sleep_for(milliseconds(20));
  go.set_value();
  ender.join();
  EXPECT_FALSE(ran);
  EXPECT_EQ(owned.use_count(), 1);
}

}  // namespace
}  // namespace headrace

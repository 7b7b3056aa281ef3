// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_host/pool.hpp>
#include <thread>

namespace comp::host::test {
namespace {

TEST_CASE("a size class holds what is asked for, with an eighth to spare at most") {
  for (std::size_t bytes = 1; bytes < 100000; bytes += 7) {
    const std::size_t size = pool::size_class(bytes);
    REQUIRE(size >= bytes);
    REQUIRE(size % pool::alignment == 0);
    REQUIRE(size <= bytes + std::max<std::size_t>(bytes / 8, 63));
    REQUIRE(pool::size_class(size) == size);
  }
}

TEST_CASE("a freed block is handed out again") {
  pool p;
  void* first = p.take(1000);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % pool::alignment == 0);
  p.give(first, 1000);
  CHECK(p.held() == 1024);
  CHECK(p.take(1010) == first);
  CHECK(p.live() == 1010);
  CHECK(p.peak() == 1010);
  void* second = p.take(1000);
  p.give(first, 1010);
  p.give(second, 1000);
  p.give(p.take(100), 100);  // of another size: the two wait on
  CHECK(p.held() == 2 * 1024 + 128);
  p.trim();
  CHECK(p.held() == 0);
  CHECK(p.live() == 0);
}

TEST_CASE("a request that the system refuses is out of memory, not a crash") {
  pool p;
  CHECK_THROWS_AS(p.take(std::size_t{1} << 62), out_of_memory);
  CHECK_THROWS_AS(p.take(~std::size_t{0}), out_of_memory);
  CHECK(p.live() == 0);
}

TEST_CASE("before the system is out of memory, it gets back what waits to be reused") {
  pool p;
  p.give(p.take(1000), 1000);
  CHECK_THROWS_AS(p.take(std::size_t{1} << 62), out_of_memory);
  CHECK(p.held() == 0);
}

TEST_CASE("as much as the limit is live at once, and no byte more") {
  pool p{1000};
  CHECK_THROWS_AS(p.take(1001), out_of_memory);
  void* first = p.take(600);
  CHECK_THROWS_AS(p.take(401), out_of_memory);
  void* second = p.take(400);
  CHECK_THROWS_AS(p.take(1), out_of_memory);
  CHECK(p.live() == 1000);
  p.give(second, 400);
  CHECK(p.peak() == 1000);
  p.reset_peak();
  CHECK(p.peak() == 600);
  p.give(first, 600);
  p.give(p.take(100), 100);
  CHECK(p.peak() == 600);
  p.reset_peak();
  CHECK(p.peak() == 0);
}

TEST_CASE("blocks may be given back by other threads") {
  const auto shared = std::make_shared<pool>();
  const auto work = [&] {
    for (int i = 0; i < 1000; ++i) block{shared, static_cast<std::size_t>(64 + i)};
  };
  std::thread a{work}, b{work};
  a.join();
  b.join();
  CHECK(shared->live() == 0);
}

}  // namespace
}  // namespace comp::host::test

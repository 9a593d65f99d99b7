// One persistent team of threads with cheap fork, join and barrier.
//
// The caller is member 0. Waiters spin briefly (a decode step has some 250 barriers and a futex
// costs more than the work between two of them), then sleep, so an idle engine burns no core.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rt {

// Memory that will be read next: a member that waits brings it into its second-level cache.
struct Ahead {
  const uint8_t* at[2] = {};
  size_t bytes[2] = {};
};

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Runs body(member) on every member and returns when all are done. One run at a time.
  void run(const std::function<void(int)>& body);

  // Inside run(): waits for all members; the claim counter is zero again when it returns.
  void barrier(Ahead ahead = {});

  // Inside run(): the next unclaimed unit of work since the last barrier.
  int claim() { return next_unit_.fetch_add(1, std::memory_order_relaxed); }

 private:
  // A counter that threads wait on; waking costs a system call only when someone sleeps.
  struct Gate {
    std::atomic<uint32_t> word{0};
    std::atomic<uint32_t> sleepers{0};
    void wait_while(uint32_t seen, Ahead ahead = {});
    void bump();
  };

  void work(int member);

  const int size_;
  std::vector<std::thread> threads_;
  std::mutex run_lock_;
  const std::function<void(int)>* body_ = nullptr;
  bool stopping_ = false;
  alignas(64) Gate generation_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) Gate barrier_phase_;
  alignas(64) std::atomic<int> next_unit_{0};
};

}  // namespace rt

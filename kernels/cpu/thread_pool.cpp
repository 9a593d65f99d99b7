#include "thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rt {
namespace {

// About 60 us of pauses on current x86: longer than any wait inside a step on a quiet machine,
// short enough that a descheduled partner does not cost a whole time slice of spinning.
constexpr int kSpins = 1500;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr size_t kLinesBetweenLooks = 4;

void fetch_lines(const uint8_t* p) {
#if defined(__x86_64__)
  for (size_t line = 0; line < kLinesBetweenLooks; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(p + line * 64), _MM_HINT_T1);
#else
  (void)p;
#endif
}

}  // namespace

void ThreadPool::Gate::wait_while(uint32_t seen, Ahead ahead) {
  for (int i = 0; i < 2; ++i)
    for (size_t done = 0; done < ahead.bytes[i]; done += kLinesBetweenLooks * 64) {
      if (word.load(std::memory_order_acquire) != seen) return;
      fetch_lines(ahead.at[i] + done);
    }
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    relax();
  }
  sleepers.fetch_add(1);
  while (word.load() == seen)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  sleepers.fetch_sub(1);
}

void ThreadPool::Gate::bump() {
  word.fetch_add(1);
  // Sequential consistency on both sides: either this sees the sleeper, or the sleeper sees word.
  if (sleepers.load() > 0)
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

ThreadPool::ThreadPool(int num_threads) : size_(num_threads) {
  for (int member = 1; member < size_; ++member)
    threads_.emplace_back([this, member] { work(member); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  generation_.bump();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(int)>& body) {
  std::lock_guard<std::mutex> lock(run_lock_);
  next_unit_.store(0, std::memory_order_relaxed);
  if (size_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  generation_.bump();
  body(0);
  barrier();
}

void ThreadPool::barrier(Ahead ahead) {
  if (size_ == 1) {
    next_unit_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t phase = barrier_phase_.word.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    next_unit_.store(0, std::memory_order_relaxed);
    barrier_phase_.bump();
  } else {
    barrier_phase_.wait_while(phase, ahead);
  }
}

void ThreadPool::work(int member) {
  uint32_t seen = 0;
  for (;;) {
    generation_.wait_while(seen);
    seen = generation_.word.load(std::memory_order_acquire);
    if (stopping_) return;
    (*body_)(member);
    barrier();
  }
}

}  // namespace rt

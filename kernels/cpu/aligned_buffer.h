// Page-backed memory in huge pages: weights are streamed, and with 4 KiB pages every page costs a
// table walk and stops the hardware prefetcher.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace rt {

// Zero-filled, aligned to 64 bytes (2 MiB when large), grows without keeping its contents.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) { reserve(bytes); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~AlignedBuffer() { release(); }

  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    release();
#if defined(__SANITIZE_ADDRESS__)
    // Of the size that was asked for, so that a step past its end is found.
    bytes_ = (bytes + 63) / 64 * 64;
    data_ = aligned_alloc(64, bytes_);
    memset(data_, 0, bytes_);
#else
    const bool huge = bytes >= kHuge / 8;
    const size_t unit = huge ? kHuge : 4096;
    bytes_ = (bytes + unit - 1) / unit * unit;
    mapped_bytes_ = huge ? bytes_ + kHuge : bytes_;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      mapped_ = nullptr;
      bytes_ = mapped_bytes_ = 0;
      throw std::bad_alloc();
    }
    const uintptr_t start = reinterpret_cast<uintptr_t>(mapped_);
    data_ = reinterpret_cast<void*>((start + unit - 1) / unit * unit);
    if (huge) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;

  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }
  void release() {
#if defined(__SANITIZE_ADDRESS__)
    free(data_);
#endif
    if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
    mapped_ = data_ = nullptr;
    bytes_ = mapped_bytes_ = 0;
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

// Hands out zeroed pieces of large blocks, so that small matrices share huge pages. Pieces live as
// long as the arena.
class Arena {
 public:
  void* take(size_t bytes) {
    bytes = (bytes + 4095) / 4096 * 4096;
    if (blocks_.empty() || used_ + bytes > block_bytes_) {
      block_bytes_ = bytes > kBlock ? bytes : kBlock;
      blocks_.emplace_back(block_bytes_);
      used_ = 0;
    }
    void* piece = blocks_.back().as<uint8_t>() + used_;
    used_ += bytes;
    return piece;
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kBlock = 0;  // a block for each piece
#else
  static constexpr size_t kBlock = size_t{32} << 20;
#endif
  std::vector<AlignedBuffer> blocks_;
  size_t block_bytes_ = 0, used_ = 0;
};

}  // namespace rt

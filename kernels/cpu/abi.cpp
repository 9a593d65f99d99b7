#include "abi.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "cpu_features.h"
#include "model.h"

namespace {

thread_local std::string last_error;

template <class Body>
int32_t guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

template <class Body>
double seconds_of(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

const char* rt_last_error() { return last_error.c_str(); }

int32_t rt_best_level() { return rt::best_level(); }

RtModel* rt_model_create(const RtConfig* config) {
  RtModel* model = nullptr;
  guarded([&] { model = new RtModel(*config); });
  return model;
}

void rt_model_free(RtModel* model) { delete model; }

int32_t rt_model_level(const RtModel* model) { return model->level; }

int64_t rt_model_weight_bytes(const RtModel* model) {
  size_t bytes = model->embedding.bytes() + model->lm_head.bytes();
  for (const rt::Layer& l : model->layers)
    for (const rt::PackedWeight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      bytes += w->bytes();
  return static_cast<int64_t>(bytes);
}

int32_t rt_set_tensor(RtModel* model, int32_t tensor, int32_t layer, const void* data,
                      int32_t dtype, int64_t rows, int64_t cols, int32_t weight_format) {
  return guarded([&] {
    rt::set_tensor(*model, tensor, layer, data, dtype, rows, cols, weight_format);
  });
}

int32_t rt_finalize(RtModel* model) {
  return guarded([&] { rt::finalize(*model); });
}

int32_t rt_step(RtModel* model, const RtStep* step) {
  return guarded([&] { rt::run_step(*model, *step); });
}

int32_t rt_sample(RtModel* model, float* logits, int64_t stride, RtSampleRow* rows,
                  int32_t num_rows) {
  return guarded([&] { rt::run_sampling(*model, logits, stride, rows, num_rows); });
}

int32_t rt_linear(RtModel* model, int32_t tensor, int32_t layer, const float* x, int64_t m,
                  float* out) {
  return guarded([&] {
    const rt::PackedWeight* weight = model->matrix(tensor, layer);
    if (weight == nullptr || weight->n == 0) throw std::invalid_argument("no such matrix");
    rt::run_single_linear(*model, *weight, x, m, out);
  });
}

int32_t rt_logits_stats(RtModel* model, const float* logits, int64_t rows, int64_t cols,
                        int64_t stride, float* log_sum_exp, int32_t* argmax) {
  return guarded([&] {
    if (cols <= 0) throw std::invalid_argument("rows of logits are empty");
    model->pool.run([&](int) {
      for (int i = model->pool.claim(); i < rows; i = model->pool.claim())
        model->kernels->logits_stats(logits + i * stride, cols,
                                     log_sum_exp == nullptr ? nullptr : log_sum_exp + i,
                                     argmax == nullptr ? nullptr : argmax + i);
    });
  });
}

int32_t rt_measure_limits(RtModel* model, double* read_bandwidth, double* peak_flops) {
  return guarded([&] {
    constexpr size_t kBytes = size_t{128} << 20;  // far beyond L2, as a model's weights are
    constexpr int kRounds = 20000;
    rt::AlignedBuffer memory(kBytes);
    std::fill_n(memory.as<uint8_t>(), kBytes, uint8_t{1});
    const size_t share = kBytes / static_cast<size_t>(model->pool.size()) / 4096 * 4096;
    std::vector<rt::ThreadScratch> scratch(static_cast<size_t>(model->pool.size()));
    std::vector<double> done(scratch.size());
    std::vector<int32_t> seen(scratch.size());
    *read_bandwidth = *peak_flops = 0.0;
    for (int round = 0; round < 12; ++round) {
      const double read = seconds_of([&] {
        model->pool.run([&](int m) {
          const size_t member = static_cast<size_t>(m);
          seen[member] = model->kernels->read_memory(memory.as<uint8_t>() + member * share, share);
        });
      });
      const double multiply = seconds_of([&] {
        model->pool.run([&](int m) {
          const size_t member = static_cast<size_t>(m);
          model->kernels->enter(scratch[member]);
          done[member] = model->kernels->multiply_registers(kRounds);
          model->kernels->leave(scratch[member]);
        });
      });
      double operations = 0.0;
      for (double d : done) operations += d;
      const double bytes = static_cast<double>(share) * static_cast<double>(done.size());
      *read_bandwidth = std::max(*read_bandwidth, bytes / read);
      *peak_flops = std::max(*peak_flops, operations / multiply);
    }
  });
}

#include "abi.h"

#include <cstring>
#include <exception>
#include <memory>
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
  size_t bytes = model->embedding.data.bytes() + model->lm_head.data.bytes();
  for (const rt::Layer& l : model->layers)
    for (const rt::PackedWeight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      bytes += w->data.bytes() + w->scales.bytes();
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

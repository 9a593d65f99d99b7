#include "model.h"
#include "packing.h"

namespace rt {

void run_linear(RtModel& model, const LinearArgs& args, const LinearPlan& plan, int member,
                ThreadScratch& scratch) {
  // The first unit is a member's own, so that its weights can be fetched before; then as they come.
  for (int u = member; u < plan.num_units; u = model.pool.size() + model.pool.claim())
    model.kernels->linear_unit(args, plan.unit(args, u), scratch);
}

void run_single_linear(RtModel& model, const PackedWeight& weight, const float* x, int64_t m,
                       float* out) {
  if (m == 0) return;
  Workspace::ActivationMemory& input = model.workspace.single_in;
  const int rows = static_cast<int>(m);
  input.reserve(rows, weight.k, activation_format(weight.kind), model.kernels->wide_rows);
  LinearArgs args;
  args.weight[0] = &weight;
  args.num_parts = 1;
  args.input = &input.view;
  args.m = rows;
  args.out = out;
  args.out_stride = weight.n;
  Workspace& w = model.workspace;
  w.reserve_scratch(model.pool.size(), weight.k);
  const LinearPlan plan = plan_linear(args, model.pool.size());
  model.pool.run([&](int member) {
    ThreadScratch& scratch = *w.scratch[member];
    model.kernels->enter(scratch);
    for (int i = model.pool.claim(); i < rows; i = model.pool.claim())
      model.kernels->write_row(input.view, i, x + static_cast<int64_t>(i) * weight.k);
    model.pool.barrier();
    run_linear(model, args, plan, member, scratch);
    model.kernels->leave(scratch);
  });
}

}  // namespace rt

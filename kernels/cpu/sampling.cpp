#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernel_table.h"

namespace rt {
namespace {

using Entry = SamplingScratch::Entry;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMinLogprob = -9999.0f;  // JSON cannot carry -inf
constexpr int32_t kInPrompt = 1 << 30;   // in `seen`, beside the count of output tokens
// How far below the largest scaled logit a nucleus may reach: what lies deeper is never looked at.
constexpr float kNucleusDepths[] = {1.5f, 3.0f, 4.5f, 6.0f, 8.0f, 10.0f, 13.0f, kInfinity};

// Splitmix64's finalizer (Steele, Lea, Flood, 2014).
uint64_t mix(uint64_t value) {
  uint64_t z = value + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double uniform(int64_t seed, int64_t position) {
  const uint64_t bits = mix(mix(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(position));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

bool comes_first(const Entry& a, const Entry& b) {
  return a.scaled > b.scaled || (a.scaled == b.scaled && a.index < b.index);
}

double mass(const Entry* begin, const Entry* end) {
  double sum = 0.0;
  for (; begin != end; ++begin) sum += begin->weight;
  return sum;
}

// The place at which the weights, summed in falling order of likelihood, first reach (or exceed)
// target. Afterwards the entries before that place are those that come before it. Linear: halves
// are parted, not sorted.
size_t place_of_mass(std::vector<Entry>& entries, size_t count, double target, bool exceed) {
  Entry* const first = entries.data();
  size_t low = 0, high = count;
  double below = 0.0;
  auto arrives = [&](double sum) { return exceed ? sum > target : sum >= target; };
  while (high - low > 32) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(first + low, first + middle, first + high, comes_first);
    const double left = mass(first + low, first + middle);
    if (arrives(below + left)) {
      high = middle;
    } else {
      below += left;
      low = middle;
    }
  }
  std::sort(first + low, first + high, comes_first);
  size_t last = low;
  for (size_t i = low; i < high; ++i) {
    below += first[i].weight;
    if (arrives(below)) return i;
    if (first[i].weight > 0.0) last = i;
  }
  return exceed ? last : high - 1;  // the sum fell short by rounding
}

// One row's candidates: all logits, or those of the legal ids.
struct Candidates {
  const float* values;
  const int32_t* ids;  // rising; null: the places themselves
  int32_t count;

  int32_t id(int32_t place) const { return ids == nullptr ? place : ids[place]; }
};

class RowSampler {
 public:
  RowSampler(const KernelTable& kernels, SamplingScratch& scratch, float* logits, int32_t vocab,
             RtSampleRow& row)
      : k_(kernels), s_(scratch), logits_(logits), vocab_(vocab), row_(row) {}

  void run();

 private:
  void set(int32_t id, float value) {
    s_.changes.push_back({id, logits_[id]});
    logits_[id] = value;
  }
  void apply_changes();
  void apply_penalties();
  void count_token(int32_t id, int32_t first_mark, int32_t step);
  void undo_changes();
  Candidates legal();
  int32_t choose();
  int32_t choose_greedily();
  int32_t lowest_legal(const Candidates& c);
  int32_t draw_by_id(const Candidates& c, float best, double u);
  int32_t draw_from_nucleus(const Candidates& c, float best, double u);
  void gather(const Candidates& c, float threshold);
  void enter_picked(const Candidates& c, float best);
  void enter_top(const Candidates& c, float best, int32_t k);
  double enter_nucleus(const Candidates& c, float best);
  float kth_largest_at_most(const float* values, int32_t count, int32_t k);
  double weigh(const float* values, int32_t count, float best, float temperature, float min_weight);
  void score();
  void score_top(bool is_ordinary);

  const KernelTable& k_;
  SamplingScratch& s_;
  float* logits_;
  const int32_t vocab_;
  RtSampleRow& row_;
  float block_[kWeightBlock];
};

void RowSampler::run() {
  if (row_.task != RT_SCORE) {
    apply_changes();
    row_.token_id = choose();
    undo_changes();
  }
  if (row_.wants_logprobs && row_.token_id >= 0) score();
}

void RowSampler::apply_changes() {
  s_.changes.clear();
  if (row_.repetition_penalty != 1.0f || row_.frequency_penalty != 0.0f ||
      row_.presence_penalty != 0.0f)
    apply_penalties();
  for (int i = 0; i < row_.num_biases; ++i)
    set(row_.bias_ids[i], logits_[row_.bias_ids[i]] + row_.biases[i]);
  for (int i = 0; i < row_.num_suppressed_ids; ++i) set(row_.suppressed_ids[i], -kInfinity);
}

void RowSampler::count_token(int32_t id, int32_t first_mark, int32_t step) {
  if (static_cast<uint32_t>(id) >= static_cast<uint32_t>(vocab_)) return;  // no logit to change
  int32_t& seen = s_.seen[static_cast<size_t>(id)];
  if (seen == 0) {
    s_.distinct.push_back(id);
    seen = first_mark;
  }
  seen += step;
}

void RowSampler::apply_penalties() {
  s_.seen.resize(static_cast<size_t>(vocab_));
  s_.distinct.clear();
  if (row_.repetition_penalty != 1.0f)
    for (int i = 0; i < row_.num_prompt_ids; ++i) count_token(row_.prompt_ids[i], kInPrompt, 0);
  for (int i = 0; i < row_.num_output_ids; ++i) count_token(row_.output_ids[i], 0, 1);
  for (const int32_t id : s_.distinct) {
    int32_t& seen = s_.seen[static_cast<size_t>(id)];
    const int32_t count = seen & (kInPrompt - 1);
    seen = 0;
    float value = logits_[id];
    if (row_.repetition_penalty != 1.0f)
      value = value > 0.0f ? value / row_.repetition_penalty : value * row_.repetition_penalty;
    if (count > 0)
      value -= row_.frequency_penalty * static_cast<float>(count) + row_.presence_penalty;
    set(id, value);
  }
}

void RowSampler::undo_changes() {
  for (size_t i = s_.changes.size(); i-- > 0;) logits_[s_.changes[i].id] = s_.changes[i].before;
}

Candidates RowSampler::legal() {
  if (row_.allowed_ids == nullptr) return {logits_, nullptr, vocab_};
  const size_t room = static_cast<size_t>(vocab_ + kGatherSlack);
  if (s_.ids.size() < room) {
    s_.ids.resize(room);
    s_.values.resize(room);
  }
  const int64_t count =
      k_.gather_legal(logits_, row_.allowed_ids, vocab_, s_.values.data(), s_.ids.data());
  return {s_.values.data(), s_.ids.data(), static_cast<int32_t>(count)};
}

// The likeliest legal token, without gathering; -1 for a NaN among them.
int32_t RowSampler::choose_greedily() {
  const uint32_t* legal = row_.allowed_ids;
  const float best =
      legal == nullptr ? k_.row_peak(logits_, vocab_) : k_.legal_peak(logits_, legal, vocab_);
  if (std::isnan(best)) return -1;
  if (best == -kInfinity) return lowest_legal(this->legal());
  return static_cast<int32_t>(k_.find_value(logits_, legal, vocab_, best));
}

int32_t RowSampler::choose() {
  if (row_.task == RT_GREEDY) return choose_greedily();
  const Candidates c = legal();
  if (c.count == 0) return 0;
  const float best = k_.row_peak(c.values, c.count);
  if (std::isnan(best)) return -1;
  if (best == -kInfinity) return lowest_legal(c);
  const double u = uniform(row_.seed, row_.position);
  if (row_.top_k == 0 && row_.top_p >= 1.0) return c.id(draw_by_id(c, best, u));
  return c.id(draw_from_nucleus(c, best, u));
}

// Every logit is -inf: any token would do, so the first that may be drawn.
int32_t RowSampler::lowest_legal(const Candidates& c) {
  const int32_t* suppressed = row_.suppressed_ids;
  const int32_t* end = suppressed + row_.num_suppressed_ids;
  for (int32_t i = 0; i < c.count; ++i)
    if (std::find(suppressed, end, c.id(i)) == end) return c.id(i);
  return 0;
}

// The sum of all weights; s_.sums holds that of each block.
double RowSampler::weigh(const float* values, int32_t count, float best, float temperature,
                         float min_weight) {
  s_.sums.clear();
  double total = 0.0;
  for (int32_t i = 0; i < count; i += kWeightBlock) {
    const int32_t n = std::min(kWeightBlock, count - i);
    s_.sums.push_back(k_.row_weights(values + i, n, best, temperature, min_weight, block_));
    total += s_.sums.back();
  }
  return total;
}

double target_of(double u, double total) {
  // u * total may round up to total, which no sum exceeds.
  return std::min(u * total, std::nextafter(total, 0.0));
}

// Over the whole vocabulary, in the order of ids.
int32_t RowSampler::draw_by_id(const Candidates& c, float best, double u) {
  const float min_weight = static_cast<float>(row_.min_p);
  const double total = weigh(c.values, c.count, best, row_.temperature, min_weight);
  const double target = target_of(u, total);
  double below = 0.0;
  size_t block = 0;
  while (block + 1 < s_.sums.size() && below + s_.sums[block] <= target) below += s_.sums[block++];
  while (block > 0 && s_.sums[block] <= 0.0) --block;
  const int32_t begin = static_cast<int32_t>(block) * kWeightBlock;
  const int32_t n = std::min(kWeightBlock, c.count - begin);
  k_.row_weights(c.values + begin, n, best, row_.temperature, min_weight, block_);
  int32_t last = 0;
  for (int32_t i = 0; i < n; ++i) {
    below += block_[i];
    if (below > target) return begin + i;
    if (block_[i] > 0.0f) last = i;
  }
  return begin + last;  // the sum fell short by rounding
}

// Among those that top_k, top_p and min_p leave, in falling order of likelihood.
int32_t RowSampler::draw_from_nucleus(const Candidates& c, float best, double u) {
  std::vector<Entry>& entries = s_.entries;
  double wanted;
  if (row_.top_k > 0 && row_.top_k < c.count) {
    enter_top(c, best, row_.top_k);
    wanted = row_.top_p * mass(entries.data(), entries.data() + entries.size());
  } else {
    wanted = enter_nucleus(c, best);
  }
  size_t count = entries.size();
  if (row_.top_p < 1.0) count = place_of_mass(entries, count, wanted, false) + 1;
  if (row_.min_p > 0.0) {
    // The likeliest weighs 1.
    auto is_likely = [this](const Entry& e) { return e.weight >= row_.min_p; };
    count = static_cast<size_t>(
        std::partition(entries.begin(), entries.begin() + static_cast<int64_t>(count), is_likely) -
        entries.begin());
  }
  const double total = mass(entries.data(), entries.data() + count);
  return entries[place_of_mass(entries, count, target_of(u, total), true)].index;
}

// Places of all values of at least threshold, in order.
void RowSampler::gather(const Candidates& c, float threshold) {
  s_.picked.resize(static_cast<size_t>(c.count));
  int32_t* out = s_.picked.data();
  size_t count = 0;
  for (int32_t i = 0; i < c.count; ++i) {
    out[count] = i;
    count += c.values[i] >= threshold;
  }
  s_.picked.resize(count);
}

void RowSampler::enter_picked(const Candidates& c, float best) {
  s_.entries.clear();
  float values[kWeightBlock];
  for (size_t begin = 0; begin < s_.picked.size(); begin += kWeightBlock) {
    const size_t n = std::min(s_.picked.size() - begin, static_cast<size_t>(kWeightBlock));
    for (size_t i = 0; i < n; ++i) values[i] = c.values[s_.picked[begin + i]];
    k_.row_weights(values, static_cast<int>(n), best, row_.temperature, 0.0f, block_);
    for (size_t i = 0; i < n; ++i) {
      const float scaled = best < kInfinity ? (values[i] - best) / row_.temperature : values[i];
      s_.entries.push_back({block_[i], scaled, s_.picked[begin + i]});
    }
  }
}

// Exactly the k likeliest, the lower ids among equals.
void RowSampler::enter_top(const Candidates& c, float best, int32_t k) {
  float threshold = kth_largest_at_most(c.values, c.count, k);
  // Values that differ here may be equal once scaled, and then the lower id wins.
  if (best < kInfinity && threshold > -kInfinity)
    threshold -= 4.0f * std::numeric_limits<float>::epsilon() * (best - threshold);
  if (best == kInfinity && threshold < kInfinity) threshold = -kInfinity;
  gather(c, threshold);
  enter_picked(c, best);
  std::vector<Entry>& entries = s_.entries;
  std::nth_element(entries.begin(), entries.begin() + k - 1, entries.end(), comes_first);
  entries.resize(static_cast<size_t>(k));
}

// Enough of the likeliest to hold a share of top_p; returns the weight that makes that share.
double RowSampler::enter_nucleus(const Candidates& c, float best) {
  const double wanted = row_.top_p * weigh(c.values, c.count, best, row_.temperature, 0.0f);
  size_t depth = 0, deepest = std::size(kNucleusDepths) - 1;
  if (row_.top_p >= 1.0) depth = deepest;
  while (depth < deepest) {
    const size_t middle = (depth + deepest) / 2;
    const float least = std::exp(-kNucleusDepths[middle]);
    if (weigh(c.values, c.count, best, row_.temperature, least) >= wanted)
      deepest = middle;
    else
      depth = middle + 1;
  }
  // A little deeper, so that rounding leaves out nothing that was counted.
  const float reach = 1.001f * kNucleusDepths[depth] * row_.temperature;
  gather(c, best < kInfinity ? best - reach : kInfinity);
  enter_picked(c, best);
  return wanted;
}

// A value that at least k values reach, close below the k-th largest.
float RowSampler::kth_largest_at_most(const float* values, int32_t count, int32_t k) {
  const size_t blocks = static_cast<size_t>((count + kScanBlock - 1) / kScanBlock);
  if (static_cast<size_t>(k) > blocks) return -kInfinity;
  s_.maxima.resize(blocks);
  k_.row_block_maxima(values, count, s_.maxima.data());
  const auto kth = s_.maxima.begin() + (k - 1);
  std::nth_element(s_.maxima.begin(), kth, s_.maxima.end(), std::greater<float>());
  return *kth;
}

// Log-probabilities of the raw distribution. Logits of +inf share the whole mass; a row of NaN or
// without mass gives every token the least value.
void RowSampler::score() {
  const float best = k_.row_peak(logits_, vocab_);
  const bool is_ordinary = std::isfinite(best);
  double log_total;
  if (is_ordinary) {
    log_total = std::log(weigh(logits_, vocab_, best, 1.0f, 0.0f));
  } else {
    log_total = std::log(static_cast<double>(std::count(logits_, logits_ + vocab_, kInfinity)));
  }
  auto logprob = [&](int32_t id) {
    double value = -std::numeric_limits<double>::infinity();
    if (is_ordinary)
      value = static_cast<double>(logits_[id]) - static_cast<double>(best) - log_total;
    else if (logits_[id] == kInfinity)
      value = -log_total;
    return std::max(static_cast<float>(value), kMinLogprob);
  };
  row_.logprob = logprob(row_.token_id);
  for (int i = 0; i < row_.num_score_ids; ++i) row_.score_logprobs[i] = logprob(row_.score_ids[i]);
  if (row_.num_top == 0) return;
  score_top(is_ordinary);
  for (int i = 0; i < row_.num_top; ++i) row_.top_logprobs[i] = logprob(row_.top_ids[i]);
}

void RowSampler::score_top(bool is_ordinary) {
  const Candidates all = {logits_, nullptr, vocab_};
  const int32_t k = row_.num_top;
  if (is_ordinary) {
    gather(all, kth_largest_at_most(logits_, vocab_, k));
  } else {  // NaN, which is never gathered, counts as little as -inf
    s_.picked.resize(static_cast<size_t>(vocab_));
    std::iota(s_.picked.begin(), s_.picked.end(), 0);
  }
  auto key = [&](int32_t id) {
    return is_ordinary ? logits_[id] : logits_[id] == kInfinity ? 0.0f : -kInfinity;
  };
  std::partial_sort(s_.picked.begin(), s_.picked.begin() + k, s_.picked.end(),
                    [&](int32_t a, int32_t b) {
                      return key(a) > key(b) || (key(a) == key(b) && a < b);
                    });
  std::copy_n(s_.picked.begin(), k, row_.top_ids);
}

}  // namespace

void check_sample_row(const RtSampleRow& row, int32_t vocab_size) {
  auto check = [vocab_size](const int32_t* ids, int32_t count, const char* what) {
    for (int32_t i = 0; i < count; ++i)
      if (ids[i] < 0 || ids[i] >= vocab_size)
        throw std::invalid_argument(std::string(what) + " " + std::to_string(ids[i]) +
                                    " is outside the vocabulary");
  };
  check(row.bias_ids, row.num_biases, "biased id");
  check(row.suppressed_ids, row.num_suppressed_ids, "suppressed id");
  check(row.score_ids, row.num_score_ids, "scored id");
  if (row.task == RT_SCORE) check(&row.token_id, 1, "scored id");
  if (row.task == RT_DRAW && !(row.temperature > 0.0f))
    throw std::invalid_argument("a draw needs a temperature above 0");
  if (row.num_top < 0 || row.num_top > vocab_size || row.top_k < 0)
    throw std::invalid_argument("num_top and top_k must be from 0 to the vocabulary's size");
}

void sample_row(const KernelTable& kernels, SamplingScratch& scratch, float* logits,
                int32_t vocab_size, RtSampleRow& row) {
  RowSampler(kernels, scratch, logits, vocab_size, row).run();
}

}  // namespace rt

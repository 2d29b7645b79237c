// The context coder's encoder; docs/patch-format.md has the rules, codec/context.py the reference.
#include <algorithm>
#include <memory>
#include <new>
#include <numeric>

#include "coder.h"
#include "kernel.h"

namespace skerry {
namespace {

struct Interval {
  uint16_t start, frequency;
};

uint32_t floor_log2(uint64_t value) { return 63 - static_cast<uint32_t>(__builtin_clzll(value)); }

// One chunk on its way: symbols in order, raw bits in order.
class Encoder {
 public:
  // A change has at most 20 raw bits of a gap, 63 of a magnitude and a direction.
  Encoder(const skerry_profile &profile, uint64_t changes) : profile_(profile), raw_(84 * changes) {
    symbols_.reserve(2 * changes);
  }

  // Code where the changes of one class lie among its `population` words.
  void gaps(uint32_t rate, const uint32_t *ranks, uint64_t count, uint64_t population) {
    const Rate r(rate);
    const auto &table = gap_tables().cumulative[r.table];
    const uint64_t span = uint64_t(kSymbols) << r.shift;
    uint64_t cursor = 0;
    for (uint64_t i = 0; i < count; i++) {
      uint64_t gap = ranks[i] - cursor;
      for (; gap >= span; gap -= span) symbol(table[kSymbols], kTotal);
      uint64_t u = gap >> r.shift;
      symbol(table[u], table[u + 1]);
      raw_.put(gap & ((uint64_t(1) << r.shift) - 1), r.shift);
      cursor = ranks[i] + uint64_t(1);
    }
    while (cursor < population) {
      uint64_t left = population - cursor;
      uint64_t limit = (left + (uint64_t(1) << r.shift) - 1) >> r.shift;
      symbol(table[limit < kSymbols ? limit : kSymbols], kTotal);
      cursor += left < span ? left : span;
    }
  }

  // Code the symbol of a magnitude; its raw bits follow once all gaps are done.
  bool magnitude(uint32_t table, uint64_t magnitude) {
    if (!magnitude) return false;
    uint32_t precision = profile_.precisions[table];
    uint32_t exponent = floor_log2(magnitude);
    uint32_t width = exponent > precision ? exponent - precision : 0;
    uint64_t y = (magnitude >> width) - 1 + (uint64_t(width) << precision);
    if (y >= profile_.sizes[table]) return false;
    uint64_t at = profile_.offsets[table] + y;
    if (!profile_.frequencies[at]) return false;
    symbols_.push_back({profile_.starts[at], profile_.frequencies[at]});
    raw_.put(magnitude & ((uint64_t(1) << width) - 1), width);
    return true;
  }

  // Code the directions and put the chunk together.
  int64_t finish(const uint8_t *downs, uint64_t count, uint8_t *out, uint64_t capacity) {
    uint64_t kept = count < kSeedBits ? count : kSeedBits, stored = count - kept;
    for (uint64_t i = 0; i < stored; i++) raw_.put(downs[i], 1);
    uint32_t seed = 0;
    for (uint64_t i = 0; i < kept; i++) seed |= uint32_t(downs[stored + i] != 0) << i;
    std::unique_ptr<uint16_t[]> words(new uint16_t[symbols_.size() + 1]);
    uint16_t *word = words.get();
    uint32_t state = kLow + seed;
    for (auto symbol = symbols_.rbegin(); symbol != symbols_.rend(); ++symbol) {
      const uint32_t f = symbol->frequency;
      // Without a branch, since no one can foretell it.
      const bool full = state >= uint64_t(f) << (32 - kTotalBits);
      *word = static_cast<uint16_t>(state);
      word += full;
      state = full ? state >> 16 : state;
      const uint32_t quotient = state / f;
      state = (quotient << kTotalBits) + (state - quotient * f) + symbol->start;
    }
    raw_.finish();
    const auto raw_size = static_cast<uint64_t>(raw_.end() - raw_.begin());
    const uint64_t size = 4 + 2 * static_cast<uint64_t>(word - words.get()) + raw_size;
    if (size > capacity) return static_cast<int64_t>(size);
    for (int i = 0; i < 4; i++) *out++ = static_cast<uint8_t>(state >> (8 * i));
    while (word != words.get()) {
      word--;
      *out++ = static_cast<uint8_t>(*word);
      *out++ = static_cast<uint8_t>(*word >> 8);
    }
    std::reverse_copy(raw_.begin(), raw_.end(), out);
    return static_cast<int64_t>(size);
  }

 private:
  void symbol(uint32_t start, uint32_t end) {
    symbols_.push_back({static_cast<uint16_t>(start), static_cast<uint16_t>(end - start)});
  }

  const skerry_profile &profile_;
  std::vector<Interval> symbols_;
  BitWriter raw_;
};

int64_t encode(const skerry_profile &profile, const int64_t *population, const int64_t *changed,
               const skerry_changes &changes, uint8_t *out, uint64_t capacity) {
  Encoder encoder(profile, static_cast<uint64_t>(std::accumulate(
                               changed, changed + SKERRY_CLASSES, int64_t(0))));
  uint64_t first = 0;
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    auto count = static_cast<uint64_t>(changed[c]);
    if (profile.rates[c] <= kMaxRate && population[c]) {
      encoder.gaps(profile.rates[c], changes.ranks + first, count, static_cast<uint64_t>(population[c]));
    } else if (count) {
      return SKERRY_ARGUMENT;
    }
    first += count;
  }
  for (uint64_t i = 0; i < first; i++) {
    uint32_t table = profile.table_of[changes.classes[i]];
    if (table && (table > profile.tables || !encoder.magnitude(table - 1, changes.magnitudes[i]))) {
      return SKERRY_ARGUMENT;
    }
  }
  return encoder.finish(changes.downs, first, out, capacity);
}

}  // namespace
}  // namespace skerry

extern "C" int64_t skerry_encode(const skerry_profile *profile, const int64_t *population,
                                 const int64_t *changed, const skerry_changes *changes, uint8_t *out,
                                 uint64_t capacity) {
  try {
    return skerry::encode(*profile, population, changed, *changes, out, capacity);
  } catch (const std::bad_alloc &) {
    return SKERRY_MEMORY;
  }
}

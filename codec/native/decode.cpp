// The context coder's decoder; docs/patch-format.md has the rules, codec/context.py the reference.
//
// The bytes are hostile until the last check passes: every change found is paid for with a raw bit
// that the chunk must have room for, so memory and work are bounded by the chunk's own size and its
// number of words.
#include <algorithm>
#include <new>

#include "coder.h"
#include "kernel.h"
#include "path.h"
#include "words.h"

namespace skerry {
namespace {

// Thrown and caught in this file only.
struct Refused {
  skerry_error error;
};

bool is_usable(const skerry_profile &profile) {
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    if (profile.table_of[c] > profile.tables) return false;
    if (profile.rates[c] > kMaxRate && profile.rates[c] != kNever) return false;
  }
  return true;
}

// A chunk's bytes: words of the entropy coder from the front, raw bits from the back.
class Reader {
 public:
  // `n` is the number of words; a payload has at most 16 bytes for each, and 64.
  Reader(const uint8_t *data, uint64_t size, uint64_t n) : size_(size) {
    if (size < 4) throw Refused{SKERRY_SHORT};
    if (size > 16 * n + 64) throw Refused{SKERRY_LONG};
    padded_.resize(size + 2 * kPadding);
    std::memcpy(padded_.data() + kPadding, data, size);
    front_ = padded_.data() + kPadding;
    end_ = front_ + size;
    std::memcpy(&state_, front_, 4);
    front_ += 4;
    if (state_ < kLow) throw Refused{SKERRY_START};
    room_ = 8 * (size - 4) + kSeedBits;
  }

  uint32_t slot() const { return state_ & (kTotal - 1); }

  // Take the symbol whose interval starts at `start`.
  void advance(uint32_t start, uint32_t frequency) {
    state_ = frequency * (state_ >> kTotalBits) + slot() - start;
    // Without a branch, since no one can foretell it.  Past the end the padding is read, again and
    // again: what was taken is counted, and refused once all is read.
    uint16_t word;
    std::memcpy(&word, front_, 2);
    const bool low = state_ < kLow;
    state_ = low ? state_ << 16 | word : state_;
    words_ += low;
    front_ += low && front_ < end_ ? 2 : 0;
  }

  // Take a change: `width` raw bits (at most 32), and keep room for its direction.
  uint32_t change(uint32_t width) {
    changes_++;
    if (taken_ + width + changes_ > room_) throw Refused{SKERRY_CHANGES};
    // The room counts sixteen bits that the seed may hold.  Where it does not, bytes of the state are
    // read for them, and refused once all is read.
    return static_cast<uint32_t>(raw(width));
  }

  // Check that symbols and raw bits meet, that nothing is left over and that the state is a seed.
  void meet(uint64_t extra) {
    uint64_t kept = changes_ < kSeedBits ? changes_ : kSeedBits;
    uint64_t stored = taken_ + extra + changes_ - kept;
    if (4 + 2 * words_ + (stored + 7) / 8 != size_) throw Refused{SKERRY_MEETING};
    if (stored % 8 && *front_ >> (stored % 8)) throw Refused{SKERRY_PADDING};
    if (state_ >> kSeedBits != 1 || (state_ - kLow) >> kept) throw Refused{SKERRY_SEED};
  }

  // Take up to 63 raw bits.
  uint64_t raw(uint32_t width) {
    if (width > 32) {
      uint64_t low = raw(32);
      return low | raw(width - 32) << 32;
    }
    // Bit i of the string is bit i % 8 of byte i / 8, counted from the last byte back.
    const uint8_t *last = end_ - 1 - taken_ / 8;
    uint64_t window;
    std::memcpy(&window, last - 7, 8);
    window = __builtin_bswap64(window) >> (taken_ % 8);
    taken_ += width;
    return window & ((uint64_t(1) << width) - 1);
  }

  // Write the directions of all changes, once the raw bits before them are taken.
  void downs(uint8_t *downs) {
    const uint64_t stored = changes_ - (changes_ < kSeedBits ? changes_ : kSeedBits);
    for (uint64_t i = 0; i < stored; i += 32) {
      const uint64_t count = stored - i < 32 ? stored - i : 32;
      const uint64_t bits = raw(static_cast<uint32_t>(count));
      for (uint64_t bit = 0; bit < count; bit++) downs[i + bit] = bits >> bit & 1;
    }
    for (uint64_t i = stored; i < changes_; i++) downs[i] = state_ >> (i - stored) & 1;
  }

 private:
  static constexpr uint64_t kPadding = 16;

  uint64_t size_, room_ = 0, taken_ = 0, changes_ = 0, words_ = 0;
  std::vector<uint8_t> padded_;
  const uint8_t *front_, *end_;
  uint32_t state_;
};

// The changes of a chunk in class order, as far as they are decoded.
struct Decoded {
  std::vector<uint32_t> ranks;
  std::vector<uint64_t> magnitudes;
  std::vector<uint8_t> downs;
  uint64_t begin[SKERRY_CLASSES + 1];  // of each class
};

void gaps(Reader &reader, uint32_t rate, uint64_t population, std::vector<uint32_t> &ranks) {
  const Rate r(rate);
  const auto &cumulative = gap_tables().cumulative[r.table];
  const auto &symbols = gap_tables().symbol[r.table];
  const uint64_t step = uint64_t(1) << r.shift;
  uint64_t cursor = 0;
  while (cursor < population) {
    uint64_t left = population - cursor;
    uint32_t u = symbols[reader.slot()];
    if (u < kSymbols && (uint64_t(u) << r.shift) < left) {
      reader.advance(cumulative[u], cumulative[u + 1u] - uint32_t(cumulative[u]));
      cursor += (uint64_t(u) << r.shift) + reader.change(r.shift);
      if (cursor >= population) throw Refused{SKERRY_PAST_END};
      ranks.push_back(static_cast<uint32_t>(cursor));
      cursor++;
    } else {
      // An escape is all slots from the first symbol that lands past the class's end.
      uint64_t limit = std::min<uint64_t>(kSymbols, (left + step - 1) >> r.shift);
      reader.advance(cumulative[limit], kTotal - cumulative[limit]);
      cursor += std::min<uint64_t>(uint64_t(kSymbols) << r.shift, left);
    }
  }
}

// The symbol of every slot of a magnitude table.
class Slots {
 public:
  Slots(const skerry_profile &profile, uint32_t table) {
    const uint16_t *frequencies = profile.frequencies + profile.offsets[table];
    uint32_t slot = 0;
    for (uint32_t y = 0; y < profile.sizes[table]; y++) {
      for (uint32_t i = 0; i < frequencies[y] && slot < kTotal; i++) {
        symbols_[slot++] = static_cast<uint16_t>(y);
      }
    }
  }

  uint32_t operator[](uint32_t slot) const { return symbols_[slot]; }

 private:
  uint16_t symbols_[kTotal] = {};
};

Decoded read(const skerry_profile &profile, const uint8_t *data, uint64_t size, uint64_t n,
             const uint32_t *population) {
  Reader reader(data, size, n);
  Decoded found;
  found.ranks.reserve(std::min(2 * size, n));
  uint64_t *begin = found.begin;
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    begin[c] = found.ranks.size();
    if (profile.rates[c] <= kMaxRate) gaps(reader, profile.rates[c], population[c], found.ranks);
  }
  const uint64_t count = begin[SKERRY_CLASSES] = found.ranks.size();
  found.magnitudes.assign(count, 1);
  found.downs.resize(count);
  uint64_t extra = 0;
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    if (!profile.table_of[c] || begin[c] == begin[c + 1]) continue;
    const uint32_t table = profile.table_of[c] - 1u;
    const Slots symbols(profile, table);
    const uint64_t offset = profile.offsets[table];
    for (uint64_t i = begin[c]; i < begin[c + 1]; i++) {
      uint32_t y = symbols[reader.slot()];
      reader.advance(profile.starts[offset + y], profile.frequencies[offset + y]);
      extra += raw_width(y, profile.precisions[table]);
      found.magnitudes[i] = y;
    }
  }
  reader.meet(extra);
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    if (!profile.table_of[c]) continue;
    const uint32_t precision = profile.precisions[profile.table_of[c] - 1u];
    for (uint64_t i = begin[c]; i < begin[c + 1]; i++) {
      auto y = static_cast<uint32_t>(found.magnitudes[i]);
      uint32_t width = raw_width(y, precision);
      // At least 2^64, which is out of range and must not wrap into it.
      if (width + precision > 63) throw Refused{SKERRY_STEP};
      uint64_t top = y + 1u - (uint64_t(width) << precision);
      found.magnitudes[i] = (top << width) + reader.raw(width);
    }
  }
  reader.downs(found.downs.data());
  return found;
}

template <class Word>
Word take_step(Word before, uint64_t magnitude, bool down, bool is_float) {
  constexpr uint64_t half = uint64_t(1) << (8 * sizeof(Word) - 1);
  if (magnitude < 1 || magnitude > half || (magnitude == half && !down)) throw Refused{SKERRY_STEP};
  Word step = down ? Word(0 - Word(magnitude)) : Word(magnitude);
  return ordinal(Word(ordinal(before, is_float) + step), is_float);
}

// Find the words of all ranks: the place of each change, in class order.
std::vector<uint32_t> places(const Path &path, const ClassIndex &index,
                             const Decoded &found) {
  std::vector<uint32_t> positions(found.ranks.size());
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    const uint64_t begin = found.begin[c], count = found.begin[c + 1] - begin;
    if (count) {
      path.select(index, c, found.ranks.data() + begin, count, positions.data() + begin);
    }
  }
  return positions;
}

// Write the changes by position: each goes after as many as have lower ones, told by a bitmap.
template <class Word>
void write_ascending(const Chunk &chunk, const Decoded &found, const std::vector<uint32_t> &at,
                     int64_t *positions, void *after) {
  std::vector<uint64_t> bitmap((chunk.n + kBlock - 1) / kBlock);
  for (uint32_t position : at) bitmap[position / kBlock] |= uint64_t(1) << (position % kBlock);
  std::vector<uint32_t> before(bitmap.size());
  uint32_t sum = 0;
  for (uint64_t block = 0; block < bitmap.size(); block++) {
    before[block] = sum;
    sum += popcount(bitmap[block]);
  }
  for (uint64_t i = 0; i < at.size(); i++) {
    prefetch(chunk.words, at[std::min<uint64_t>(i + kAhead, at.size() - 1)] * sizeof(Word));
    const uint64_t block = at[i] / kBlock;
    const uint64_t below = bitmap[block] & ((uint64_t(1) << (at[i] % kBlock)) - 1);
    const uint64_t to = before[block] + popcount(below);
    positions[to] = at[i];
    store(after, to, take_step(load<Word>(chunk.words, at[i]), found.magnitudes[i], found.downs[i],
                               chunk.dtype.is_float));
  }
}

template <class Word>
int64_t decode(const Path &path, const Chunk &chunk, const skerry_profile &profile,
               const uint8_t *data, uint64_t size, uint64_t capacity, int64_t *positions,
               void *after) {
  if (!chunk.dtype.mask) {
    const uint32_t population[SKERRY_CLASSES] = {static_cast<uint32_t>(chunk.n)};
    const Decoded found = read(profile, data, size, chunk.n, population);
    if (found.ranks.size() > capacity) return SKERRY_ARGUMENT;
    write_ascending<Word>(chunk, found, found.ranks, positions, after);
    return static_cast<int64_t>(found.ranks.size());
  }
  OwnedIndex index(chunk.n);
  path.build(chunk, index);
  const Decoded found = read(profile, data, size, chunk.n, index.population);
  if (found.ranks.size() > capacity) return SKERRY_ARGUMENT;
  write_ascending<Word>(chunk, found, places(path, index, found), positions, after);
  return static_cast<int64_t>(found.ranks.size());
}

}  // namespace
}  // namespace skerry

extern "C" int64_t skerry_decode(skerry_path path, const skerry_dtype *dtype,
                                 const skerry_profile *profile, const uint8_t *data, uint64_t size,
                                 const void *before, uint64_t n, uint64_t capacity,
                                 int64_t *positions, void *after) {
  if (!skerry::is_sound(*dtype) || !skerry::is_usable(*profile) || n > SKERRY_MAX_WORDS) {
    return SKERRY_ARGUMENT;
  }
  const skerry::Chunk chunk{*dtype, before, n};
  int64_t count = SKERRY_ARGUMENT;
  try {
    skerry::with_word(dtype->word, [&](auto w) {
      count = skerry::decode<decltype(w)>(skerry::path_of(path), chunk, *profile, data, size, capacity, positions, after);
    });
  } catch (const skerry::Refused &refused) {
    return refused.error;
  } catch (const std::bad_alloc &) {
    return SKERRY_MEMORY;
  }
  return count;
}

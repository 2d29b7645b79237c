// What the fuzzer and the check of the native kernel share.
#ifndef SKERRY_TESTS_SUPPORT_H
#define SKERRY_TESTS_SUPPORT_H

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "../../codec/native/kernel.h"

// Stop the program unless the claim holds.  Not assert, which a build may leave out.
#define CLAIM(claim)                                                         \
  do {                                                                       \
    if (!(claim)) {                                                          \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #claim); \
      std::abort();                                                          \
    }                                                                        \
  } while (false)

using Bytes = std::vector<uint8_t>;

// The paths that this processor has beside the portable one.
inline std::vector<skerry_path> vector_paths() {
  std::vector<skerry_path> found;
  for (skerry_path path : {SKERRY_AVX2, SKERRY_AVX512}) {
    if (skerry_paths() & static_cast<uint32_t>(path)) found.push_back(path);
  }
  return found;
}

inline uint64_t load(const Bytes &words, uint64_t at, uint32_t size) {
  uint64_t word = 0;
  std::memcpy(&word, words.data() + at * size, size);
  return word;
}

// A block that ends where its bytes end, at an address that no vector likes: the sanitizer sees a
// read or write past it.
class Exact {
 public:
  Exact(uint64_t size, uint64_t offset) : block_(new uint8_t[size + offset]), offset_(offset) {}
  Exact(const Bytes &bytes, uint64_t offset) : Exact(bytes.size(), offset) {
    std::copy(bytes.begin(), bytes.end(), data());
  }

  uint8_t *data() { return block_.get() + offset_; }

 private:
  std::unique_ptr<uint8_t[]> block_;
  uint64_t offset_;
};

// A magnitude table as a pack has it; frequencies sum to 4096 and the last is not 0.
struct Table {
  uint8_t precision;
  std::vector<uint16_t> frequencies;
};

// A profile, and what the kernel's points to.
class Profile {
 public:
  Profile(const Bytes &rates, const Bytes &table_of, const std::vector<Table> &tables)
      : rates_(rates), table_of_(table_of) {
    for (const Table &table : tables) {
      precisions_.push_back(table.precision);
      offsets_.push_back(static_cast<uint32_t>(frequencies_.size()));
      sizes_.push_back(static_cast<uint32_t>(table.frequencies.size()));
      uint32_t start = 0;
      for (uint32_t y = 0; y < table.frequencies.size(); y++) {
        frequencies_.push_back(table.frequencies[y]);
        starts_.push_back(static_cast<uint16_t>(start));
        symbols_.insert(symbols_.end(), table.frequencies[y], static_cast<uint16_t>(y));
        start += table.frequencies[y];
      }
      CLAIM(start == 4096 && table.frequencies.back());
    }
    view_.rates = rates_.data();
    view_.table_of = table_of_.data();
    view_.tables = static_cast<uint32_t>(tables.size());
    view_.precisions = precisions_.data();
    view_.offsets = offsets_.data();
    view_.sizes = sizes_.data();
    view_.frequencies = frequencies_.data();
    view_.starts = starts_.data();
  }
  Profile(const Profile &) = delete;
  Profile &operator=(const Profile &) = delete;

  const skerry_profile *view() const { return &view_; }
  uint32_t symbol(uint32_t table, uint32_t slot) const { return symbols_[table * 4096 + slot]; }

 private:
  Bytes rates_, table_of_, precisions_;
  std::vector<uint32_t> offsets_, sizes_;
  std::vector<uint16_t> frequencies_, starts_, symbols_;
  skerry_profile view_{};
};

// A chunk before the patch, and how it is coded.
struct Case {
  const skerry_dtype &dtype;
  const skerry_profile *profile;
  Bytes before;
  uint64_t offset = 1;  // of every block of words or payload

  uint64_t n() const { return before.size() / dtype.word; }
};

// What a chunk's bytes decode to: the words after the patch, or an error below zero.
struct Decoded {
  int64_t result;
  Bytes after;

  bool operator==(const Decoded &other) const {
    return result == other.result && after == other.after;
  }
};

inline Decoded decode(skerry_path path, const Case &chunk, const Bytes &payload) {
  const uint64_t n = chunk.n(), word = chunk.dtype.word;
  const uint64_t capacity = std::min<uint64_t>(n, 8 * payload.size());
  Exact before(chunk.before, chunk.offset), data(payload, chunk.offset);
  Exact words(capacity * word, chunk.offset);
  std::unique_ptr<int64_t[]> positions(new int64_t[capacity]);
  int64_t count = skerry_decode(path, &chunk.dtype, chunk.profile, data.data(), payload.size(),
                                before.data(), n, capacity, positions.get(), words.data());
  if (count < 0) {
    // Anything else would say that the caller is at fault.
    CLAIM(count <= SKERRY_SHORT && count >= SKERRY_LONG);
    return {count, {}};
  }
  CLAIM(static_cast<uint64_t>(count) <= capacity);
  int64_t last = -1;
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = positions[static_cast<uint64_t>(i)];
    CLAIM(at > last && at < static_cast<int64_t>(n));
    last = at;
  }
  const skerry_write write = {before.data(), n, positions.get(), words.data(),
                              static_cast<uint64_t>(count), chunk.dtype.word};
  CLAIM(skerry_apply(&write, 1) == count);
  return {count, Bytes(before.data(), before.data() + n * word)};
}

// Decode on every path; all must agree, on errors too.
inline Decoded decode_alike(const Case &chunk, const Bytes &payload) {
  const Decoded portable = decode(SKERRY_PORTABLE, chunk, payload);
  for (skerry_path path : vector_paths()) CLAIM(decode(path, chunk, payload) == portable);
  return portable;
}

// The changes of a chunk, and its words by class.
struct Scan {
  Bytes classes, downs;
  std::vector<uint32_t> ranks;
  std::vector<uint64_t> magnitudes;
  std::vector<int64_t> positions, population, changed;

  skerry_changes columns() {
    return {classes.data(), ranks.data(), magnitudes.data(), downs.data()};
  }

  bool operator==(const Scan &other) const {
    return classes == other.classes && downs == other.downs && ranks == other.ranks &&
           magnitudes == other.magnitudes && positions == other.positions &&
           population == other.population && changed == other.changed;
  }
};

inline Scan scan(skerry_path path, const Case &chunk, const Bytes &after) {
  const uint64_t n = chunk.n();
  Exact old_words(chunk.before, chunk.offset), new_words(after, chunk.offset);
  std::unique_ptr<uint64_t[]> bitmap(new uint64_t[(n + 63) / 64]);
  const int64_t found = skerry_diff(path, chunk.dtype.word, old_words.data(), new_words.data(), n,
                                    bitmap.get());
  CLAIM(found >= 0 && static_cast<uint64_t>(found) <= n);
  const auto count = static_cast<uint64_t>(found);
  Scan scan;
  scan.classes.resize(count);
  scan.downs.resize(count);
  scan.ranks.resize(count);
  scan.magnitudes.resize(count);
  scan.positions.resize(count);
  scan.population.resize(SKERRY_CLASSES);
  scan.changed.resize(SKERRY_CLASSES);
  CLAIM(skerry_positions(bitmap.get(), n, scan.positions.data()) == found);
  std::unique_ptr<uint32_t[]> positions(new uint32_t[n]), ranks(new uint32_t[n]);
  CLAIM(skerry_scan(path, &chunk.dtype, old_words.data(), new_words.data(), n, positions.get(),
                    ranks.get(), scan.population.data(), scan.changed.data()) == found);
  CLAIM(std::equal(scan.positions.begin(), scan.positions.end(), positions.get()));
  // Without a change nothing is counted; a chunk can be coded all the same.
  for (uint64_t at = 0; !count && at < n; at++) {
    scan.population[load(chunk.before, at, chunk.dtype.word) >> chunk.dtype.shift & chunk.dtype.mask]++;
  }
  skerry_changes columns = scan.columns();
  CLAIM(skerry_describe(&chunk.dtype, old_words.data(), new_words.data(), n, positions.get(),
                        ranks.get(), count, scan.changed.data(), &columns) == found);
  return scan;
}

// Scan on every path; all must agree, and name just the words that differ.
inline Scan scan_alike(const Case &chunk, const Bytes &after) {
  const Scan portable = scan(SKERRY_PORTABLE, chunk, after);
  for (skerry_path path : vector_paths()) CLAIM(scan(path, chunk, after) == portable);
  auto next = portable.positions.begin();
  for (uint64_t at = 0; at < chunk.n(); at++) {
    if (load(chunk.before, at, chunk.dtype.word) == load(after, at, chunk.dtype.word)) continue;
    CLAIM(next != portable.positions.end() && *next++ == static_cast<int64_t>(at));
  }
  CLAIM(next == portable.positions.end());
  return portable;
}

inline Bytes encode(const skerry_profile *profile, Scan &scan) {
  const skerry_changes columns = scan.columns();
  auto code = [&](uint8_t *out, uint64_t capacity) {
    return skerry_encode(profile, scan.population.data(), scan.changed.data(), &columns, out,
                         capacity);
  };
  const int64_t size = code(nullptr, 0);
  CLAIM(size >= 4);
  const auto bytes = static_cast<uint64_t>(size);
  Exact room(bytes, 1), tight(bytes - 1, 1);
  CLAIM(code(tight.data(), bytes - 1) == size);  // and nothing written, or the sanitizer sees it
  CLAIM(code(room.data(), bytes) == size);
  return Bytes(room.data(), room.data() + bytes);
}

#endif

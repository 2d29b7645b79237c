// What a path implements: comparing words, and counting them by class.
//
// The index of a chunk keeps a byte for each word, its class, and for each class that is common the
// number of its words before every 256th.  A query adds up what comparisons of four blocks of 64 say.
// Words of rare classes are listed instead.  All paths give the same answers.
#ifndef SKERRY_PATH_H
#define SKERRY_PATH_H

#include <cstdint>
#include <memory>

#include "kernel.h"

namespace skerry {

// A chunk before the patch: n words, at most SKERRY_MAX_WORDS.
struct Chunk {
  skerry_dtype dtype;
  const void *words;
  uint64_t n;
};

constexpr uint32_t kMostCommon = 32, kRare = 255;
constexpr uint64_t kBlock = 64, kSpan = 256;  // words that a mask covers, and a count

// Classes that are worth a comparison in every block; if too many are, the first ones by number.
struct Commons {
  uint32_t count;
  uint8_t classes[kMostCommon];
};

struct ClassIndex {
  uint32_t population[SKERRY_CLASSES];
  uint8_t slot[SKERRY_CLASSES];  // of each common class, kRare for the others
  uint64_t spans, row;  // how many counts a slot has, and how far apart those of two slots lie
  uint8_t *classes;  // of each word; as many more as fill the last span
  uint32_t *counts;  // [slot * row + span]: words of that class before the span
  uint32_t *found;   // positions of words of rare classes, ascending
  uint32_t *rare;    // the same by class
  uint32_t rare_begin[SKERRY_CLASSES];
};

// An index with its memory, enough for any chunk of n words; most of it is never touched.
class OwnedIndex : public ClassIndex {
 public:
  explicit OwnedIndex(uint64_t n) {
    spans = (n + kSpan - 1) / kSpan;
    // An odd number of lines of the cache: at powers of two all slots would share a few.
    row = (spans + 31) / 32 * 32 + 16;
    bytes_.reset(new uint8_t[spans * kSpan]);
    words_.reset(new uint32_t[kMostCommon * row + 2 * spans * kSpan]);
    classes = bytes_.get();
    counts = words_.get();
    found = counts + kMostCommon * row;
    rare = found + spans * kSpan;
  }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  std::unique_ptr<uint32_t[]> words_;
};

// The changes of a chunk as they come: where, and how many words of the same class lie before.
struct Found {
  uint32_t *positions, *ranks;
};

struct Path {
  // Set the bits of `bitmap` where words of this size differ; return how many do,
  // SKERRY_ARGUMENT for a size that no words have.
  int64_t (*diff)(uint32_t word, const void *before, const void *after, uint64_t n,
                  uint64_t *bitmap);
  // Find what changed.  `population` and `changed` are written only if anything did.
  int64_t (*scan)(const Chunk &chunk, const void *after, Found found, int64_t *population,
                  int64_t *changed);
  void (*build)(const Chunk &chunk, ClassIndex &index);
  // Write the positions of the words of class `c` that have these ranks, which ascend and are below
  // the class's population.
  void (*select)(const ClassIndex &index, uint32_t c, const uint32_t *ranks, uint64_t count,
                 uint32_t *positions);
};

extern const Path kPortable;
#if defined(__x86_64__)
extern const Path kAvx2, kAvx512;
#endif

inline const Path &path_of(skerry_path path) {
#if defined(__x86_64__)
  if (path == SKERRY_AVX512) return kAvx512;
  if (path == SKERRY_AVX2) return kAvx2;
#endif
  (void)path;
  return kPortable;
}

}  // namespace skerry

#endif

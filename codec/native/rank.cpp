// The changes of a chunk: each with its class, its rank among the words of that, and its step.
#include <algorithm>
#include <new>
#include <vector>

#include "class_index.h"
#include "kernel.h"
#include "words.h"

namespace skerry {
namespace {

template <class Word>
int64_t rank(skerry_path path, const Chunk &chunk, const void *after, const uint64_t *bitmap,
             int64_t *population, int64_t *changed, skerry_changes *out) {
  std::fill(changed, changed + SKERRY_CLASSES, 0);
  std::fill(population, population + SKERRY_CLASSES, 0);
  uint64_t count = 0;
  for (uint64_t block = 0; block < (chunk.n + 63) / 64; block++) count += popcount(bitmap[block]);
  const bool is_float = chunk.dtype.is_float;
  auto describe = [&](uint64_t to, uint32_t at, uint32_t c, uint32_t rank) {
    constexpr uint32_t top = 8 * sizeof(Word) - 1;
    const Word up = Word(ordinal(load<Word>(after, at), is_float) -
                         ordinal(load<Word>(chunk.words, at), is_float));
    const bool down = up >> top;
    out->classes[to] = static_cast<uint8_t>(c);
    out->ranks[to] = rank;
    out->magnitudes[to] = down ? Word(0 - up) : up;
    out->downs[to] = down;
  };
  if (!chunk.dtype.mask) {
    uint64_t next = 0;
    each_set(bitmap, chunk.n, [&](uint64_t position) {
      const auto at = static_cast<uint32_t>(position);
      describe(next++, at, 0, at);
    });
    population[0] = static_cast<int64_t>(chunk.n);
    changed[0] = static_cast<int64_t>(count);
    return changed[0];
  }
  const ClassQueries &queries = queries_of(path);
  OwnedIndex index(chunk.n);
  queries.build(chunk, index);
  std::copy(index.population, index.population + SKERRY_CLASSES, population);
  std::vector<uint32_t> positions;
  positions.reserve(count);
  each_set(bitmap, chunk.n, [&](uint64_t at) { positions.push_back(static_cast<uint32_t>(at)); });
  for (uint64_t i = 0; i < count; i++) {
    prefetch(index.classes, positions[std::min(i + kAhead, count - 1)]);
    changed[index.classes[positions[i]]]++;
  }
  // A counting sort: by class, and within one as they come.
  uint64_t place[SKERRY_CLASSES], sum = 0;
  for (uint32_t c = 0; c < SKERRY_CLASSES; c++) {
    place[c] = sum;
    sum += static_cast<uint64_t>(changed[c]);
  }
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t next = positions[std::min(i + kAhead, count - 1)];
    prefetch(chunk.words, next * sizeof(Word));
    prefetch(after, next * sizeof(Word));
    for (uint64_t line = 0; line < kSpan; line += 64) {
      prefetch(index.classes, next / kSpan * kSpan + line);
    }
    const uint32_t at = positions[i], c = index.classes[at];
    describe(place[c]++, at, c, queries.rank(index, at));
  }
  return static_cast<int64_t>(count);
}

}  // namespace
}  // namespace skerry

extern "C" int64_t skerry_rank(skerry_path path, const skerry_dtype *dtype, const void *before,
                               const void *after, uint64_t n, const uint64_t *bitmap,
                               int64_t *population, int64_t *changed, skerry_changes *changes) {
  if (!skerry::is_sound(*dtype) || n > SKERRY_MAX_WORDS) return SKERRY_ARGUMENT;
  const skerry::Chunk chunk{*dtype, before, n};
  int64_t count = SKERRY_ARGUMENT;
  try {
    skerry::with_word(dtype->word, [&](auto w) {
      count = skerry::rank<decltype(w)>(path, chunk, after, bitmap, population, changed, changes);
    });
  } catch (const std::bad_alloc &) {
    return SKERRY_MEMORY;
  }
  return count;
}

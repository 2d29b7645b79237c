// Words: how they are read and written, and in which order floats lie.
//
// No header that defines functions is included here: files for newer processors include this one
// inside their target, and such a function would be compiled for them, for the whole program.
#ifndef SKERRY_WORDS_H
#define SKERRY_WORDS_H

#include <cstdint>
#include <cstring>

#include "kernel.h"

// Words and payloads are read where they lie.  The build fails, and Skerry goes on with NumPy.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian processors only");

namespace skerry {
// Without a name, so that each file has its own copies: one compiled for a newer processor must never
// stand in for another file's.
namespace {

template <class Word>
inline Word load(const void *words, uint64_t at) {
  Word word;
  std::memcpy(&word, static_cast<const char *>(words) + at * sizeof(Word), sizeof(Word));
  return word;
}

template <class Word>
inline void store(void *words, uint64_t at, Word word) {
  std::memcpy(static_cast<char *>(words) + at * sizeof(Word), &word, sizeof(Word));
}

// Floats in numeric order, by the map of codec/steps.py; it is its own inverse.
template <class Word>
inline Word ordinal(Word bits, bool is_float) {
  constexpr Word sign = Word(1) << (8 * sizeof(Word) - 1);
  return is_float && (bits & sign) ? Word(bits ^ Word(sign - 1)) : bits;
}

// Call `f` with a word of the dtype's size; false if there is none.
template <class F>
inline bool with_word(uint32_t size, F f) {
  switch (size) {
    case 1: f(uint8_t{}); return true;
    case 2: f(uint16_t{}); return true;
    case 4: f(uint32_t{}); return true;
    case 8: f(uint64_t{}); return true;
    default: return false;
  }
}

// A class lies within its word: paths that take words together rely on it.
inline bool is_sound(const skerry_dtype &dtype) {
  return (dtype.word == 1 || dtype.word == 2 || dtype.word == 4 || dtype.word == 8) &&
         dtype.shift < 8 * dtype.word && dtype.mask < SKERRY_CLASSES &&
         uint64_t(dtype.mask) >> (8 * dtype.word - dtype.shift - 1) <= 1;
}

// How many changes ahead a loop asks for memory that it will read: changes lie far apart.
constexpr uint64_t kAhead = 16;

inline void prefetch(const void *base, uint64_t byte) {
  __builtin_prefetch(static_cast<const char *>(base) + byte);
}

inline uint32_t popcount(uint64_t bits) {
#if defined(__x86_64__) && !defined(__POPCNT__)
  // The builtin would call a library.  Sums of bits within pairs, nibbles, bytes, then of all bytes.
  bits -= bits >> 1 & 0x5555555555555555;
  bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333);
  return static_cast<uint32_t>(((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56);
#else
  return static_cast<uint32_t>(__builtin_popcountll(bits));
#endif
}
inline uint32_t lowest(uint64_t bits) { return static_cast<uint32_t>(__builtin_ctzll(bits)); }

// The classes of 64 words; compilers make vectors of it.
template <class Word>
inline void narrow_block(const char *words, uint32_t shift, uint32_t mask, uint8_t *classes) {
  for (uint64_t i = 0; i < 64; i++) {
    classes[i] = static_cast<uint8_t>(load<Word>(words, i) >> shift & mask);
  }
}

// Call `f` with each position whose bit is set, ascending.
template <class F>
inline void each_set(const uint64_t *bitmap, uint64_t n, F f) {
  for (uint64_t block = 0; block < (n + 63) / 64; block++) {
    for (uint64_t bits = bitmap[block]; bits; bits &= bits - 1) {
      f(64 * block + lowest(bits));
    }
  }
}

}  // namespace
}  // namespace skerry

#endif

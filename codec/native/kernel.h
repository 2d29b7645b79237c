// The native kernel's C interface: what NumPy does in scan.py and context.py, a chunk at a time.
//
// Every function is pure and keeps no state, so threads may call at will.  Buffers are the caller's;
// words are little-endian and may lie at any address.  A result below zero is a `skerry_error`.
// `path` is one that skerry_paths() has; all give the same bytes.
#ifndef SKERRY_KERNEL_H
#define SKERRY_KERNEL_H

#include <stdint.h>

#define SKERRY_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum { SKERRY_CLASSES = 256, SKERRY_MAX_WORDS = 1 << 20 };

typedef enum { SKERRY_PORTABLE = 1, SKERRY_AVX2 = 2, SKERRY_AVX512 = 4 } skerry_path;

typedef enum {
  SKERRY_ARGUMENT = -1,     // the caller broke this interface
  SKERRY_MEMORY = -2,       // no memory
  SKERRY_SHORT = -3,        // fewer than 4 bytes
  SKERRY_START = -4,        // a first state that no encoder leaves
  SKERRY_CHANGES = -5,      // more changes than the bytes can hold
  SKERRY_PAST_END = -6,     // a changed word past the end of its class
  SKERRY_MEETING = -7,      // symbols and raw bits do not meet
  SKERRY_PADDING = -8,      // padding bits that are not zero
  SKERRY_SEED = -9,         // a last state that is not a seed
  SKERRY_STEP = -10,        // a step out of range
  SKERRY_LONG = -11,        // more bytes than so many words can take
} skerry_error;

// How words are cut: `word` bytes each, class = (word >> shift) & mask, 0 for all if mask is 0.
typedef struct {
  uint32_t word, shift, mask, is_float;
} skerry_dtype;

// How one chunk is coded.  `rates` and `table_of` have an entry for each class: the rate code with
// the chunk's tilt in it, or 255; the number of the magnitude table from 1, or 0.  Table t has
// `sizes[t]` symbols from `offsets[t]` in `frequencies`, whose sum is 4096, and in `starts`.
typedef struct {
  const uint8_t *rates, *table_of;
  uint32_t tables;
  const uint8_t *precisions;
  const uint32_t *offsets, *sizes;
  const uint16_t *frequencies, *starts;
} skerry_profile;

// The changes of one chunk, in class order; each column has room for all of them.
typedef struct {
  uint8_t *classes;
  uint32_t *ranks;
  uint64_t *magnitudes;
  uint8_t *downs;
} skerry_changes;

// What the library was built from: the digest that hatch_build.py gave the compiler, or "".
SKERRY_API const char *skerry_sources(void);

SKERRY_API uint32_t skerry_paths(void);

// Set the bits of `bitmap`, (n + 63) / 64 items, where words differ; return how many do.
SKERRY_API int64_t skerry_diff(skerry_path path, uint32_t word, const void *before, const void *after, uint64_t n,
                    uint64_t *bitmap);

// Write the positions of the bits that are set, ascending; `positions` has room for all.
SKERRY_API int64_t skerry_positions(const uint64_t *bitmap, uint64_t n, int64_t *positions);

// Find what changed in n words, at most 2^20: return how many changes there are, write their positions,
// ascending, and each one's rank among the words of its class (both have room for n), and count the
// words of each class and those of them that changed.  The counts are written only if anything did.
SKERRY_API int64_t skerry_scan(skerry_path path, const skerry_dtype *dtype, const void *before, const void *after,
                    uint64_t n, uint32_t *positions, uint32_t *ranks, int64_t *population,
                    int64_t *changed);

// Describe the changes that skerry_scan found, in class order; returns `count`.  SKERRY_ARGUMENT if the
// words are not those that it saw: nothing is written past the columns even then.
SKERRY_API int64_t skerry_describe(const skerry_dtype *dtype, const void *before, const void *after, uint64_t n,
                        const uint32_t *positions, const uint32_t *ranks, uint64_t count,
                        const int64_t *changed, const skerry_changes *changes);

// Code the changes.  Returns the size of the chunk; nothing is written if that is above `capacity`.
SKERRY_API int64_t skerry_encode(const skerry_profile *profile, const int64_t *population, const int64_t *changed,
                      const skerry_changes *changes, uint8_t *out, uint64_t capacity);

// Decode a chunk over the words before the patch.  Writes the ascending positions of the words that
// change and their bits afterwards, and returns how many; `capacity` must be at least
// min(n, 8 * size).  Untrusted: any `data` is either decoded or refused.
SKERRY_API int64_t skerry_decode(skerry_path path, const skerry_dtype *dtype, const skerry_profile *profile,
                      const uint8_t *data, uint64_t size, const void *before, uint64_t n,
                      uint64_t capacity, int64_t *positions, void *after);

// What is written to one array: `after`, of `count` words, to `positions` in `words`, n of them.
typedef struct {
  void *words;
  uint64_t n;
  const int64_t *positions;
  const void *after;
  uint64_t count;
  uint32_t word;
} skerry_write;

// Write to several arrays, in order, up to the first that has a position outside; return how many
// words were written, or SKERRY_ARGUMENT.
SKERRY_API int64_t skerry_apply(const skerry_write *writes, uint64_t count);

#ifdef __cplusplus
}
#endif
#endif

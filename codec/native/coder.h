// What encoder and decoder share: the gap tables, the entropy coder's numbers, strings of raw bits.
#ifndef SKERRY_CODER_H
#define SKERRY_CODER_H

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace skerry {

constexpr uint32_t kTotalBits = 12, kTotal = 1 << kTotalBits;
constexpr uint32_t kSymbols = 31, kTables = 28;
constexpr uint32_t kNever = 255, kMaxRate = 107, kFirstShifted = 24;
constexpr uint32_t kLow = 1 << 16, kSeedBits = 16;

// A gap table: the cumulative frequencies of its symbols, and the symbol of every slot.
struct GapTables {
  std::array<std::array<uint16_t, kSymbols + 2>, kTables> cumulative{};
  std::array<std::array<uint8_t, kTotal>, kTables> symbol{};

  GapTables() {
    static constexpr uint64_t kStay[kTables] = {
        1440801,    5145013,    15004422,   36905875,   78665070,   148652826,  253857248,
        398132550,  581260615,  799036310,  1044178424, 1307656790, 1580030169, 1852521207,
        2117713904, 2369882518, 2605029347, 2820730047, 3015876649, 3190386796, 3344923893,
        3480652712, 3599040369, 3701703250, 3790295335, 3866431115, 3931635878, 3987316692,
    };
    constexpr uint64_t one = uint64_t(1) << 32;
    for (uint32_t t = 0; t < kTables; t++) {
      uint64_t survival = one;
      for (uint32_t n = 0; n <= kSymbols; n++) {
        cumulative[t][n] =
            static_cast<uint16_t>(n + ((kTotal - kSymbols - 1) * (one - survival) >> 32));
        survival = survival * kStay[t] >> 32;
      }
      cumulative[t][kSymbols + 1] = kTotal;
      for (uint32_t u = 0; u <= kSymbols; u++) {
        for (uint32_t slot = cumulative[t][u]; slot < cumulative[t][u + 1]; slot++) {
          symbol[t][slot] = static_cast<uint8_t>(u);
        }
      }
    }
  }
};

inline const GapTables &gap_tables() {
  static const GapTables tables;
  return tables;
}

// A rate code as shift g and table t; `rate` is at most kMaxRate.
struct Rate {
  uint32_t shift, table;

  explicit Rate(uint32_t rate)
      : shift(rate < kFirstShifted ? 0 : (rate - kFirstShifted) >> 2), table(rate - 4 * shift) {}
};

// Raw bits of a magnitude symbol, with its table's precision.
inline uint32_t raw_width(uint32_t symbol, uint32_t precision) {
  uint32_t octave = (symbol + 1) >> precision;
  return octave > 1 ? octave - 1 : 0;
}

// Writes raw bits, lowest first, into bytes that a chunk holds in reverse.
class BitWriter {
 public:
  // As many bits as will be written at most.
  explicit BitWriter(uint64_t most_bits) : bytes_(new uint8_t[most_bits / 8 + 16]), end_(bytes_.get()) {}

  void put(uint64_t value, uint32_t width) {
    if (width > 32) {
      put(value & 0xffffffff, 32);
      value >>= 32;
      width -= 32;
    }
    held_ |= value << count_;
    count_ += width;
    // Always, and over again: whether four bytes are full cannot be foretold.
    std::memcpy(end_, &held_, 8);
    const uint32_t full = count_ & 32;
    end_ += full / 8;
    held_ >>= full;
    count_ -= full;
  }

  // Call once, at the end.
  void finish() { end_ += (count_ + 7) / 8; }

  const uint8_t *begin() const { return bytes_.get(); }
  const uint8_t *end() const { return end_; }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  uint8_t *end_;
  uint64_t held_ = 0;
  uint32_t count_ = 0;  // below 32
};

}  // namespace skerry

#endif

// Fuzzes the native kernel: any bytes are decoded or refused, alike on every path of the processor,
// and what was encoded decodes to itself.
//
// An input is cut from its front; past its end everything is 0.  All numbers are little-endian.
//
//   u8 what, modulo 3: decode the rest as a payload (0); encode, decode, then damage and decode
//   again (1); forge a payload that no encoder writes but whose parts meet, and decode it (2)
//   u8 dtype, from the table below; 128 more: all words in one class
//   u8 offset of all buffers from their natural alignment
//   u16 words: modulo 1025, or 4097 from 0x8000 on, so that most inputs are small and fast
//   u8 how they are made: 0: their bytes follow, else as `fill` says from a u32 seed
//
// To decode: a profile (`read_profile`), the words' bytes if they follow, the payload.
// To encode: how words change (`mutate`), the profile's rates and precision (`fit`), damage.
// To forge: a profile, then what `forge` says.

// The kernel's branches guide the fuzzer; those of the harness would only lead it astray.
#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function)
#include "../../codec/native/coder.h"
#include "support.h"

namespace {

constexpr skerry_dtype kDTypes[] = {
    {2, 7, 255, 1},   // BF16
    {2, 10, 31, 1},   // F16
    {1, 3, 15, 1},    // F8_E4M3
    {1, 2, 31, 1},    // F8_E5M2
    {4, 23, 255, 1},  // F32
    {8, 55, 255, 1},  // F64
    {1, 0, 0, 0},    {2, 0, 0, 0}, {4, 0, 0, 0}, {8, 0, 0, 0},
};
constexpr uint32_t kFewWords = 1024, kMostWords = 4096;
constexpr uint32_t kMaxRate = 107, kNever = 255;
constexpr uint32_t kMaxSymbols = 16384, kMaxPrecision = 12, kMaxTables = 32, kTotal = 4096;

class Input {
 public:
  Input(const uint8_t *data, size_t size) : next_(data), end_(data + size) {}

  size_t left() const { return static_cast<size_t>(end_ - next_); }

  uint32_t number(size_t bytes) {
    uint32_t value = 0;
    for (size_t i = 0; i < std::min(bytes, left()); i++) value |= uint32_t(next_[i]) << (8 * i);
    next_ += std::min(bytes, left());
    return value;
  }

  Bytes take(size_t size) {
    Bytes bytes(next_, next_ + std::min(size, left()));
    next_ += bytes.size();
    bytes.resize(size);
    return bytes;
  }

 private:
  const uint8_t *next_, *end_;
};

// Numbers without a pattern, the same ones for the same seed (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

void store(Bytes &words, uint64_t at, uint32_t size, uint64_t word) {
  std::memcpy(&words[at * size], &word, size);
}

// Words of few classes, the rarer the further away (1), of one class (2) or of any bits (3).
Bytes fill(const skerry_dtype &dtype, uint64_t n, uint32_t style, uint32_t seed) {
  Random random(seed);
  Bytes words(n * dtype.word);
  for (uint64_t at = 0; at < n; at++) {
    uint64_t word = random.next();
    if (style % 3) {
      const uint64_t rarity = static_cast<uint64_t>(__builtin_ctzll(random.next() | 1u << 20));
      const uint64_t c = (seed + (style % 3 == 1 ? rarity : 0)) & dtype.mask;
      word = (word & ~(uint64_t(dtype.mask) << dtype.shift)) | c << dtype.shift;
    }
    store(words, at, dtype.word, word);
  }
  return words;
}

// u16 density, u8 how far, u32 seed: to a neighbour (0), to any word (1), by steps of any size (2).
Bytes mutate(Input &input, const skerry_dtype &dtype, const Bytes &before) {
  const uint64_t density = input.number(2);
  const uint32_t style = input.number(1) % 3;
  Random random(input.number(4));
  Bytes after = before;
  for (uint64_t at = 0; at < before.size() / dtype.word; at++) {
    if (random.next() >> 48 > density) continue;
    uint64_t step = 1 + random.next() % 3;
    if (style == 1) step = random.next();
    if (style == 2) step = random.next() >> random.next() % 64;
    const bool down = random.next() & 1;
    store(after, at, dtype.word, load(before, at, dtype.word) + (down ? 0 - step : step));
  }
  return after;
}

// u8 tables, each: u8 precision, u16 entries, each: u16 symbols left out before it, u16 frequency.
// u16 classes, each: u8 class, u8 rate code (one too high: never), u8 table.
void read_profile(Input &input, Bytes &rates, Bytes &table_of, std::vector<Table> &tables) {
  tables.resize(input.number(1) % (kMaxTables + 1));
  for (Table &table : tables) {
    table.precision = static_cast<uint8_t>(input.number(1) % (kMaxPrecision + 1));
    uint32_t left = kTotal;
    for (uint32_t entries = input.number(2); entries && left && input.left(); entries--) {
      const size_t symbol = table.frequencies.size() + input.number(2);
      if (symbol >= kMaxSymbols) break;
      const uint32_t frequency = std::min(std::max(input.number(2), 1u), left);
      table.frequencies.resize(symbol);
      table.frequencies.push_back(static_cast<uint16_t>(frequency));
      left -= frequency;
    }
    // Any input is a table: what is left over goes to the last symbol.
    if (table.frequencies.empty()) table.frequencies.push_back(0);
    table.frequencies.back() = static_cast<uint16_t>(table.frequencies.back() + left);
  }
  for (uint32_t classes = input.number(2); classes && input.left(); classes--) {
    const uint32_t c = input.number(1), rate = input.number(1) % (kMaxRate + 2);
    rates[c] = static_cast<uint8_t>(rate > kMaxRate ? kNever : rate);
    table_of[c] = static_cast<uint8_t>(input.number(1) % (tables.size() + 1));
  }
}

uint32_t symbol_of(uint64_t magnitude, uint32_t precision) {
  const uint32_t exponent = 63 - static_cast<uint32_t>(__builtin_clzll(magnitude));
  const uint32_t width = exponent > precision ? exponent - precision : 0;
  return static_cast<uint32_t>(magnitude >> width) - 1 + (width << precision);
}

// u8 tables, u8 precision, u8 rate code of all classes, u16 others, each: u8 class, u8 rate code.
// Every change can be coded: its class has a rate, and a table with its symbol.
void fit(Input &input, const Scan &scan, uint32_t word, Bytes &rates, Bytes &table_of,
         std::vector<Table> &tables) {
  tables.resize(1 + input.number(1) % kMaxTables);
  const uint32_t precision = input.number(1);
  // Up to here all steps of a word have fewer symbols than kMaxSymbols.
  const uint32_t most = word > 2 ? 8 : kMaxPrecision;
  rates.assign(SKERRY_CLASSES, static_cast<uint8_t>(input.number(1) % (kMaxRate + 1)));
  for (uint32_t others = input.number(2) % SKERRY_CLASSES; others; others--) {
    const uint32_t c = input.number(1);
    rates[c] = static_cast<uint8_t>(input.number(1) % (kMaxRate + 1));
  }
  for (size_t t = 0; t < tables.size(); t++) {
    tables[t] = {static_cast<uint8_t>((precision + t) % (most + 1)), {}};
  }
  for (size_t i = 0; i < scan.magnitudes.size(); i++) {
    const uint8_t c = scan.classes[i];
    // Classes whose steps are all 1 have no table.
    if (scan.magnitudes[i] > 1) table_of[c] = static_cast<uint8_t>(1 + c % tables.size());
  }
  for (size_t i = 0; i < scan.magnitudes.size(); i++) {
    if (!table_of[scan.classes[i]]) continue;
    Table &table = tables[table_of[scan.classes[i]] - 1u];
    const uint32_t y = symbol_of(scan.magnitudes[i], table.precision);
    if (table.frequencies.size() <= y) table.frequencies.resize(y + 1);
    table.frequencies[y] = 1;
  }
  for (Table &table : tables) {
    uint32_t sum = 0;
    for (uint16_t frequency : table.frequencies) sum += frequency;
    if (!sum) table.frequencies.push_back(0);
    table.frequencies.back() = static_cast<uint16_t>(table.frequencies.back() + kTotal - sum);
  }
}

// Any magnitudes at all, those out of range too, for n words of one class that all change.
// For each: u16 slot of its symbol in the table, u32 seed of its raw bits and direction.
Bytes forge(Input &input, uint64_t n, const Profile &whole) {
  const skerry_profile &profile = *whole.view();
  const skerry::Rate rate(profile.rates[0]);
  struct Symbol {
    uint32_t start, frequency;
  };
  std::vector<Symbol> symbols(n, {0, skerry::gap_tables().cumulative[rate.table][1]});
  skerry::BitWriter raw(n * (kMaxSymbols + 32));
  for (uint64_t i = 0; i < n; i++) raw.put(0, rate.shift);
  const uint32_t table = profile.table_of[0] - 1u;
  std::vector<uint64_t> downs;
  for (uint64_t i = 0; i < n; i++) {
    const uint32_t y = whole.symbol(table, input.number(2) % kTotal);
    const uint64_t at = profile.offsets[table] + y;
    symbols.push_back({profile.starts[at], profile.frequencies[at]});
    Random random(input.number(4));
    for (uint32_t w = skerry::raw_width(y, profile.precisions[table]); w; w -= std::min(w, 32u)) {
      raw.put(random.next() >> (64 - std::min(w, 32u)), std::min(w, 32u));
    }
    downs.push_back(random.next() & 1);
  }
  const uint64_t stored = n - std::min<uint64_t>(n, 16);
  for (uint64_t i = 0; i < stored; i++) raw.put(downs[i], 1);
  uint64_t state = 65536;
  for (uint64_t i = stored; i < n; i++) state += downs[i] << (i - stored);
  std::vector<uint16_t> words;
  for (auto symbol = symbols.rbegin(); symbol != symbols.rend(); ++symbol) {
    const uint64_t f = symbol->frequency;
    if (state >= f << 20) {
      words.push_back(static_cast<uint16_t>(state));
      state >>= 16;
    }
    state = (state / f << 12) + state % f + symbol->start;
  }
  Bytes payload(4);
  std::memcpy(payload.data(), &state, 4);
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    payload.push_back(static_cast<uint8_t>(*word));
    payload.push_back(static_cast<uint8_t>(*word >> 8));
  }
  raw.finish();
  const Bytes bits(raw.begin(), raw.end());
  payload.insert(payload.end(), bits.rbegin(), bits.rend());
  return payload;
}

// Decode, and hold the result against the encoder: a chunk that is not refused is the one that the
// encoder writes, so no change has two forms.
void decode_and_compare(const Case &chunk, const Bytes &payload) {
  const Decoded found = decode_alike(chunk, payload);
  if (found.result < 0) return;
  Scan scan = scan_alike(chunk, found.after);
  CLAIM(scan.positions.size() == static_cast<uint64_t>(found.result));
  CLAIM(encode(chunk.profile, scan) == payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Input input(data, size);
  const uint32_t what = input.number(1) % 3;
  const uint32_t kind = input.number(1);
  skerry_dtype dtype = kDTypes[(kind & 127) % (sizeof kDTypes / sizeof *kDTypes)];
  if (kind & 128) dtype.mask = 0;
  const uint64_t offset = input.number(1) % 8;
  const uint32_t size_code = input.number(2);
  const uint64_t n = size_code % ((size_code < 0x8000 ? kFewWords : kMostWords) + 1);
  const uint32_t style = input.number(1);
  Bytes before;
  if (style) before = fill(dtype, n, style, input.number(4));
  Bytes rates(SKERRY_CLASSES, kNever), table_of(SKERRY_CLASSES);
  std::vector<Table> tables;
  if (what != 1) {
    read_profile(input, rates, table_of, tables);
    if (what == 2) {
      dtype.mask = 0;
      rates[0] %= kMaxRate + 1;
      table_of[0] = static_cast<uint8_t>(std::max<uint32_t>(table_of[0], !tables.empty()));
    }
    const Profile profile(rates, table_of, tables);
    if (what == 2 && !tables.empty()) {
      before.resize(std::min<size_t>(before.size(), 40 * dtype.word));
      const Bytes payload = forge(input, before.size() / dtype.word, profile);
      decode_and_compare({dtype, profile.view(), before, offset}, payload);
      return 0;
    }
    // Only as many words as the input has, so that a short one is a small one.
    if (!style) before = input.take(std::min<size_t>(n, input.left() / dtype.word) * dtype.word);
    decode_and_compare({dtype, profile.view(), before, offset}, input.take(input.left()));
    return 0;
  }
  if (!style) before = input.take(std::min<size_t>(n, input.left() / dtype.word) * dtype.word);
  const Bytes after = mutate(input, dtype, before);
  Scan scan = scan_alike({dtype, nullptr, before, offset}, after);
  fit(input, scan, dtype.word, rates, table_of, tables);
  const Profile profile(rates, table_of, tables);
  const Case chunk{dtype, profile.view(), before, offset};
  Bytes payload = encode(profile.view(), scan);
  CLAIM(decode_alike(chunk, payload).after == after);
  for (int i = 0; i < 4 && input.left(); i++) {
    // u8 what, u16 where: cut, or u8 bits to flip, from the front or the back.
    const uint32_t how = input.number(1);
    const size_t where = input.number(2) % payload.size(), last = payload.size() - 1;
    const size_t at = how & 1 ? last - where : where;
    if (how > 250) {
      payload.resize(at + 1);
    } else {
      payload[at] = static_cast<uint8_t>(payload[at] ^ input.number(1));
    }
    decode_and_compare(chunk, payload);
  }
  return 0;
}
#pragma clang attribute pop

// Runs the native kernel on every path of this processor against what the NumPy reference wrote.
//
// `check FILE`: the file is the one that vectors.py writes; its form is described there.
#include <fstream>
#include <iterator>

#include "support.h"

namespace {

class File {
 public:
  explicit File(const char *path) {
    std::ifstream stream(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    CLAIM(!bytes_.empty());
  }

  bool ended() const { return at_ == bytes_.size(); }

  Bytes take(uint64_t size) {
    CLAIM(size <= bytes_.size() - at_);
    Bytes taken(size);
    std::copy_n(bytes_.data() + at_, size, taken.data());
    at_ += size;
    return taken;
  }

  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof(Number)).data(), sizeof(Number));
    return value;
  }

 private:
  Bytes bytes_;
  uint64_t at_ = 0;
};

std::vector<Table> read_tables(File &file) {
  std::vector<Table> tables(file.number<uint32_t>());
  for (Table &table : tables) {
    table.precision = static_cast<uint8_t>(file.number<uint32_t>());
    table.frequencies.resize(file.number<uint32_t>());
    for (uint16_t &frequency : table.frequencies) frequency = file.number<uint16_t>();
  }
  return tables;
}

// Compare one chunk; return whether its payload is sound.
bool check(File &file) {
  skerry_dtype dtype;
  for (uint32_t *field : {&dtype.word, &dtype.shift, &dtype.mask, &dtype.is_float}) {
    *field = file.number<uint32_t>();
  }
  const bool is_sound = file.number<uint32_t>() != 0;
  const auto words = file.number<uint64_t>(), size = file.number<uint64_t>();
  const Bytes rates = file.take(SKERRY_CLASSES), table_of = file.take(SKERRY_CLASSES);
  const Profile profile(rates, table_of, read_tables(file));
  const Bytes before = file.take(words * dtype.word);
  const Bytes payload = file.take(size);
  for (uint64_t offset = 0; offset < 2; offset++) {
    const Case chunk{dtype, profile.view(), before, offset};
    const Decoded found = decode_alike(chunk, payload);
    CLAIM((found.result >= 0) == is_sound);
    if (!is_sound) continue;
    // The file has the words after the patch; decoded, compared and coded they give the payload.
    const Bytes after = offset ? found.after : file.take(words * dtype.word);
    CLAIM(found.after == after);
    Scan scan = scan_alike(chunk, after);
    CLAIM(static_cast<int64_t>(scan.positions.size()) == found.result);
    CLAIM(encode(profile.view(), scan) == payload);
  }
  return is_sound;
}

}  // namespace

int main(int count, char **arguments) {
  CLAIM(count == 2);
  File file(arguments[1]);
  int sound = 0, refused = 0;
  while (!file.ended()) ++(check(file) ? sound : refused);
  std::printf("native kernel on portable");
  for (skerry_path path : vector_paths()) {
    std::printf(path == SKERRY_AVX2 ? ", avx2" : ", avx512");
  }
  std::printf(": %d chunks are coded as by NumPy, %d damaged ones refused\n", sound,
              refused);
}

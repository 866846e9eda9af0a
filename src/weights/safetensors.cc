#include "weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "weights/safetensors_json.h"

namespace k3 {
namespace {

constexpr uint64_t kPrefixBytes = 8;  // the header's length, little-endian

std::string quoted(std::string_view name) { return fmt::format("tensor '{}'", printable(name)); }

Dtype parse_dtype(std::string_view text, std::string_view path, std::string_view tensor) {
  constexpr Dtype kAll[] = {Dtype::kU8,  Dtype::kBf16, Dtype::kF16,
                            Dtype::kF32, Dtype::kI32,  Dtype::kI64};
  for (const Dtype dtype : kAll)
    if (text == name(dtype)) return dtype;
  throw InputError(path, quoted(tensor) + ": dtype", "one of U8, BF16, F16, F32, I32, I64",
                   fmt::format("'{}'", printable(text, 40)));
}

// One parse of a header: the tensors go to the visitor, what needs them all is kept.
class HeaderParser {
 public:
  HeaderParser(std::string_view json, std::string_view path, uint64_t file_size)
      : json_(json, path, kPrefixBytes),
        path_(path),
        data_begin_(kPrefixBytes + json.size()),
        file_size_(file_size) {}

  void run(const TensorVisitor& visit, Metadata* metadata) {
    bool seen_metadata = false;
    json_.object([&](std::string_view key) {
      if (key == "__metadata__") {
        if (std::exchange(seen_metadata, true)) fail("__metadata__", "once", "it again");
        read_metadata(metadata);
        return;
      }
      // The key may live in the scanner's buffer, which the strings of the entry would reuse.
      const std::string_view tensor = json_.escaped() ? kept_.emplace_back(key) : key;
      const TensorInfo info = entry(tensor);
      visit(tensor, info);
      names_.push_back({std::hash<std::string_view>{}(tensor), tensor});
    });
    json_.finish();
    check_names();
    check_ranges();
  }

 private:
  struct Named {
    size_t hash;
    std::string_view name;
    bool operator<(const Named& other) const {
      return hash != other.hash ? hash < other.hash : name < other.name;
    }
  };
  struct Range {
    uint64_t begin, end;
    uint32_t order;  // in the header
  };

  [[noreturn]] void fail(std::string_view what, std::string_view expected, std::string_view found) {
    throw InputError(path_, what, expected, found);
  }

  void read_metadata(Metadata* metadata) {
    json_.object([&](std::string_view key) {
      const std::string kept(key);
      const std::string_view value = json_.string();
      if (metadata) metadata->insert_or_assign(kept, std::string(value));
    });
  }

  TensorInfo entry(std::string_view tensor) {
    TensorInfo info;
    uint64_t offsets[2] = {0, 0};
    int dtypes = 0, shapes = 0, ranges = 0;
    json_.object([&](std::string_view key) {
      if (key == "dtype") {
        ++dtypes;
        info.dtype = parse_dtype(json_.string(), path_, tensor);
      } else if (key == "shape") {
        ++shapes;
        info.shape = shape(tensor);
      } else if (key == "data_offsets") {
        ++ranges;
        int n = 0;
        json_.array([&] {
          if (n == 2) json_.fail("two offsets");
          offsets[n++] = json_.integer();
        });
        if (n != 2) json_.fail("two offsets");
      } else {
        fail(quoted(tensor), "dtype, shape and data_offsets",
             fmt::format("'{}'", printable(key, 40)));
      }
    });
    if (dtypes != 1 || shapes != 1 || ranges != 1)
      fail(quoted(tensor), "one dtype, one shape and one data_offsets",
           fmt::format("{}, {} and {}", dtypes, shapes, ranges));
    place(tensor, offsets[0], offsets[1], info);
    return info;
  }

  Shape shape(std::string_view tensor) {
    Shape result;
    json_.array([&] {
      if (result.rank() == Shape::kMaxRank)
        fail(quoted(tensor), fmt::format("at most {} dimensions", Shape::kMaxRank), "more");
      result.push_back(static_cast<int64_t>(json_.integer()));
    });
    return result;
  }

  void place(std::string_view tensor, uint64_t begin, uint64_t end, TensorInfo& info) {
    // 2^56 bytes is past any file, so sums of offsets cannot wrap.
    constexpr unsigned __int128 kMost = uint64_t{1} << 56;
    unsigned __int128 bytes = static_cast<unsigned __int128>(element_bytes(info.dtype));
    bool zero = false;
    for (size_t i = 0; i < info.shape.rank(); ++i) {
      zero = zero || info.shape[i] == 0;
      bytes = std::min(bytes * static_cast<uint64_t>(info.shape[i]), kMost);
    }
    if (zero) bytes = 0;
    if (end < begin || end > kMost || end - begin != bytes)
      fail(quoted(tensor),
           fmt::format("data_offsets that span {} bytes for {} of {}", static_cast<uint64_t>(bytes),
                       info.shape.text(), name(info.dtype)),
           fmt::format("[{}, {}]", begin, end));
    info.offset = data_begin_ + begin;
    info.bytes = end - begin;
    ranges_.push_back({begin, end, static_cast<uint32_t>(ranges_.size())});
  }

  void check_names() {
    std::vector<Named> sorted = names_;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 1; i < sorted.size(); ++i)
      if (sorted[i].hash == sorted[i - 1].hash && sorted[i].name == sorted[i - 1].name)
        fail(quoted(sorted[i].name), "one entry in the header", "two");
  }

  void check_ranges() {
    const auto before = [](const Range& a, const Range& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    };
    if (!std::is_sorted(ranges_.begin(), ranges_.end(), before))
      std::sort(ranges_.begin(), ranges_.end(), before);
    uint64_t end = 0;
    for (const Range& range : ranges_) {
      if (range.begin < end)
        fail(quoted(names_[range.order].name), fmt::format("data from byte {} of the data on", end),
             fmt::format("an overlap at {}", range.begin));
      end = std::max(end, range.end);
    }
    if (data_begin_ + end != file_size_)
      fail("size", fmt::format("{} bytes by the header", data_begin_ + end),
           fmt::format("{} bytes", file_size_));
  }

  JsonScanner json_;
  std::string_view path_;
  uint64_t data_begin_, file_size_;
  std::deque<std::string> kept_;  // names that held escapes
  std::vector<Named> names_;
  std::vector<Range> ranges_;
};

}  // namespace

Shape::Shape(std::initializer_list<int64_t> dims) {
  for (const int64_t dim : dims) push_back(dim);
}

void Shape::push_back(int64_t dim) {
  assert(rank_ < kMaxRank);
  dims_[rank_++] = dim;
}

int64_t Shape::elements() const {
  int64_t count = 1;
  // An empty tensor may have other dimensions whose product does not fit.
  if (std::find(dims_.begin(), dims_.begin() + rank_, 0) != dims_.begin() + rank_) return 0;
  for (size_t i = 0; i < rank_; ++i) count *= dims_[i];
  return count;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ &&
         std::equal(dims_.begin(), dims_.begin() + rank_, other.dims_.begin());
}

std::string Shape::text() const {
  return fmt::format("[{}]", fmt::join(dims_.begin(), dims_.begin() + rank_, ", "));
}

std::string read_safetensors_header(const File& file) {
  const uint64_t size = file.size();
  if (size < kPrefixBytes)
    throw InputError(file.path(), "size", "at least 8 bytes", fmt::format("{} bytes", size));
  unsigned char prefix[kPrefixBytes];
  file.read(0, std::as_writable_bytes(std::span(prefix)));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  if (length < 2 || length > kMaxHeaderBytes)
    throw InputError(file.path(), "header", fmt::format("2 to {} bytes", kMaxHeaderBytes),
                     fmt::format("a length of {}", length));
  if (length > size - kPrefixBytes)
    throw InputError(file.path(), "size",
                     fmt::format("at least {} bytes for the header", kPrefixBytes + length),
                     fmt::format("{} bytes", size));
  std::string json(length, '\0');
  file.read(kPrefixBytes, std::as_writable_bytes(std::span(json)));
  return json;
}

void parse_safetensors_header(std::string_view json, std::string_view path, uint64_t file_size,
                              const TensorVisitor& visit, Metadata* metadata) {
  HeaderParser(json, path, file_size).run(visit, metadata);
}

void parse_safetensors_header(const File& file, const TensorVisitor& visit, Metadata* metadata) {
  parse_safetensors_header(read_safetensors_header(file), file.path(), file.size(), visit,
                           metadata);
}

void parse_safetensors_index(std::string_view json, std::string_view path,
                             const std::function<void(std::string_view, std::string_view)>& visit) {
  JsonScanner scanner(json, path);
  bool seen = false;
  std::string kept;
  scanner.object([&](std::string_view key) {
    if (key != "weight_map") return scanner.skip_value();
    if (std::exchange(seen, true)) throw InputError(path, "weight_map", "once", "it again");
    scanner.object([&](std::string_view tensor) {
      if (scanner.escaped()) tensor = kept.assign(tensor);
      visit(tensor, scanner.string());
    });
  });
  scanner.finish();
  if (!seen) throw InputError(path, "weight_map", "an object of tensor names", "none");
}

SafetensorsFile SafetensorsFile::open(const Storage& storage, const std::string& path) {
  SafetensorsFile result;
  result.file_ = storage.open(path);
  parse_safetensors_header(
      *result.file_,
      [&](std::string_view name, const TensorInfo& info) { result.tensors_.emplace(name, info); },
      &result.metadata_);
  return result;
}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw InputError(fmt::format("{}: {}: not in the file", file_->path(), quoted(name)));
  return found->second;
}

std::vector<std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const TensorInfo& tensor = info(name);
  std::vector<std::byte> data(tensor.bytes);
  file_->read(tensor.offset, data);
  return data;
}

std::vector<float> SafetensorsFile::floats(std::string_view name) const {
  const TensorInfo& tensor = info(name);
  const std::vector<std::byte> data = bytes(name);
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  widen_to_float(tensor.dtype, data.data(), tensor.shape.elements(), values.data());
  return values;
}

std::vector<int64_t> SafetensorsFile::integers(std::string_view name) const {
  const TensorInfo& tensor = info(name);
  const std::vector<std::byte> data = bytes(name);
  std::vector<int64_t> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype == Dtype::kI64) {
      std::memcpy(&values[i], data.data() + i * 8, 8);
    } else if (tensor.dtype == Dtype::kI32) {
      int32_t value;
      std::memcpy(&value, data.data() + i * 4, 4);
      values[i] = value;
    } else if (tensor.dtype == Dtype::kU8) {
      values[i] = static_cast<int64_t>(data[i]);
    } else {
      throw InputError(file_->path(), quoted(name), "I32, I64 or U8", k3::name(tensor.dtype));
    }
  }
  return values;
}

uint64_t TensorSpec::bytes() const {
  return static_cast<uint64_t>(shape.elements() * element_bytes(dtype));
}

SafetensorsWriter::SafetensorsWriter(Storage& storage, const std::string& path,
                                     const std::vector<TensorSpec>& tensors,
                                     const Metadata& metadata)
    : path_(path), writer_(storage.create(path)) {
  const auto dump = [](const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + dump(metadata) + ",";
  for (const TensorSpec& tensor : tensors) {
    const uint64_t begin = expected_;
    expected_ += tensor.bytes();
    header += dump(tensor.name) + ":{\"dtype\":\"" + name(tensor.dtype) +
              "\",\"shape\":" + tensor.shape.text() +
              fmt::format(",\"data_offsets\":[{},{}]}},", begin, expected_);
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.resize(static_cast<size_t>(round_up(static_cast<int64_t>(header.size()), 8)), ' ');
  unsigned char prefix[kPrefixBytes];
  for (size_t i = 0; i < kPrefixBytes; ++i)
    prefix[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  writer_->write(std::as_bytes(std::span(prefix)));
  writer_->write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::append(std::span<const std::byte> data) {
  written_ += data.size();
  writer_->write(data);
}

void SafetensorsWriter::finish() {
  if (written_ != expected_)
    throw WorkError(fmt::format("{}: {} bytes of tensors were announced and {} written",
                                printable(path_, 1000), expected_, written_));
  writer_->commit();
}

void write_safetensors(Storage& storage, const std::string& path,
                       const std::vector<TensorData>& tensors, const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const TensorData& tensor : tensors) {
    assert(tensor.data.size() == tensor.spec.bytes());
    specs.push_back(tensor.spec);
  }
  SafetensorsWriter writer(storage, path, specs, metadata);
  for (const TensorData& tensor : tensors) writer.append(tensor.data);
  writer.finish();
}

void widen_to_float(Dtype dtype, const std::byte* data, int64_t count, float* out) {
  const auto each = [&]<class T>(T, auto&& widen) {
    for (int64_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      out[i] = widen(value);
    }
  };
  const auto number = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case Dtype::kU8:
      return each(uint8_t{}, number);
    case Dtype::kBf16:
      return each(uint16_t{}, bf16_to_f32);
    case Dtype::kF16:
      return each(uint16_t{}, f16_to_f32);
    case Dtype::kF32:
      return each(float{}, number);
    case Dtype::kI32:
      return each(int32_t{}, number);
    case Dtype::kI64:
      return each(int64_t{}, number);
  }
}

}  // namespace k3

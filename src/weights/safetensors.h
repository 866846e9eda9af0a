// The safetensors container: a header of names, types and places, then raw bytes.
//
//   auto file = SafetensorsFile::open(storage, "golden.safetensors");
//   std::vector<float> logits = file.floats("p5.logits");           // any float type, widened
//
//   write_safetensors(storage, "out.safetensors",
//                     {{{"x", Dtype::kF32, {2, 3}}, std::as_bytes(std::span(values))}});
//
// parse_safetensors_header is the fast road for shards: no document tree, one call per tensor.
// Do not use SafetensorsFile for a snapshot (weights/snapshot.h opens those).
// Units: offsets and sizes are bytes, offsets are absolute in the file. Ownership: a
// SafetensorsFile owns its File. Thread rule: reading is const and safe from many threads; a writer
// belongs to one. Errors: InputError for a file that is wrong (path, tensor or byte, expected,
// found), WorkError when a device fails. A file that could not be completed never appears under its
// name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/storage.h"
#include "weights/format.h"

namespace k3 {

class Shape {
 public:
  static constexpr size_t kMaxRank = 5;

  Shape() = default;  // a scalar
  Shape(std::initializer_list<int64_t> dims);
  void push_back(int64_t dim);

  size_t rank() const { return rank_; }
  int64_t operator[](size_t i) const { return dims_[i]; }
  int64_t elements() const;
  bool operator==(const Shape& other) const;
  std::string text() const;  // "[16, 64]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  uint8_t rank_ = 0;
};

struct TensorInfo {
  Dtype dtype = Dtype::kU8;
  Shape shape;
  uint64_t offset = 0;  // of the first byte, in the file
  uint64_t bytes = 0;
};

using Metadata = std::map<std::string, std::string>;
using TensorVisitor = std::function<void(std::string_view name, const TensorInfo& info)>;

// Longer headers are refused, as the reference implementation does.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Calls `visit` for each tensor in header order; the name is valid during the call only. Checked:
// the header's length, every byte of its JSON, types, shapes, sizes, ranges, overlaps, repeated
// names, and that the file is exactly as long as the header says. Overlaps, repeats and the length
// are known only at the end, so `visit` may have seen tensors of a file that is then refused.
void parse_safetensors_header(const File& file, const TensorVisitor& visit,
                              Metadata* metadata = nullptr);

// The two halves of it: the JSON text (its length checked against the file), and its parse.
// `file_size` is the size of the whole file.
std::string read_safetensors_header(const File& file);
void parse_safetensors_header(std::string_view json, std::string_view path, uint64_t file_size,
                              const TensorVisitor& visit, Metadata* metadata = nullptr);

// The weight_map of a model.safetensors.index.json: calls `visit(tensor name, file name)` in order.
void parse_safetensors_index(std::string_view json, std::string_view path,
                             const std::function<void(std::string_view, std::string_view)>& visit);

// Names to tensors of one file, for goldens, traces, checkpoints and tests.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const Storage& storage, const std::string& path);

  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }
  const Metadata& metadata() const { return metadata_; }
  const File& file() const { return *file_; }
  bool has(std::string_view name) const { return tensors_.contains(name); }
  const TensorInfo& info(std::string_view name) const;  // throws, naming the tensor

  std::vector<std::byte> bytes(std::string_view name) const;
  std::vector<float> floats(std::string_view name) const;      // F32, BF16, F16, U8, I32
  std::vector<int64_t> integers(std::string_view name) const;  // I32, I64, U8

 private:
  std::unique_ptr<File> file_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  Metadata metadata_;
};

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape;
  uint64_t bytes() const;
};

// Writes the header at once and the data as it comes, tensor after tensor in the order of `tensors`
// (put wide types first if readers should find them aligned). Nothing appears under `path` before
// finish(), nor if it is never called.
class SafetensorsWriter {
 public:
  SafetensorsWriter(Storage& storage, const std::string& path,
                    const std::vector<TensorSpec>& tensors, const Metadata& metadata = {});
  void append(std::span<const std::byte> data);  // the next bytes, in pieces of any size
  void finish();                                 // WorkError unless exactly all bytes were appended

 private:
  std::string path_;
  std::unique_ptr<Writer> writer_;
  uint64_t expected_ = 0, written_ = 0;
};

struct TensorData {
  TensorSpec spec;
  std::span<const std::byte> data;
};
void write_safetensors(Storage& storage, const std::string& path,
                       const std::vector<TensorData>& tensors, const Metadata& metadata = {});

// `count` stored elements widened to float. U8 and I32 become their numbers.
void widen_to_float(Dtype dtype, const std::byte* data, int64_t count, float* out);

}  // namespace k3

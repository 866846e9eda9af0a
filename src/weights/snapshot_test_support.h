// A fixture model taken apart in memory, so that a test can spoil one thing and put it together.
//
//   EditableModel m("tiny-text");
//   m.tensor("language_model.lm_head.weight").shape = {64, 512};
//   EXPECT_EQ(m.open_error(), "...");
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/storage.h"
#include "weights/snapshot.h"

namespace k3 {

inline std::string read_disk(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline std::string fixture(const std::string& path) {
  return std::string(K3_FIXTURES) + "/" + path;
}
inline std::string shared_file(const std::string& path) {
  return std::string(K3_SHARED) + "/" + path;
}

// What a call says when it must fail, always on one line.
template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const InputError& error) {
    const std::string line = error.what();
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_FALSE(line.empty());
    return line;
  }
  return "";
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "k3-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  size_t files() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

class EditableModel {
 public:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string data;
  };

  explicit EditableModel(const std::string& name) {
    const std::string dir = fixture(name + "/model/");
    config = nlohmann::json::parse(read_disk(dir + "config.json"));
    index = nlohmann::json::parse(read_disk(dir + "model.safetensors.index.json"));
    for (const auto& [tensor, shard] : index["weight_map"].items()) {
      const auto file = shard.get<std::string>();
      if (!shards.contains(file)) read_shard(dir + file, shards[file]);
    }
  }

  Tensor& tensor(const std::string& name) {
    return shards.at(index["weight_map"].at(name).get<std::string>()).at(name);
  }
  std::string shard_of(const std::string& name) { return index["weight_map"].at(name); }

  void add(const std::string& name, const std::string& shard, Tensor tensor) {
    index["weight_map"][name] = shard;
    shards[shard][name] = std::move(tensor);
  }
  void remove(const std::string& name) {
    shards.at(shard_of(name)).erase(name);
    index["weight_map"].erase(name);
  }

  static std::string shard_bytes(const std::map<std::string, Tensor>& tensors) {
    nlohmann::ordered_json header;
    std::string data;
    for (const auto& [name, t] : tensors) {
      header[name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.data.size()}}};
      data += t.data;
    }
    const std::string text = header.dump();
    std::string prefix(8, '\0');
    for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(text.size() >> (8 * i));
    return prefix + text + data;
  }

  void put(MemoryStorage& storage) const {
    storage.put("m/config.json", config.dump());
    storage.put("m/model.safetensors.index.json", index.dump());
    for (const auto& [file, tensors] : shards) storage.put("m/" + file, shard_bytes(tensors));
  }
  Snapshot open(MemoryStorage& storage) const {
    put(storage);
    return Snapshot::open(storage, "m");
  }
  std::string open_error() const {
    MemoryStorage storage;
    return error_of([&] { open(storage); });
  }
  std::vector<std::string> problems() const {
    MemoryStorage storage;
    put(storage);
    std::vector<std::string> found;
    Snapshot::open(storage, "m", &found);
    return found;
  }

  nlohmann::json config, index;
  std::map<std::string, std::map<std::string, Tensor>> shards;

 private:
  static void read_shard(const std::string& path, std::map<std::string, Tensor>& out) {
    const DiskStorage disk;
    const auto file = SafetensorsFile::open(disk, path);
    for (const auto& [name, info] : file.tensors()) {
      Tensor t;
      t.dtype = k3::name(info.dtype);
      for (size_t i = 0; i < info.shape.rank(); ++i) t.shape.push_back(info.shape[i]);
      t.data.resize(info.bytes);
      file.file().read(info.offset, std::as_writable_bytes(std::span(t.data)));
      out.emplace(name, std::move(t));
    }
  }
};

}  // namespace k3

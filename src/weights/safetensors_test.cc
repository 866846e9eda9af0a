#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "weights/snapshot_test_support.h"

namespace k3 {
namespace {

std::string with_length(const std::string& json, const std::string& data = "") {
  std::string prefix(8, '\0');
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(json.size() >> (8 * i));
  return prefix + json + data;
}

std::string open_error(const std::string& content) {
  MemoryStorage storage;
  storage.put("x.safetensors", content);
  const std::string error = error_of([&] { SafetensorsFile::open(storage, "x.safetensors"); });
  EXPECT_TRUE(error.empty() || error.starts_with("x.safetensors: ")) << error;
  return error;
}

const std::string kGood =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";

TEST(Safetensors, RoundTrip) {
  const float f[] = {1.5f, -2, 0, 3, 4, 5};
  const uint16_t half[] = {0x3f80, 0xc000};
  const int32_t i[] = {-7, 1 << 30};
  const int64_t l[] = {-5};
  const uint8_t u[] = {0, 255};
  MemoryStorage storage;
  write_safetensors(storage, "x",
                    {{{"f", Dtype::kF32, {2, 3}}, std::as_bytes(std::span(f))},
                     {{"bf", Dtype::kBf16, {2, 1}}, std::as_bytes(std::span(half))},
                     {{"i", Dtype::kI32, {2}}, std::as_bytes(std::span(i))},
                     {{"l", Dtype::kI64, {}}, std::as_bytes(std::span(l))},
                     {{"u", Dtype::kU8, {1, 1, 1, 1, 2}}, std::as_bytes(std::span(u))},
                     {{"empty", Dtype::kF32, {4, 0}}, {}},
                     {{"né \"\\\n\t/ 名", Dtype::kU8, {2}}, std::as_bytes(std::span(u))}},
                    {{"format", "pt"}, {"note", "a \"quote\""}});
  EXPECT_EQ(storage.get("x").size() % 8, (24 + 4 + 8 + 8 + 2 + 2) % 8u);  // the header is padded
  const auto file = SafetensorsFile::open(storage, "x");
  EXPECT_EQ(file.tensors().size(), 7u);
  EXPECT_EQ(file.metadata().at("note"), "a \"quote\"");
  EXPECT_EQ(file.floats("f"), std::vector<float>(std::begin(f), std::end(f)));
  EXPECT_EQ(file.info("f").shape, (Shape{2, 3}));
  EXPECT_EQ(file.floats("bf"), (std::vector<float>{1, -2}));
  EXPECT_EQ(file.integers("i"), (std::vector<int64_t>{-7, 1 << 30}));
  EXPECT_EQ(file.integers("l"), (std::vector<int64_t>{-5}));
  EXPECT_EQ(file.info("l").shape.rank(), 0u);
  EXPECT_EQ(file.floats("u"), (std::vector<float>{0, 255}));
  EXPECT_TRUE(file.floats("empty").empty());
  EXPECT_EQ(file.bytes("né \"\\\n\t/ 名").size(), 2u);
  EXPECT_EQ(error_of([&] { file.info("g"); }), "x: tensor 'g': not in the file");
  EXPECT_EQ(error_of([&] { file.integers("f"); }),
            "x: tensor 'f': expected I32, I64 or U8, found F32");
}

TEST(Safetensors, StreamedInPiecesOfAnySize) {
  MemoryStorage storage;
  SafetensorsWriter writer(storage, "x", {{"a", Dtype::kU8, {300}}, {"b", Dtype::kU8, {200}}});
  std::vector<std::byte> data(500);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31);
  for (size_t at = 0; at < 500; at += 125) writer.append(std::span(data).subspan(at, 125));
  EXPECT_FALSE(storage.exists("x"));
  writer.finish();
  const auto file = SafetensorsFile::open(storage, "x");
  EXPECT_EQ(file.bytes("b"), std::vector<std::byte>(data.begin() + 300, data.end()));
}

TEST(Safetensors, UnfinishedWorkLeavesNothing) {
  TemporaryFolder folder;
  DiskStorage disk;
  {
    SafetensorsWriter writer(disk, folder / "x", {{"a", Dtype::kU8, {4}}});
    writer.append(std::vector<std::byte>(3));
    EXPECT_THROW(writer.finish(), WorkError);  // a byte short
  }
  EXPECT_EQ(folder.files(), 0u);
  MemoryStorage memory;
  FaultyStorage full(memory, [](const FaultyStorage::Read&) {});
  EXPECT_THROW(write_safetensors(full, "x", {}), WorkError);
}

TEST(Safetensors, GoodHeadersInOddDress) {
  EXPECT_EQ(open_error(with_length(kGood, std::string(11, 'x'))), "");
  EXPECT_EQ(open_error(with_length("{}")), "");
  EXPECT_EQ(open_error(with_length("{ }      ")), "");
  MemoryStorage storage;
  storage.put("x",
              with_length("\n{ \"\\u0061\\n\\ud83d\\ude00\" : { \"data_offsets\" : [ 2 , 4 ] , "
                          "\"shape\":[ 2 ],\r\n\"dtype\"\t:\"U8\"}, \"z\":{\"dtype\":\"U8\","
                          "\"shape\":[2],\"data_offsets\":[0,2]} }  ",
                          "wxyz"));
  const auto file = SafetensorsFile::open(storage, "x");
  EXPECT_EQ(file.bytes("a\n\U0001F600")[0], std::byte{'y'});
  EXPECT_EQ(file.bytes("z")[0], std::byte{'w'});  // data order is not header order
}

TEST(Safetensors, WrongHeadersAreNamed) {
  const auto tensor = [](const std::string& body) { return "{\"t\":{" + body + "}}"; };
  const std::pair<std::string, std::string> cases[] = {
      {"[]", "byte 8: expected an object, found '[]'"},
      {"{} x", "byte 11: expected nothing more, found 'x'"},
      {"{\"a\":", "expected an object, found the end"},
      {"{\"a\" 1}", "expected ':', found '1}'"},
      {"{\"a\x01\":{}}", "a string without control bytes"},
      {"{\"\xff\":{}}", "a string in UTF-8"},
      {"{\"\\q\":{}}", "expected an escape"},
      {"{\"\\u12g4\":{}}", "four hexadecimal digits"},
      {"{\"\\ud800\":{}}", "a surrogate pair"},
      {"{\"\\udc00\":{}}", "a surrogate pair"},
      {"{\"abc", "the end of a string"},
      {tensor(""),
       "tensor 't': expected one dtype, one shape and one data_offsets, found 0, 0 and 0"},
      {tensor(R"("dtype":"F64","shape":[],"data_offsets":[0,8])"),
       "tensor 't': dtype: expected one of"},
      {tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1],"data_offsets":[0,1])"),
       "at most 5 dimensions"},
      {tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"),
       "a whole number from 0, found '-1]"},
      {tensor(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), "a whole number from 0"},
      {tensor(R"("dtype":"U8","shape":[01],"data_offsets":[0,1])"), "a whole number from 0"},
      {tensor(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1])"), "below 2^63"},
      {tensor(R"("dtype":"U8","shape":[2],"data_offsets":[0,1])"),
       "span 2 bytes for [2] of U8, found [0, 1]"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), "found [1, 0]"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), "two offsets"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), "two offsets"},
      {tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"),
       "found [0, 0]"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1)"), "found 'x'"},
      {tensor(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), "found 2, 1 and 1"},
      {tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"),
       "size: expected 62 bytes by the header, found 61"},
      {R"({"__metadata__":{"a":1}})", "a string, found '1}}'"},
      {R"({"__metadata__":{},"__metadata__":{}})", "__metadata__: expected once"},
      {R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       "tensor 't': expected one entry in the header, found two"},
      {R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0074":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       "tensor 't': expected one entry in the header, found two"},
      {R"({"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"u":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
       "tensor 'u': expected data from byte 3 of the data on, found an overlap at 2"},
  };
  for (const auto& [json, expected] : cases)
    EXPECT_NE(open_error(with_length(json)).find(expected), std::string::npos)
        << json << " gave: " << open_error(with_length(json));
}

TEST(Safetensors, EveryLengthButTheRightOneIsRefused) {
  const std::string good = with_length(kGood, std::string(11, 'x'));
  for (size_t n = 0; n < good.size(); ++n) EXPECT_NE(open_error(good.substr(0, n)), "") << n;
  EXPECT_EQ(open_error(good), "");
  const std::string longer = open_error(good + "x");
  EXPECT_NE(longer.find(fmt::format("expected {} bytes by the header, found {} bytes", good.size(),
                                    good.size() + 1)),
            std::string::npos)
      << longer;
  EXPECT_EQ(open_error(std::string(7, '\0')),
            "x.safetensors: size: expected at least 8 bytes, found 7 bytes");
  EXPECT_NE(open_error(std::string(8, '\xff')).find("header: expected 2 to 100000000 bytes"),
            std::string::npos);
}

TEST(Safetensors, DeepMetadataCannotExhaustTheStack) {
  MemoryStorage storage;
  std::string deep = "{\"metadata\":" + std::string(100000, '[');
  EXPECT_NE(
      error_of([&] { parse_safetensors_index(deep, "i", [](auto, auto) {}); }).find("64 deep"),
      std::string::npos);
}

TEST(Safetensors, IndexFormsAndErrors) {
  std::vector<std::string> seen;
  const auto parse = [&](const std::string& json) {
    seen.clear();
    return error_of([&] {
      parse_safetensors_index(json, "i.json", [&](std::string_view tensor, std::string_view file) {
        seen.push_back(fmt::format("{}={}", tensor, file));
      });
    });
  };
  EXPECT_EQ(
      parse(
          R"({"metadata":{"total_size":1.5e3,"x":[true,false,null,-0.1]},"weight_map":{"a":"f","\u0062":"\u0067"}})"),
      "");
  EXPECT_EQ(seen, (std::vector<std::string>{"a=f", "b=g"}));
  EXPECT_EQ(parse("{}"), "i.json: weight_map: expected an object of tensor names, found none");
  EXPECT_NE(parse(R"({"weight_map":{"a":1}})").find("expected a string, found '1}}'"),
            std::string::npos);
  EXPECT_NE(parse(R"({"weight_map":{},"weight_map":{}})").find("expected once"), std::string::npos);
  for (const char* bad :
       {"nul", "01", "1.", "1e", "-", "tru", "{\"a\"}", "[1,]", "[1 2]", "", "\"", "'a'"})
    EXPECT_NE(parse(std::string("{\"x\":") + bad + ",\"weight_map\":{}}"), "") << bad;
}

// Deterministic damage to a real header: bytes flipped, cut, doubled, swapped for likely ones.
std::string damaged(std::string text, std::mt19937& rng) {
  const std::string likely = "\"\\{}[],:0123456789-.eE \xff\x00";
  const int edits = 1 + static_cast<int>(rng() % 4);
  for (int i = 0; i < edits && !text.empty(); ++i) {
    const size_t at = rng() % text.size();
    switch (rng() % 5) {
      case 0:
        text[at] = static_cast<char>(rng());
        break;
      case 1:
        text[at] = likely[rng() % likely.size()];
        break;
      case 2:
        text.erase(at, 1 + rng() % 20);
        break;
      case 3:
        text.insert(at, text.substr(rng() % text.size(), rng() % 30));
        break;
      default:
        text.insert(at, 1, likely[rng() % likely.size()]);
    }
  }
  return text;
}

TEST(Safetensors, DamagedFilesNeverCrash) {
  const std::string good =
      read_disk(fixture("tiny-vl/model/model-00001-of-000003.safetensors")).substr(0, 12744);
  const std::string small = with_length(kGood, std::string(11, 'x'));
  std::mt19937 rng(1);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string json = damaged(i % 2 ? kGood : good.substr(8), rng);
    MemoryStorage storage;
    // With a right length prefix, so that the damage reaches the parser; sometimes without.
    storage.put("x", i % 7 == 0 ? damaged(small, rng) : with_length(json, std::string(11, 'x')));
    try {
      const auto file = SafetensorsFile::open(storage, "x");
      for (const auto& [name, info] : file.tensors())
        EXPECT_EQ(file.bytes(name).size(), info.bytes);
    } catch (const InputError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(Safetensors, ReadFaultsComeThrough) {
  MemoryStorage memory;
  memory.put("x", with_length(kGood, std::string(11, 'x')));
  for (uint64_t failing = 0; failing < 2; ++failing) {
    const FaultyStorage faulty(memory, [&](const FaultyStorage::Read& read) {
      if (read.index == failing) throw WorkError("x: read failed: EIO");
    });
    EXPECT_THROW(SafetensorsFile::open(faulty, "x"), WorkError);
  }
}

TEST(Safetensors, GoldenFilesOpen) {
  const DiskStorage disk;
  for (const char* model : {"tiny-text", "tiny-odd", "tiny-linear", "tiny-vl"}) {
    const auto file =
        SafetensorsFile::open(disk, fixture(std::string(model) + "/golden.safetensors"));
    EXPECT_EQ(file.info("p5.logits").shape[0], 5);
    EXPECT_EQ(file.info("p70.layers.2.topk_ids").dtype, Dtype::kI32);
    EXPECT_EQ(file.floats("p5.logits").size(),
              static_cast<size_t>(file.info("p5.logits").shape.elements()));
  }
}

TEST(Safetensors, ShapesOfEmptyTensorsDoNotOverflow) {
  const Shape shape{int64_t{1} << 62, int64_t{1} << 62, 0};
  EXPECT_EQ(shape.elements(), 0);
  EXPECT_EQ(shape.text(), "[4611686018427387904, 4611686018427387904, 0]");
}

}  // namespace
}  // namespace k3

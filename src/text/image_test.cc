// Tests of image_size.h and image_plan.h.
#include "base/error.h"
#include "text/image_plan.h"
#include "text/image_size.h"
#include "text/test_support.h"

namespace k3 {
namespace {

std::string little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

std::string big(uint64_t value, int bytes) {
  std::string out = little(value, bytes);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string png(uint32_t width, uint32_t height) {
  return "\x89PNG\r\n\x1a\n" + big(13, 4) + "IHDR" + big(width, 4) + big(height, 4) + "\x08\x06";
}

std::string jpeg_segment(int marker, const std::string& body) {
  return std::string("\xff") + static_cast<char>(marker) + big(body.size() + 2, 2) + body;
}

std::string jpeg(int frame, uint32_t width, uint32_t height) {
  return "\xff\xd8" + jpeg_segment(0xe0, "JFIF") + "\xff\xff" +
         jpeg_segment(0xe1, std::string("\xff\xc0\x00\x11\x08\x00\x01\x00\x01", 9)) +
         jpeg_segment(0xc4, "tables") +
         jpeg_segment(frame, "\x08" + big(height, 2) + big(width, 2) + "\x03");
}

std::string bmp(int64_t width, int64_t height) {
  return "BM" + std::string(12, '\0') + little(40, 4) + little(static_cast<uint64_t>(width), 4) +
         little(static_cast<uint64_t>(height), 4) + std::string(28, '\0');
}

std::string webp(const std::string& chunk, const std::string& body) {
  return "RIFF" + little(body.size() + 12, 4) + "WEBP" + chunk + little(body.size(), 4) + body;
}

std::vector<std::pair<std::string, ImageSize>> samples() {
  return {
      {png(640, 480), {640, 480}},
      {png(0x7fffffff, 1), {0x7fffffff, 1}},
      {jpeg(0xc0, 640, 480), {640, 480}},
      {jpeg(0xc2, 65535, 1), {65535, 1}},
      {jpeg(0xcf, 3, 2), {3, 2}},
      {"GIF89a" + little(320, 2) + little(200, 2), {320, 200}},
      {"GIF87a" + little(1, 2) + little(65535, 2), {1, 65535}},
      {bmp(17, 19), {17, 19}},
      {bmp(17, -19), {17, 19}},
      {"BM" + std::string(12, '\0') + little(12, 4) + little(7, 2) + little(9, 2), {7, 9}},
      {webp("VP8 ",
            std::string("\x10\x02\x00\x9d\x01\x2a", 6) + little(0x4000 | 550, 2) + little(368, 2)),
       {550, 368}},
      {webp("VP8L", "\x2f" + little(uint64_t{399} | uint64_t{299} << 14, 4)), {400, 300}},
      {webp("VP8X", std::string(4, '\0') + little(99999, 3) + little(4, 3)), {100000, 5}},
  };
}

TEST(ImageSize, ReadsEveryFormat) {
  for (const auto& [bytes, expected] : samples()) {
    const ImageSize size = read_image_size(bytes, "test");
    EXPECT_EQ(size.width, expected.width) << bytes.substr(0, 4);
    EXPECT_EQ(size.height, expected.height) << bytes.substr(0, 4);
  }
}

TEST(ImageSize, RefusesHostileHeaders) {
  const std::string endless_jpeg = "\xff\xd8" + std::string(1 << 20, '\xff');
  for (const std::string& bytes : {std::string(),
                                   std::string("hello"),
                                   png(0, 5),
                                   png(5, 0x80000000),
                                   png(5, 0xffffffff),
                                   jpeg(0xc0, 0, 5),
                                   jpeg(0xc0, 5, 0),
                                   bmp(-3, 3),
                                   bmp(0, 3),
                                   bmp(3, int64_t{-1} << 31),
                                   "BM" + std::string(12, '\0') + little(0xffffffff, 4),
                                   endless_jpeg,
                                   "\xff\xd8" + jpeg_segment(0xda, ""),
                                   std::string("\xff\xd8\xff\xe0\x00\x01", 6),
                                   "\xff\xd8" + std::string("\xff\xe0\x00\x00", 4),
                                   "\xff\xd8" + std::string("\xff\xd9"),
                                   "GIF89a" + little(0, 4),
                                   webp("VP8L", "....."),
                                   webp("ANIM", "abcdefgh"),
                                   webp("VP8 ", "abcdefghijk")})
    EXPECT_THROW(read_image_size(bytes, "test"), InputError) << bytes.substr(0, 30);
}

TEST(ImageSize, SurvivesEveryCutAndRandomDamage) {
  test::Random random(5);
  for (const auto& [bytes, size] : samples()) {
    for (size_t length = 0; length < bytes.size(); ++length) try {
        read_image_size(bytes.substr(0, length), "test");
      } catch (const InputError&) {
      }
    for (int i = 0; i < 2000; ++i) {
      std::string damaged = bytes;
      for (size_t n = 1 + random.below(4); n > 0; --n)
        damaged[random.below(damaged.size())] = static_cast<char>(random.next());
      try {
        const ImageSize found = read_image_size(damaged, "test");
        EXPECT_GE(found.width, 1);
        EXPECT_GE(found.height, 1);
        EXPECT_GE(plan_image(found.width, found.height, {}).num_tokens, 1);
      } catch (const InputError&) {
      }
    }
  }
}

TEST(ImagePlan, MatchesTheFixture) {
  const auto cases = test::fixture_cases("chat/image_plan.json");
  EXPECT_GT(cases.size(), 10u);
  for (const auto& c : cases) {
    const ImagePlan plan = plan_image(c["width"], c["height"], {});
    const std::string name = fmt::format("{}x{}", c["width"].get<int>(), c["height"].get<int>());
    EXPECT_EQ(plan.width, c["new_width"]) << name;
    EXPECT_EQ(plan.height, c["new_height"]) << name;
    EXPECT_EQ(plan.pad_width, c["pad_width"]) << name;
    EXPECT_EQ(plan.pad_height, c["pad_height"]) << name;
    EXPECT_EQ(plan.grid_height, c["grid_thw"][1]) << name;
    EXPECT_EQ(plan.grid_width, c["grid_thw"][2]) << name;
    EXPECT_EQ(plan.num_tokens, c["num_tokens"]) << name;
  }
}

TEST(ImagePlan, PassesTheLimitOnlyByPadding) {
  EXPECT_EQ(plan_image(8000, 8000, {}).num_tokens, 16641);
  EXPECT_EQ(plan_image(0x7fffffff, 0x7fffffff, {}).grid_width, 256);
  EXPECT_EQ(plan_image(0x7fffffff, 1, {}).num_tokens, 256);
}

TEST(ImagePlan, ReadsTheSettingsOfTheFolder) {
  MemoryStorage storage;
  EXPECT_EQ(load_image_plan_settings(storage, "m").in_patch_limit, 65536);
  const auto load = [&](const std::string& config) {
    storage.put("m/preprocessor_config.json", config);
    return load_image_plan_settings(storage, "m");
  };
  const ImagePlanSettings tiny =
      load(R"({"media_proc_cfg":{"in_patch_limit":64,"patch_size":7,"merge_kernel_size":3,)"
           R"("patch_limit_on_one_side":20,"fixed_output_tokens":null}})");
  EXPECT_EQ(tiny.in_patch_limit, 64);
  EXPECT_EQ(tiny.patch_size, 7);
  EXPECT_EQ(tiny.merge_kernel_size, 3);
  EXPECT_EQ(tiny.patch_limit_on_one_side, 20);
  const ImagePlan plan = plan_image(1000, 10, tiny);
  EXPECT_EQ(plan.width, 140);
  EXPECT_EQ(plan.height, 1);
  EXPECT_EQ(plan.grid_width, 21);
  EXPECT_EQ(plan.num_tokens, 7);
  EXPECT_EQ(load("{}").patch_size, 14);
  for (const char* config :
       {R"({"media_proc_cfg":{"patch_size":0}})", R"({"media_proc_cfg":{"patch_size":"14"}})",
        R"({"media_proc_cfg":{"in_patch_limit":-1}})",
        R"({"media_proc_cfg":{"fixed_output_tokens":256}})", "{"})
    EXPECT_THROW(load(config), InputError) << config;
}

}  // namespace
}  // namespace k3

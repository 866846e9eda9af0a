#include "weights/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/storage.h"
#include "weights/format.h"
#include "weights/safetensors.h"

namespace k3 {
namespace {

SafetensorsFile golden() {
  return SafetensorsFile::open(DiskStorage(),
                               std::string(K3_FIXTURES) + "/components/mxfp4.safetensors");
}

struct Packed {
  Packed(const std::vector<float>& x, Mxfp4Rule rule)
      : nibbles(x.size() / 2), scales(x.size() / kBlock), values(x.size()) {
    const auto cols = static_cast<int64_t>(x.size());
    pack_mxfp4(x.data(), cols, rule, nibbles.data(), scales.data());
    unpack_mxfp4(nibbles.data(), scales.data(), cols, values.data());
  }
  std::vector<std::byte> nibbles, scales;
  std::vector<float> values;
};

TEST(Mxfp4, BothRulesOfTheFixturesBitForBit) {
  const SafetensorsFile file = golden();
  const std::vector<float> x = file.floats("quant_input");
  for (const auto& [rule, prefix] : {std::pair{Mxfp4Rule::kEven, std::string("near")},
                                     {Mxfp4Rule::kFloor, std::string("floor")}}) {
    const Packed p(x, rule);
    EXPECT_EQ(p.nibbles, file.bytes(prefix + "_packed")) << prefix;
    EXPECT_EQ(p.scales, file.bytes(prefix + "_scale")) << prefix;
    const std::vector<float> values = file.floats(prefix + "_value");
    EXPECT_EQ(std::memcmp(p.values.data(), values.data(), values.size() * 4), 0) << prefix;
  }
}

TEST(Mxfp4, CodesAndTies) {
  // One block whose scale is 1: the largest magnitude is 6 (4 under kFloor and kEven is 2^2).
  const float in[] = {6,    0,    0.25f, 0.26f, 0.75f, 0.74f, 1.25f, 1.75f, 2.5f,  2.6f,
                      3.5f, 3.4f, 5.0f,  4.9f,  5.1f,  -0.0f, -0.3f, -5,    -5.5f, 4.0f};
  const float out[] = {6, 0, 0, 0.5f, 1, 0.5f,  1,     2,  2,  3,
                       4, 3, 4, 4,    6, -0.0f, -0.5f, -4, -6, 4.0f};
  std::vector<float> x(kBlock, 0.0f);
  std::copy(std::begin(in), std::end(in), x.begin());
  for (const Mxfp4Rule rule : {Mxfp4Rule::kEven, Mxfp4Rule::kFloor, Mxfp4Rule::kRceil}) {
    const Packed p(x, rule);
    EXPECT_EQ(static_cast<int>(p.scales[0]), 127) << name(rule);
    for (size_t i = 0; i < std::size(out); ++i) {
      EXPECT_EQ(p.values[i], out[i]) << name(rule) << " " << in[i];
      EXPECT_EQ(std::signbit(p.values[i]), std::signbit(out[i])) << in[i];
    }
  }
}

TEST(Mxfp4, ScalesByRule) {
  const auto scale = [](float amax, Mxfp4Rule rule) {
    std::vector<float> x(kBlock, 0.0f);
    x[5] = -amax;
    return static_cast<int>(Packed(x, rule).scales[0]) - 127;
  };
  EXPECT_EQ(scale(7, Mxfp4Rule::kFloor), 0);
  EXPECT_EQ(scale(7, Mxfp4Rule::kEven), 1);  // 1.75 * 4
  EXPECT_EQ(scale(6.9f, Mxfp4Rule::kEven), 0);
  EXPECT_EQ(scale(6.999f, Mxfp4Rule::kEven), 1);  // rounds to 7 in bfloat16
  EXPECT_EQ(scale(7.999f, Mxfp4Rule::kEven), 1);  // rounds to 8
  EXPECT_EQ(scale(6, Mxfp4Rule::kRceil), 0);
  EXPECT_EQ(scale(6.0001f, Mxfp4Rule::kRceil), 1);
  EXPECT_EQ(scale(0, Mxfp4Rule::kEven), -127);
  EXPECT_EQ(scale(0x1p-149f, Mxfp4Rule::kEven), -127);  // nothing smaller is to be had
  EXPECT_EQ(scale(0x1.fffffep127f, Mxfp4Rule::kRceil), 126);
}

TEST(Mxfp4, WhatIsRepresentableComesBackUnchanged) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(kBlock * 200);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(i / kBlock) % 40 - 20);
  for (const Mxfp4Rule rule : {Mxfp4Rule::kEven, Mxfp4Rule::kFloor, Mxfp4Rule::kRceil}) {
    const Packed once(x, rule), twice(once.values, rule);
    EXPECT_EQ(std::memcmp(once.values.data(), twice.values.data(), x.size() * 4), 0) << name(rule);
    // Under kRceil a block whose largest code is 3 takes half the scale the second time.
    if (rule != Mxfp4Rule::kRceil) {
      EXPECT_EQ(once.nibbles, twice.nibbles) << name(rule);
      EXPECT_EQ(once.scales, twice.scales) << name(rule);
    }
  }
}

// training.md 6: relative root mean square errors on Gaussian blocks.
TEST(Mxfp4, ErrorsOfTheRules) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(kBlock * 20000);
  for (float& v : x) v = normal(random);
  const auto error = [&](Mxfp4Rule rule) {
    const Packed p(x, rule);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      sum += (double{p.values[i]} - x[i]) * (double{p.values[i]} - x[i]);
      squares += double{x[i]} * x[i];
    }
    return std::sqrt(sum / squares);
  };
  EXPECT_NEAR(error(Mxfp4Rule::kEven), 0.1118, 5e-4);
  EXPECT_NEAR(error(Mxfp4Rule::kFloor), 0.1149, 5e-4);
  EXPECT_NEAR(error(Mxfp4Rule::kRceil), 0.1153, 5e-4);
}

}  // namespace
}  // namespace k3

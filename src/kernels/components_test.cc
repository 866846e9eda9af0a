// The golden components of tests/fixtures/components, within the bounds of its README: 1e-5 for
// norms, decays, gates and KDA, 2e-6 for the rest, each also relative; MXFP4 values bit for bit.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/storage.h"
#include "kernels/kernels_testing.h"
#include "weights/safetensors.h"

namespace k3 {
namespace {

using namespace testing;

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  const float* f32() const { return reinterpret_cast<const float*>(bytes.data()); }
  uint8_t u8(int64_t i) const { return static_cast<uint8_t>(bytes[static_cast<size_t>(i)]); }
  int64_t size() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
};

std::map<std::string, Tensor> read_component(const std::string& name) {
  const auto file = SafetensorsFile::open(
      DiskStorage(), std::string(K3_FIXTURES) + "/components/" + name + ".safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [key, info] : file.tensors()) {
    Tensor& t = tensors[key];
    for (size_t i = 0; i < info.shape.rank(); ++i) t.shape.push_back(info.shape[i]);
    t.bytes = file.bytes(key);
  }
  return tensors;
}

void expect_near(const float* got, const Tensor& golden, double bound, const std::string& what) {
  for (int64_t i = 0; i < golden.size(); ++i) {
    const double exact = golden.f32()[i];
    ASSERT_NEAR(got[i], exact, bound + bound * std::abs(exact)) << what << " at " << i;
  }
}

class Components : public ::testing::TestWithParam<Isa> {
 protected:
  const Kernels& k = kernels(GetParam());
};

TEST_P(Components, RmsNorm) {
  for (const bool gated : {false, true}) {
    auto c = read_component(gated ? "rmsnorm_gated" : "rmsnorm");
    const int64_t n = c["x"].shape.back();
    std::vector<float> y(static_cast<size_t>(c["x"].size()));
    for (int64_t i = 0; i < c["x"].size(); i += n) {
      const float* x = c["x"].f32() + i;
      if (gated) {
        k.rms_norm_gated(x, c["weight"].f32(), c["gate"].f32() + i, 1e-5f, n, y.data() + i);
      } else {
        k.rms_norm(x, c["weight"].f32(), 1e-5f, n, y.data() + i);
      }
    }
    expect_near(y.data(), c["out"], 1e-5, gated ? "gated" : "plain");
  }
}

TEST_P(Components, Situ) {
  for (const char* name : {"situ", "situ_nolinear"}) {
    auto c = read_component(name);
    const int64_t n = c["gate"].size();
    std::vector<float> y(static_cast<size_t>(n));
    k.situ_mul(c["gate"].f32(), c["up"].f32(), 4, std::string(name) == "situ" ? 25 : 0, n,
               y.data());
    expect_near(y.data(), c["out"], 1e-5, name);
  }
}

TEST_P(Components, AttentionResiduals) {
  for (const char* name : {"attn_res", "attn_res_one_block"}) {
    auto c = read_component(name);
    const int64_t n = c["norm_weight"].size(), tokens = c["prefix_sum"].size() / n,
                  blocks = c["block_residual"].size() / n / tokens;
    std::vector<float> query, y(static_cast<size_t>(n * tokens));
    for (int64_t i = 0; i < n; ++i) {
      query.push_back(c["norm_weight"].f32()[i] * c["proj_weight"].f32()[i]);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<const float*> v;
      for (int64_t b = 0; b < blocks; ++b) {
        v.push_back(c["block_residual"].f32() + (t * blocks + b) * n);
      }
      v.push_back(c["prefix_sum"].f32() + t * n);
      k.mix_residuals(v.data(), blocks + 1, query.data(), 1e-5f, n, y.data() + t * n);
    }
    expect_near(y.data(), c["out"], 2e-6, name);
  }
}

// alpha of [tokens][heads][d] raw decays.
std::vector<float> decays(const Kernels& k, std::map<std::string, Tensor>& c, const Tensor& raw,
                          bool bounded) {
  const int64_t heads = raw.shape[1], d = raw.shape[2];
  std::vector<float> alpha(static_cast<size_t>(raw.size()));
  for (int64_t i = 0; i < raw.size(); i += d) {
    const int64_t h = i / d % heads;
    const float a = std::exp(c["A_log"].f32()[h]), *bias = c["dt_bias"].f32() + h * d;
    if (bounded) {
      k.decay_bounded(raw.f32() + i, bias, a, -5, d, alpha.data() + i);
    } else {
      k.decay_softplus(raw.f32() + i, bias, a, d, alpha.data() + i);
    }
  }
  return alpha;
}

TEST_P(Components, Decay) {
  for (const bool bounded : {true, false}) {
    auto c = read_component(bounded ? "decay_bounded" : "decay_softplus");
    const std::vector<float> alpha = decays(k, c, c["raw"], bounded);
    for (int64_t i = 0; i < c["raw"].size(); ++i) {
      const double exact = std::exp(double{c["log_decay"].f32()[i]});
      ASSERT_NEAR(alpha[static_cast<size_t>(i)], exact, 1e-5 * exact) << bounded << " at " << i;
    }
  }
}

TEST_P(Components, Kda) {
  for (const char* name : {"kda_bounded", "kda_softplus", "kda_long"}) {
    auto c = read_component(name);
    const int64_t tokens = c["q"].shape[0], heads = c["q"].shape[1], d = c["q"].shape[2];
    const int64_t n = tokens * heads * d, stride = heads * d, groups = ceil_div(d, 16);
    std::vector<float> q(static_cast<size_t>(n)), key(q), beta(static_cast<size_t>(tokens * heads)),
        out(q);
    std::vector<float> unit(q);
    for (int64_t i = 0; i < n; i += d) {
      k.l2_norm(c["q"].f32() + i, 1e-6f, 1, d, unit.data() + i);
      k.l2_norm(c["q"].f32() + i, 1e-6f, 1 / std::sqrt(static_cast<float>(d)), d, q.data() + i);
      k.l2_norm(c["k"].f32() + i, 1e-6f, 1, d, key.data() + i);
    }
    expect_near(unit.data(), c["q_unit"], 1e-5, "q_unit");
    expect_near(key.data(), c["k_unit"], 1e-5, "k_unit");
    k.sigmoid(c["beta"].f32(), tokens * heads, beta.data());
    expect_near(beta.data(), c["beta_sigmoid"], 1e-5, "beta_sigmoid");
    const std::vector<float> alpha = decays(k, c, c["g"], std::string(name) != "kda_softplus");
    std::vector<float> state(static_cast<size_t>(heads * groups * d * 16));
    const auto at = [&](int64_t h, int64_t value, int64_t channel) -> float& {
      return state[static_cast<size_t>(((h * groups + value / 16) * d + channel) * 16 +
                                       value % 16)];
    };
    std::vector<float> final_state(static_cast<size_t>(heads * d * d));
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < d * d; ++i) at(h, i / d, i % d) = c["state0"].f32()[h * d * d + i];
      KdaHead head;
      head.tokens = tokens;
      head.head_dim = d;
      head.q = q.data() + h * d;
      head.k = key.data() + h * d;
      head.v = c["v"].f32() + h * d;
      head.alpha = alpha.data() + h * d;
      head.stride = stride;
      head.beta = beta.data() + h;
      head.beta_stride = heads;
      head.out = out.data() + h * d;
      head.out_stride = stride;
      head.state = &at(h, 0, 0);
      k.kda(head, 0, groups);
      for (int64_t i = 0; i < d * d; ++i) {
        final_state[static_cast<size_t>(h * d * d + i)] = at(h, i / d, i % d);
      }
    }
    expect_near(out.data(), c["o"], 1e-5, name);
    expect_near(final_state.data(), c["state"], 1e-5, name);
  }
}

TEST_P(Components, ShortConv) {
  auto c = read_component("short_conv");
  const int64_t tokens = c["x"].shape[0], channels = c["x"].shape[1], width = 4;
  std::vector<float> w(static_cast<size_t>(width * channels)),
      y(static_cast<size_t>(tokens * channels));
  for (int64_t i = 0; i < width * channels; ++i) {  // stored [channel][tap]
    w[static_cast<size_t>(i % width * channels + i / width)] = c["weight"].f32()[i];
  }
  std::vector<float> history(static_cast<size_t>((width - 1) * channels));
  for (int64_t i = 0; i < channels; ++i) {  // the stored state holds one row more, the oldest
    for (int64_t j = 1; j < width; ++j) {
      history[static_cast<size_t>((j - 1) * channels + i)] = c["state0"].f32()[i * width + j];
    }
  }
  k.short_conv(c["x"].f32(), tokens, channels, channels, width, w.data(), history.data(), y.data());
  expect_near(y.data(), c["y"], 2e-6, "y");
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t j = 1; j < width; ++j) {
      ASSERT_EQ(history[static_cast<size_t>((j - 1) * channels + i)],
                c["state"].f32()[i * width + j]);
    }
  }
  std::fill(history.begin(), history.end(), 0.0f);
  k.short_conv(c["x"].f32(), 2, channels, channels, width, w.data(), history.data(), y.data());
  expect_near(y.data(), c["fresh_y"], 2e-6, "fresh_y");
}

// A product with unit vectors reads the weights back: code times factor, bit for bit.
TEST_P(Components, Mxfp4) {
  auto c = read_component("mxfp4");
  const Tensor &packed = c["dequant_packed"], &scale = c["dequant_scale"],
               &value = c["dequant_value"];
  const int64_t cols = packed.shape.back() * 2, rows = packed.size() * 2 / cols;
  for (int64_t r = 0; r < rows; ++r) {
    const auto refused = [&](int64_t block) {  // 255 is NaN, and such files are refused
      return scale.u8(r * cols / kBlock + block) == 255;
    };
    for (int64_t i = 0; i < cols; ++i) {
      const uint8_t byte = packed.u8((r * cols + i) / 2);
      const uint8_t e = scale.u8((r * cols + i) / kBlock);
      const float plain = kFp4Values[i % 2 == 0 ? byte & 15 : byte >> 4] * e8m0_value(e);
      const float golden = value.f32()[r * cols + i];
      if (std::isnan(golden)) {
        ASSERT_TRUE(std::isnan(plain));
        continue;
      }
      ASSERT_TRUE(same_bits(&plain, &golden, 1)) << "row " << r << " column " << i;
      // One block as a matrix of its own: no neighbour with an infinite value joins the sum.
      const int64_t block = i / kBlock;
      if (refused(block)) continue;
      const WeightView w{Layout::kMxfp4Rows, 1, kBlock,
                         packed.bytes.data() + (r * cols + block * kBlock) / 2,
                         scale.bytes.data() + r * cols / kBlock + block};
      float x[kBlock] = {}, y = -1;
      x[i % kBlock] = 1;
      Operand operand;
      operand.tokens = 1;
      operand.cols = operand.f32_stride = kBlock;
      operand.f32 = x;
      k.matmul(w, operand, &y, 1, 0, 1);
      ASSERT_EQ(y, golden) << "row " << r << " column " << i;  // -0 sums to +0
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Components, ::testing::ValuesIn(isas()),
                         [](const auto& target) { return name(target.param); });

}  // namespace
}  // namespace k3

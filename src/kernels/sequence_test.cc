// KDA and MLA: kernels over the tokens of a sequence.
#include <gtest/gtest.h>

#include <string>

#include "kernels/kernels_testing.h"

namespace k3 {
namespace {

using namespace testing;

// ---- KDA ----------------------------------------------------------------------------------------

struct KdaCase {
  int64_t tokens, d, groups;
  int64_t stride;
  Floats q, k, v, alpha, beta, state;

  KdaCase(int64_t n, int64_t head_dim, Random& random)
      : tokens(n),
        d(head_dim),
        groups(ceil_div(head_dim, 16)),
        stride(head_dim + 7),
        q(rows()),
        k(rows()),
        v(rows()),
        alpha(rows()),
        beta((n - 1) * 3 + 1),
        state(groups * head_dim * 16) {
    for (Floats* x : {&q, &k, &v}) {
      for (float& value : *x) value = random.normal();
    }
    for (float& value : alpha) value = static_cast<float>(std::exp(-5 * random.uniform()));
    for (float& value : beta) value = static_cast<float>(random.uniform());
    for (int64_t t = 0; t < n; ++t) {  // unit vectors, q scaled
      const Kernels& scalar = kernels(Isa::kScalar);
      float* row = q.data() + t * stride;
      scalar.l2_norm(row, 1e-6f, 1 / std::sqrt(static_cast<float>(d)), d, row);
      row = k.data() + t * stride;
      scalar.l2_norm(row, 1e-6f, 1, d, row);
    }
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < d * 16; ++i) {
        state[g * d * 16 + i] = g * 16 + i % 16 < d ? random.normal() : 0.0f;
      }
    }
  }
  int64_t rows() const { return (tokens - 1) * stride + d; }

  KdaHead head(int64_t first, int64_t count, float* s, float* out) const {
    KdaHead h;
    h.tokens = count;
    h.head_dim = d;
    h.q = q.data() + first * stride;
    h.k = k.data() + first * stride;
    h.v = v.data() + first * stride;
    h.alpha = alpha.data() + first * stride;
    h.stride = stride;
    h.beta = beta.data() + first * 3;
    h.beta_stride = 3;
    h.out = out + first * d;
    h.out_stride = d;
    h.state = s;
    return h;
  }
};

TEST(Kda, EveryTargetCutAndGroupingAgree) {
  Random random(1);
  for (const int64_t d : {16, 24, 32, 40, 64, 80, 128}) {
    for (const int64_t tokens : {1, 2, 9}) {
      const KdaCase c(tokens, d, random);
      Floats expected_state = copy(c.state), expected(tokens * d);
      kernels(Isa::kScalar)
          .kda(c.head(0, tokens, expected_state.data(), expected.data()), 0, c.groups);
      for (const Isa isa : isas()) {
        const Kernels& k = kernels(isa);
        const auto check = [&](const Floats& state, const Floats& out, const std::string& what) {
          ASSERT_TRUE(same_bits(out.data(), expected.data(), out.size()) &&
                      same_bits(state.data(), expected_state.data(), state.size()))
              << name(isa) << " d " << d << " tokens " << tokens << " " << what;
        };
        for (int64_t cut = 0; cut <= tokens; ++cut) {
          Floats state = copy(c.state), out(tokens * d);
          k.kda(c.head(0, cut, state.data(), out.data()), 0, c.groups);
          if (cut < tokens) k.kda(c.head(cut, tokens - cut, state.data(), out.data()), 0, c.groups);
          check(state, out, "cut " + std::to_string(cut));
        }
        for (int64_t split = 0; split <= c.groups; ++split) {
          Floats state = copy(c.state), out(tokens * d);
          k.kda(c.head(0, tokens, state.data(), out.data()), 0, split);
          k.kda(c.head(0, tokens, state.data(), out.data()), split, c.groups);
          check(state, out, "groups split at " + std::to_string(split));
        }
      }
      for (int64_t i = 0; i < c.groups * d * 16; ++i) {  // padding columns stay zero
        if (i / (d * 16) * 16 + i % 16 < d) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(expected_state[i]), 0u);
      }
    }
  }
}

// A step maps a column s to (I - beta k k') diag(alpha) s + beta k v; with alpha <= 1, |k| = 1 and
// beta <= 1 it does not enlarge differences, so the error of a column is at most the sum of what
// the steps add. A step rounds the decay (u |s|), the chain p (gamma_d |s|, as |k| = 1), the
// residual (2 u (|v| + |p|)) and the update (u |s| + u |r|): at most gamma_(d+8) (|s| + |v|). The
// output adds gamma_d |q| |s| and its correction, which is of the same size.
TEST(Kda, AgreesWithDouble) {
  Random random(2);
  for (const int64_t d : {24, 128}) {
    const int64_t tokens = 70;
    const KdaCase c(tokens, d, random);
    Floats state = copy(c.state), out(tokens * d);
    kernels(Isa::kScalar).kda(c.head(0, tokens, state.data(), out.data()), 0, c.groups);
    for (int64_t column = 0; column < d; ++column) {
      std::vector<double> s(static_cast<size_t>(d));
      const auto at = [&](int64_t i) { return column / 16 * d * 16 + i * 16 + column % 16; };
      for (int64_t i = 0; i < d; ++i) s[static_cast<size_t>(i)] = c.state[at(i)];
      double error = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        double p = 0, o = 0, norm = 0, q_norm = 0;
        for (int64_t i = 0; i < d; ++i) {
          norm += s[static_cast<size_t>(i)] * s[static_cast<size_t>(i)];
          s[static_cast<size_t>(i)] *= c.alpha[t * c.stride + i];
          p += s[static_cast<size_t>(i)] * c.k[t * c.stride + i];
        }
        const double v = c.v[t * c.stride + column], r = c.beta[t * 3] * (v - p);
        for (int64_t i = 0; i < d; ++i) {
          s[static_cast<size_t>(i)] += c.k[t * c.stride + i] * r;
          o += s[static_cast<size_t>(i)] * c.q[t * c.stride + i];
          q_norm += double{c.q[t * c.stride + i]} * c.q[t * c.stride + i];
        }
        const double size = std::sqrt(norm) + std::abs(v);
        error += gamma(static_cast<double>(d) + 8) * size;
        ASSERT_NEAR(out[t * d + column], o,
                    std::sqrt(q_norm) * (error + 2 * gamma(static_cast<double>(d) + 2) * size));
      }
      for (int64_t i = 0; i < d; ++i) ASSERT_NEAR(state[at(i)], s[static_cast<size_t>(i)], error);
    }
  }
}

// ---- MLA ----------------------------------------------------------------------------------------

struct MlaCase {
  int64_t lanes, channels, latent, positions;
  std::vector<Floats> q, pages;
  std::vector<int64_t> visible;
  float scale = 0.1f;

  MlaCase(int64_t lane_count, int64_t width, int64_t values, int64_t length, Random& random)
      : lanes(lane_count), channels(width), latent(values), positions(length) {
    for (int64_t l = 0; l < lanes; ++l) {
      q.push_back(normal_floats(channels, random));
      visible.push_back(l == 0 ? positions : 1 + random.below(positions));
    }
    for (int64_t p = 0; p < ceil_div(positions, kMlaPage); ++p) {
      pages.push_back(normal_floats(kMlaPage * channels, random));
      for (int64_t i = 0; i < kMlaPage; ++i) {  // what nobody sees must not matter
        if (p * kMlaPage + i < positions) continue;
        std::fill_n(pages.back().data() + i * channels, channels, std::nanf(""));
      }
    }
  }

  std::vector<float> run(Isa isa, const std::vector<int64_t>& order) const {
    std::vector<Floats> results;
    std::vector<const float*> queries, page_pointers;
    std::vector<float*> outs;
    std::vector<int64_t> seen;
    for (const int64_t l : order) {
      results.emplace_back(latent);
      queries.push_back(q[static_cast<size_t>(l)].data());
      seen.push_back(visible[static_cast<size_t>(l)]);
    }
    for (Floats& result : results) outs.push_back(result.data());
    for (const Floats& page : pages) page_pointers.push_back(page.data());
    Floats scratch(kernels(isa).mla_scratch_floats(channels, latent));
    MlaLanes a;
    a.lanes = static_cast<int64_t>(order.size());
    a.channels = channels;
    a.latent = latent;
    a.q = queries.data();
    a.visible = seen.data();
    a.out = outs.data();
    a.pages = page_pointers.data();
    a.scale = scale;
    a.scratch = scratch.data();
    kernels(isa).mla(a);
    std::vector<float> flat(static_cast<size_t>(lanes * latent), NAN);
    for (size_t i = 0; i < order.size(); ++i) {
      std::copy_n(outs[i], latent, flat.data() + order[i] * latent);
    }
    return flat;
  }
  std::vector<int64_t> all() const {
    std::vector<int64_t> order;
    for (int64_t l = 0; l < lanes; ++l) order.push_back(l);
    return order;
  }

  // Each segment apart, then joined.
  std::vector<float> by_segments(Isa isa) const {
    const Kernels& k = kernels(isa);
    std::vector<const float*> queries, page_pointers;
    for (const Floats& query : q) queries.push_back(query.data());
    for (const Floats& page : pages) page_pointers.push_back(page.data());
    std::vector<Floats> joined, parts;
    std::vector<float*> first, next;
    for (int64_t l = 0; l < lanes; ++l) {
      joined.emplace_back(mla_part_floats(latent));
      parts.emplace_back(mla_part_floats(latent));
    }
    for (int64_t l = 0; l < lanes; ++l) {
      first.push_back(joined[static_cast<size_t>(l)].data());
      next.push_back(parts[static_cast<size_t>(l)].data());
    }
    Floats scratch(k.mla_scratch_floats(channels, latent));
    MlaLanes a;
    a.lanes = lanes;
    a.channels = channels;
    a.latent = latent;
    a.q = queries.data();
    a.visible = visible.data();
    a.pages = page_pointers.data();
    a.scale = scale;
    a.scratch = scratch.data();
    for (a.segment = 0; a.segment * kMlaSegment < positions; ++a.segment) {
      a.out = a.segment == 0 ? first.data() : next.data();
      k.mla(a);
      for (int64_t l = 0; l < lanes && a.segment > 0; ++l) {
        k.mla_join(next[static_cast<size_t>(l)], latent, first[static_cast<size_t>(l)]);
      }
    }
    std::vector<float> flat(static_cast<size_t>(lanes * latent));
    for (int64_t l = 0; l < lanes; ++l) {
      k.mla_finish(first[static_cast<size_t>(l)], latent, flat.data() + l * latent);
    }
    return flat;
  }
};

TEST(Mla, SegmentsMayBeAttendedApart) {
  Random random(5);
  const int64_t shapes[][4] = {
      {1, 12, 8, 256}, {5, 21, 13, 257}, {17, 24, 20, 700}, {50, 40, 33, 1030}, {96, 24, 16, 511}};
  for (const auto& s : shapes) {
    const MlaCase c(s[0], s[1], s[2], s[3], random);
    const auto expected = c.run(Isa::kScalar, c.all());
    for (const Isa isa : isas()) {
      const auto together = c.run(isa, c.all()), apart = c.by_segments(isa);
      ASSERT_TRUE(same_bits(together.data(), expected.data(), c.lanes * c.latent)) << name(isa);
      ASSERT_TRUE(same_bits(apart.data(), expected.data(), c.lanes * c.latent)) << name(isa);
    }
  }
}

TEST(Mla, EveryTargetAndCompanyAgree) {
  Random random(3);
  const int64_t shapes[][4] = {{1, 12, 8, 1},    {5, 21, 13, 63},   {16, 24, 16, 64},
                               {17, 24, 20, 65}, {40, 24, 16, 130}, {48, 40, 32, 200},
                               {96, 24, 16, 70}, {101, 21, 8, 193}};
  for (const auto& s : shapes) {
    const MlaCase c(s[0], s[1], s[2], s[3], random);
    const auto expected = c.run(Isa::kScalar, c.all());
    for (const float value : expected) ASSERT_FALSE(std::isnan(value));
    for (const Isa isa : isas()) {
      const auto together = c.run(isa, c.all());
      ASSERT_TRUE(same_bits(together.data(), expected.data(), c.lanes * c.latent))
          << name(isa) << " lanes " << c.lanes;
      auto order = c.all();
      for (size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
      }
      const auto shuffled = c.run(isa, order);
      ASSERT_TRUE(same_bits(shuffled.data(), expected.data(), c.lanes * c.latent)) << name(isa);
      for (int64_t l = 0; l < c.lanes; l += 3) {
        const auto alone = c.run(isa, {l});
        ASSERT_TRUE(
            same_bits(alone.data() + l * c.latent, expected.data() + l * c.latent, c.latent))
            << name(isa) << " lane " << l;
      }
    }
  }
}

// A score errs by gamma_(channels+1) of scale * sum |q L|; that is the relative error of its weight
// in numerator and sum. Each exp errs by 2 ulp and its argument by one rounding; a weight passes
// through one exp and at most one rescaling (exp, product) per block and per segment; sums add
// `visible` roundings.
TEST(Mla, AgreesWithDouble) {
  Random random(4);
  for (const int64_t positions : {1, 64, 300, 800}) {
    const MlaCase c(20, 72, 64, positions, random);
    const auto y = c.run(Isa::kScalar, c.all());
    for (int64_t l = 0; l < c.lanes; ++l) {
      const int64_t seen = c.visible[static_cast<size_t>(l)];
      const auto row = [&](int64_t p) {
        return c.pages[static_cast<size_t>(p / kMlaPage)].data() + p % kMlaPage * c.channels;
      };
      std::vector<double> weight;
      double worst = 0, top = -1e300, low = 1e300;
      for (int64_t p = 0; p < seen; ++p) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < c.channels; ++i) {
          const double term = double{c.q[static_cast<size_t>(l)][i]} * row(p)[i];
          sum += term;
          magnitude += std::abs(term);
        }
        weight.push_back(sum * c.scale);
        worst = std::max(worst, gamma(static_cast<double>(c.channels) + 1) * magnitude * c.scale);
        top = std::max(top, sum * c.scale);
        low = std::min(low, sum * c.scale);
      }
      double total = 0;
      for (double& w : weight) total += (w = std::exp(w - top));
      const auto blocks =
          static_cast<double>(ceil_div(seen, kMlaPage) + ceil_div(seen, kMlaSegment));
      const double error = std::expm1(4 * worst) +
                           gamma(2 * (static_cast<double>(seen) + (blocks + 1) * (5 + top - low)));
      for (int64_t i = 0; i < c.latent; ++i) {
        double exact = 0, magnitude = 0;
        for (int64_t p = 0; p < seen; ++p) {
          const double term = weight[static_cast<size_t>(p)] / total * row(p)[i];
          exact += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(y[static_cast<size_t>(l * c.latent + i)], exact, error * magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace k3
